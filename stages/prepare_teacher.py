"""The masked-LM teacher: from the Hub or a folder, or from scratch; (further) trained on the general corpus."""

from tinybert import paths
from tinybert.corpus.blocks import Blocks
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.evaluation.masked_lm import frequency_accuracy, heldout_batches, masked_lm_scores
from tinybert.launch import is_main_process
from tinybert.models.teacher import refuse_unfit_recipes, start_teacher
from tinybert.objective import Imitation, Objective
from tinybert.params import load_params
from tinybert.stage import Stage, run_stage
from tinybert.training.checkpoint import Checkpoint
from tinybert.training.masking import Masker
from tinybert.training.result import save_trained, training_metrics
from tinybert.training.text import train_on_text


def main(stage: Stage) -> None:
    """Brings the teacher, trains it as a masked LM, and measures it on held-out text."""
    params = stage.params
    tokenizer = load_tokenizer(paths.TOKENIZER)
    blocks = Blocks.open(paths.blocks("general", "train"))
    teacher = start_teacher(params.teacher, vocab_size=tokenizer.get_vocab_size(), seed=params.seed)
    refuse_unfit_recipes(load_params().used_students, teacher.config)
    objective = Objective(Imitation({"hard": 1.0}), teacher.config)

    checkpoint = Checkpoint.of(stage)
    curve = train_on_text(
        teacher,
        objective,
        blocks,
        tokenizer=tokenizer,
        training=params.teacher.pretraining,
        params=params,
        title="teacher",
        on_point=stage.on_point,
        checkpoint=checkpoint,
    )
    if not is_main_process():
        return
    save_trained(teacher, objective, paths.TEACHER)
    stage.write_curve(curve)
    masker, limit = Masker.of(params.masking, tokenizer), params.examination.heldout_blocks
    heldout = heldout_batches(Blocks.open(paths.blocks("general", "heldout")), masker, limit=limit, seed=params.seed)
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
