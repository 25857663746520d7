"""Domain distillation: a general student continues to imitate the teacher on the domain corpus."""

import torch

from tinybert.config.students import training_of
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import MaskedLM
from tinybert.models.model_folders import load_bert
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Trains a general student with the losses of its domain stage; its projections are kept."""
    params, name, seed = stage.params, stage.items["student"], int(stage.items["seed"])
    source = paths.general_student(name)
    torch.manual_seed(seed)
    teacher, student = load_bert(MaskedLM, paths.TEACHER), load_bert(MaskedLM, source)
    limit = params.tokenize.sequence_tokens
    config = DistillationConfig.of(params.students[name], "domain", seed=seed, length_tokens=limit)
    loss = DistillationLoss(config, student.config, teacher.config)
    loss.load(source)

    training = StageTraining(stage, student, loss, paths.domain_student(name, seed), source)
    training.learn_text(teacher, "domain", training_of(params, name, "domain"), seed)
    training.finish()


if __name__ == "__main__":
    run_stage(main, "student", "seed", trains=True)
