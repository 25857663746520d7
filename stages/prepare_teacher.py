"""The masked-LM teacher: from the Hub or a folder, or from scratch; (further) trained on the general corpus."""

from tinybert.config.compatibility import check_students
from tinybert.config.load import load_params
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.masking import Masker
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.result import save_trained, training_metrics
from tinybert.distill.resume import Checkpoint
from tinybert.distill.text_training import train_on_text
from tinybert.evaluate.perplexity import frequency_accuracy, heldout_batches, masked_lm_scores
from tinybert.models.initialization import start_teacher
from tinybert.pipeline import paths
from tinybert.pipeline.process import is_main_process
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Brings the teacher, trains it as a masked LM, and measures it on held-out text."""
    params = stage.params
    tokenizer = load_tokenizer(paths.TOKENIZER)
    blocks = Sequences.open(paths.sequences("general", "train"))
    teacher = start_teacher(params.teacher, vocab_size=tokenizer.get_vocab_size(), seed=params.seed)
    check_students(load_params().used_students, teacher.config.shape)
    objective = DistillationLoss(DistillationConfig({"hard": 1.0}), teacher.config)

    checkpoint = Checkpoint.of(stage)
    curve = train_on_text(
        teacher,
        objective,
        blocks,
        tokenizer=tokenizer,
        training=params.teacher.pretraining,
        params=params,
        title="teacher",
        on_entry=stage.on_entry,
        checkpoint=checkpoint,
    )
    if not is_main_process():
        return
    save_trained(teacher, objective, paths.TEACHER)
    stage.write_curve(curve)
    masker, limit = Masker.of(params.masking, tokenizer), params.domain_evaluation.heldout_sequences
    heldout = heldout_batches(
        Sequences.open(paths.sequences("general", "heldout")), masker, limit=limit, seed=params.seed
    )
    stage.write_metrics(
        training_metrics(teacher, curve)
        | {
            "layers": teacher.config.num_hidden_layers,
            "heldout": masked_lm_scores(teacher, heldout),
            "frequency_accuracy": frequency_accuracy(blocks, heldout, masker),
        }
    )
    checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, trains=True)
