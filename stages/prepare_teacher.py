"""The masked-LM teacher: published, in a folder, or from scratch; (further) pretrained on the general corpus."""

from tinybert.config.load import load_params
from tinybert.config.students import check_students
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Masker, spread_batches
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.evaluate.language_model import masked_lm_scores
from tinybert.models.initialization import start_teacher
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Trains the teacher as a masked LM and measures it on held-out text."""
    params, pretraining = stage.params, stage.params.teacher.pretraining
    tokenizer = load_tokenizer(paths.TOKENIZER)
    teacher = start_teacher(params.teacher, vocab_size=tokenizer.get_vocab_size(), seed=params.seed)
    check_students(load_params().used_students, teacher.config.shape)

    loss = DistillationLoss(DistillationConfig({"hard": 1.0}), teacher.config)
    training = StageTraining(stage, teacher, loss, paths.TEACHER)
    training.learn_text(None, "general", pretraining, params.seed)

    def measure() -> dict:
        heldout = Sequences.open(paths.sequences("general", "heldout"))
        masker = Masker.of(params.masking, tokenizer)
        masked = spread_batches(heldout, masker, limit=params.domain_evaluation.heldout_sequences, seed=params.seed)
        return {"layers": teacher.config.num_hidden_layers, "heldout": masked_lm_scores(teacher, masked)[0]}

    training.finish(measure)


if __name__ == "__main__":
    run_stage(main, trains=True)
