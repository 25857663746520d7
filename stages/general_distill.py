"""General distillation: a student starts and imitates the teacher on the general corpus."""

import torch

from tinybert.config.compatibility import check_students
from tinybert.config.load import load_params
from tinybert.config.students import training_of
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.result import Trained, train_and_save
from tinybert.distill.text_training import sample_batches, train_on_text
from tinybert.models.bert import MaskedLM
from tinybert.models.checkpoints import Model, load_bert
from tinybert.models.initialization import initialize_student
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Starts the student by its recipe and trains it with the losses of its general stage."""
    params, name = stage.params, stage.items["student"]

    def train_general(**hooks) -> Trained[Model]:
        teacher, blocks = load_bert(MaskedLM, paths.TEACHER), Sequences.open(paths.sequences("general", "train"))
        check_students(load_params().used_students, teacher.config.shape)
        torch.manual_seed(params.seed)
        started = initialize_student(params.students[name], teacher, sample=lambda: sample_batches(blocks))
        objective = DistillationLoss(
            DistillationConfig.of(params, name, "general"), started.model.config, teacher.config
        )
        if started.projection is not None:
            objective.start_projections(started.projection)
        curve = train_on_text(
            started.model,
            objective,
            blocks,
            tokenizer=load_tokenizer(paths.TOKENIZER),
            training=training_of(params, name, "general"),
            params=params,
            teacher=teacher,
            title=f"general {name}",
            **hooks,
        )
        return Trained(started.model, objective, curve)

    train_and_save(stage, paths.general_student(name), train_general)


if __name__ == "__main__":
    run_stage(main, "student", trains=True)
