"""A small distillation as a script, for tests that kill it or launch several of it.

python -m tests.support.small_distillation <folder> [--steps N] [--dropout P] [--checkpoint] [--pause SECONDS]
leaves weights.safetensors and curve.json in the folder.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.torch import save_file

from tests.support.builders import STUDENT, TEACHER, masked_lm
from tinybert.config.fields import Training
from tinybert.config.schema import Masking
from tinybert.data.sequences import Sequences
from tinybert.distill.batches import Batches, Masker
from tinybert.distill.loop import LiveTeacher, Settings, train
from tinybert.distill.metric_log import TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.pipeline.process import is_main_process

OPTIMIZER = SimpleNamespace(weight_decay=0.01, max_gradient_norm=1.0, warmup_fraction=0.1)
MASKING = Masking(rate=0.3, mask_fraction=0.8, random_fraction=0.1)
MASKER = Masker(MASKING, special_ids=(0, 1, 2, 3, 4), mask_id=4, vocabulary_size=50)
WEIGHTS = {"hard": 1.0, "prediction": 1.0, "attention": 1.0, "hidden": 1.0}


def sequences() -> Sequences:
    rng = np.random.default_rng(0)
    rows = [np.concatenate([[2], rng.integers(5, 50, rng.integers(3, 20)), [3]]) for _ in range(90)]
    return Sequences(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


class SlowBatches(Batches):
    """Leaves time to be killed in."""

    pause = 0.0

    def epoch(self, number: int, first: int = 0):
        for batch in super().epoch(number, first):
            time.sleep(self.pause)
            yield batch


def distill(
    *,
    steps: int,
    dropout: float,
    accumulation_steps: int = 1,
    checkpoint: Checkpoint | None = None,
    pause: float = 0.0,
):
    """Trains a small student; returns it and its loss curve."""
    shape = replace(STUDENT, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    student, teacher = masked_lm(shape, seed=1), masked_lm(TEACHER, seed=2)
    torch.manual_seed(3)
    config = DistillationConfig(WEIGHTS, layer_map="random", temperature=2.0, seed=5)
    loss = DistillationLoss(config, shape, TEACHER)
    batches = SlowBatches(sequences(), MASKER, batch_size=8, seed=7)
    batches.pause = pause
    training = Training(
        epochs=1000, max_steps=steps, batch_size=8, learning_rate=3e-3, accumulation_steps=accumulation_steps
    )
    settings, run = Settings(training, OPTIMIZER, 7, "float32"), TrainRun("small", checkpoint=checkpoint)
    return student, train(student, loss, batches, settings, teacher=LiveTeacher(teacher, loss), run=run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    saved = Checkpoint(options.folder / "checkpoints", lambda: "small") if options.checkpoint else None
    trained, curve = distill(steps=options.steps, dropout=options.dropout, checkpoint=saved, pause=options.pause)
    if is_main_process():
        save_file(trained.state_dict(), options.folder / "weights.safetensors")
        (options.folder / "curve.json").write_text(json.dumps(curve))
        group = torch.distributed.is_initialized()
        (options.folder / "processes.json").write_text(str(torch.distributed.get_world_size() if group else 1))
