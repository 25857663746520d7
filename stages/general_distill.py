"""General distillation: a student starts and imitates the teacher on the general corpus."""

import torch

from tinybert import paths
from tinybert.corpus.blocks import Blocks
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.launch import is_main_process
from tinybert.models.folder import load_model
from tinybert.models.start import start_student
from tinybert.objective import Imitation, Objective
from tinybert.stage import Stage, run_stage
from tinybert.training.checkpoint import Checkpoint
from tinybert.training.result import save_trained, training_metrics
from tinybert.training.text import sample_batches, train_on_text


def main(stage: Stage) -> None:
    """Starts the student by its recipe and trains it with the losses of its general stage."""
    params, name = stage.params, stage.items["student"]
    recipe = params.students[name]
    teacher = load_model(paths.TEACHER)
    torch.manual_seed(params.seed)
    blocks = Blocks.open(paths.blocks("general", "train"))
    started = start_student(recipe, teacher, sample=lambda: sample_batches(blocks))
    student = started.model
    objective = Objective(Imitation.of(params, name, "general"), student.config, teacher.config)
    if started.projection is not None:
        objective.start_projections(started.projection)

    checkpoint = Checkpoint.of(stage)
    curve = train_on_text(
        student,
        objective,
        blocks,
        tokenizer=load_tokenizer(paths.TOKENIZER),
        training=params.general.training,
        params=params,
        teacher=teacher,
        title=f"general {name}",
        on_point=stage.on_point,
        checkpoint=checkpoint,
    )
    if not is_main_process():
        return
    save_trained(student, objective, paths.student("general", name))
    stage.write_curve(curve)
    stage.write_metrics(training_metrics(student, curve))
    checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, "student", trains=True)
