"""General distillation: a student is initialized and imitates the teacher on the general corpus."""

import torch

from tinybert.config.load import load_params
from tinybert.config.students import check_students, training_of
from tinybert.data.sequences import Sequences
from tinybert.distill.batches import spread_batches
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.initialization import general_teacher, initialize_student
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Trains a new student with the losses of its general stage."""
    params, name = stage.params, stage.items["student"]
    config, sequences = params.students[name], Sequences.open(paths.sequences("general", "train"))
    teacher = general_teacher(params, config)
    check_students(load_params().used_students, teacher.config.shape)

    torch.manual_seed(params.seed)
    # Subcloning measures the teacher on plain text.
    initialized = initialize_student(config, teacher, sample=lambda: spread_batches(sequences, limit=256))
    losses = DistillationConfig.of(config, "general", seed=params.seed, length_tokens=params.tokenize.sequence_tokens)
    loss = DistillationLoss(losses, initialized.model.config, teacher.config)
    loss.start_projections(initialized.projection)
    if config.init.folder:  # of a student that tinybert trained: its projections and learnable map continue
        loss.load(paths.resolve(config.init.folder))

    training = StageTraining(stage, initialized.model, loss, paths.general_student(name))
    training.learn_text(teacher, "general", training_of(params, name, "general"), params.seed)
    training.finish()


if __name__ == "__main__":
    run_stage(main, "student", trains=True)
