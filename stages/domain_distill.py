"""Domain distillation: a general student goes on imitating the teacher on the domain corpus."""

import torch

from tinybert import paths
from tinybert.corpus.blocks import Blocks
from tinybert.corpus.tokenizer import load_tokenizer
from tinybert.launch import is_main_process
from tinybert.models.folder import load_model
from tinybert.objective import Imitation, Objective
from tinybert.stage import Stage, run_stage
from tinybert.training.checkpoint import Checkpoint
from tinybert.training.result import save_trained, training_metrics
from tinybert.training.text import train_on_text


def main(stage: Stage) -> None:
    """Trains the general student with the losses of its domain stage; its projections are kept."""
    params, name = stage.params, stage.items["student"]
    teacher, student = load_model(paths.TEACHER), load_model(paths.student("general", name))
    torch.manual_seed(params.seed)
    objective = Objective(Imitation.of(params, name, "domain"), student.config, teacher.config)
    objective.load(paths.student("general", name))

    checkpoint = Checkpoint.of(stage)
    curve = train_on_text(
        student,
        objective,
        Blocks.open(paths.blocks("domain", "train")),
        tokenizer=load_tokenizer(paths.TOKENIZER),
        training=params.domain.training,
        params=params,
        teacher=teacher,
        title=f"domain {name}",
        on_point=stage.on_point,
        checkpoint=checkpoint,
    )
    if not is_main_process():
        return
    save_trained(student, objective, paths.student("domain", name))
    stage.write_curve(curve)
    stage.write_metrics(training_metrics(student, curve))
    checkpoint.remove()


if __name__ == "__main__":
    run_stage(main, "student", trains=True)
