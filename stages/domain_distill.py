"""Domain distillation: a general student continues to imitate the teacher on the domain corpus."""

import torch

from tinybert.config.students import training_of
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Batches, Masker
from tinybert.distill.loop import LiveTeacher
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import MaskedLM
from tinybert.models.checkpoints import load_bert
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage
from tinybert.training import StageTraining


def main(stage: Stage) -> None:
    """Trains a general student with the losses of its domain stage; its projections are kept."""
    params, name, seed = stage.params, stage.items["student"], int(stage.items["seed"])
    source, section = paths.general_student(name), training_of(params, name, "domain")
    tokenizer, sequences = load_tokenizer(paths.TOKENIZER), Sequences.open(paths.sequences("domain", "train"))

    torch.manual_seed(seed)
    teacher, student = load_bert(MaskedLM, paths.TEACHER), load_bert(MaskedLM, source)
    limit = params.tokenize.sequence_tokens
    config = DistillationConfig.of(params.students[name], "domain", seed=seed, length_tokens=limit)
    loss = DistillationLoss(config, student.config, teacher.config)
    loss.load(source)

    masker = Masker.of(params.masking, tokenizer) if loss.reads_predictions else None
    batches = Batches(sequences, masker, batch_size=section.batch_size, seed=seed)
    training = StageTraining(stage, student, loss, paths.domain_student(name, seed), source)
    training.run(batches, section, seed, teacher=LiveTeacher(teacher, loss))
    training.finish()


if __name__ == "__main__":
    run_stage(main, "student", "seed", trains=True)
