"""What a finished domain student ships: weights, tokenizer and the model card."""

from tinybert.models.bert import MaskedLM
from tinybert.models.checkpoints import copy_model, load_bert, read_provenance
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, read_json
from tinybert.report.model_card import Finished, write_domain_card
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Copies one domain student of the global seed and writes its card."""
    name, seed = stage.items["student"], stage.params.seed
    source = paths.domain_student(name, seed)
    with atomic_folder(paths.final("domain", name)) as folder:
        copy_model(source, folder)
        finished = Finished(name, load_bert(MaskedLM, source), read_provenance(source), stage.params)
        metrics = read_json(paths.metrics("evaluate_domain", f"{name}-{seed}"))
        write_domain_card(folder, finished, metrics)
    stage.run.log_model_reference(f"domain-{name}", paths.final("domain", name), metrics["student"])


if __name__ == "__main__":
    run_stage(main, "student")
