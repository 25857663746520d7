"""General distillation: a student starts and imitates the teacher on the general corpus."""

import torch

from tinybert import paths
from tinybert.corpus.blocks import Blocks
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.models.folder import load_model
from tinybert.models.start import start_student
from tinybert.objective import Imitation, Objective
from tinybert.stage import Stage, run_stage
from tinybert.training.result import save_trained, training_metrics
from tinybert.training.text import train_on_text


def main(stage: Stage) -> None:
    """Starts the student by its recipe and trains it with the losses of its general stage."""
    params, name = stage.params, stage.items["student"]
    recipe = params.students[name]
    teacher = load_model(paths.TEACHER)
    torch.manual_seed(params.seed)
    student = start_student(recipe.architecture, recipe.start, teacher=teacher, layer_map=recipe.layer_map)
    objective = Objective(Imitation.of(recipe, "general"), student.config, teacher.config)

    curve = train_on_text(
        student,
        objective,
        Blocks.open(paths.blocks("general", "train")),
        tokenizer=load_tokenizer(paths.TOKENIZER),
        training=params.general.training,
        params=params,
        teacher=teacher,
        title=f"general {name}",
        on_point=stage.on_point,
    )
    save_trained(student, objective, paths.student("general", name))
    stage.write_curve(curve)
    stage.write_metrics(training_metrics(student, curve))


if __name__ == "__main__":
    run_stage(main, "student")
