"""Domain distillation: a general student goes on imitating the teacher on the domain corpus."""

import torch

from tinybert.config.students import training_of
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.result import Trained, train_and_save
from tinybert.distill.text_training import train_on_text
from tinybert.models.bert import MaskedLM
from tinybert.models.checkpoints import load_bert
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Trains the general student with the losses of its domain stage; its projections are kept."""
    params, name = stage.params, stage.items["student"]
    source = paths.general_student(name)

    def train_domain(**hooks) -> Trained[MaskedLM]:
        torch.manual_seed(params.seed)
        teacher, student = load_bert(MaskedLM, paths.TEACHER), load_bert(MaskedLM, source)
        objective = DistillationLoss(DistillationConfig.of(params, name, "domain"), student.config, teacher.config)
        objective.load(source)
        curve = train_on_text(
            student,
            objective,
            Sequences.open(paths.sequences("domain", "train")),
            tokenizer=load_tokenizer(paths.TOKENIZER),
            training=training_of(params, name, "domain"),
            params=params,
            teacher=teacher,
            title=f"domain {name}",
            **hooks,
        )
        return Trained(student, objective, curve)

    train_and_save(stage, paths.student("domain", name), train_domain, source=source)


if __name__ == "__main__":
    run_stage(main, "student", trains=True)
