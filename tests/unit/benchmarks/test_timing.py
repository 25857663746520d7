"""The benchmarks: that both contestants do the same work, and what they print."""

import os
import re
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import reference
from benchmarks.general_distill import SIZES, TEMPERATURE, TextSetup, position_labels
from tests.support.builders import STUDENT, TEACHER, batch, masked_lm
from tests.support.project import ROOT
from tinybert.distill.batches import micro_batches
from tinybert.distill.loop import Distiller
from tinybert.distill.objective import DistillationConfig, DistillationLoss

LOSSES = ("embedding", "hidden", "attention", "hard", "prediction")
RENAMED = {
    r"^bert\.embeddings\.(word|position)_embeddings": r"embeddings.\1",
    r"^bert\.embeddings\.token_type_embeddings": "embeddings.segment",
    r"^bert\.encoder\.layer\.(\d+)\.attention\.(?:self|output)\.": r"attentions.\1.",
    r"^bert\.encoder\.layer\.(\d+)\.(?:intermediate|output)\.": r"feed_forwards.\1.",
    r"^cls\.predictions\.(?:transform\.)?": "head.",
    r"^bert\.pooler\.": "head.",
    r"^classifier\.": "head.classifier.",
    r"LayerNorm": "norm",
    r"^bert\.embeddings\.": "embeddings.",
}
DENSE = {
    "attention.output": "output",
    "intermediate": "inner",
    "transform": "transform",
    "pooler": "pooler",
    "output": "output",
}


def reference_name(name: str) -> str:
    """The reference's name of one of our weights."""
    dense = next((new for old, new in DENSE.items() if f"{old}.dense" in name), None)
    for pattern, replacement in RENAMED.items():
        name = re.sub(pattern, replacement, name)
    return name.replace("dense", dense) if dense else name


def renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our weights under the reference's names."""
    return {reference_name(name): value for name, value in weights.items()}


def shape_of(config) -> reference.Shape:
    return reference.Shape(
        config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.num_attention_heads
    )


def copy_of(model) -> reference.MaskedLM:
    """The reference's model with the weights of ours."""
    config = model.config
    copy = reference.MaskedLM(shape_of(config), config.vocab_size, dropout=0.0)
    copy.embeddings.position = torch.nn.Embedding(config.max_position_embeddings, config.hidden_size)
    copy.load_state_dict(renamed({name: value for name, value in model.state_dict().items() if "pooler" not in name}))
    return copy


def test_the_reference_computes_the_same_losses():
    teacher, student = masked_lm(TEACHER, seed=1), masked_lm(STUDENT, seed=2)
    weights = dict.fromkeys(LOSSES, 1.0)
    ours = Distiller(student, DistillationLoss(DistillationConfig(weights, temperature=TEMPERATURE), STUDENT, TEACHER))
    plain = reference.GeneralDistillation(
        copy_of(teacher), copy_of(student), vocabulary_losses=True, temperature=TEMPERATURE
    )
    plain.embedding_projection.load_state_dict(ours.loss.projections["embedding"].state_dict())
    plain.hidden_projection.load_state_dict(ours.loss.projections["hidden"].state_dict())
    example = batch((7, 7, 7), positions=torch.tensor([1, 8, 15, 20]), labels=torch.tensor([9, 10, 11, 12]))

    for module in (teacher, ours, plain):
        module.double()
    with torch.no_grad():
        (whole,) = micro_batches(example, processes=1, process=0, accumulation_steps=1)
        _, found = ours(whole, teacher(example, ours.loss.teacher_spec()))
    expected = plain.losses(example.input_ids, example.mask, position_labels(example))
    assert set(found) == set(expected) == set(LOSSES)
    for name in LOSSES:
        assert found[name].item() == pytest.approx(expected[name].item(), rel=1e-10)


def test_the_reference_trains_student_and_projections_only():
    work = SIZES["small"]
    models = [reference.MaskedLM(shape, work.vocabulary, dropout=0.1) for shape in (work.teacher, work.student)]
    plain = reference.GeneralDistillation(*models, vocabulary_losses=False, temperature=1.0)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    example = next(work.batches())
    plain.step(example.input_ids, example.mask, position_labels(example))
    changed = {name for name, value in plain.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in changed} == {"student", "embedding_projection", "hidden_projection"}
    assert not plain.teacher.training


def test_positions_without_a_label_are_ignored():
    example = batch((3, 3), 3, positions=torch.tensor([1, 5]), labels=torch.tensor([9, 8]))
    assert position_labels(example).tolist() == [[-100, 9, -100], [-100, -100, 8]]


def test_flops_of_a_step_are_those_of_its_matrix_products():
    work = TextSetup(
        reference.Shape(2, 16, 32, 2), reference.Shape(2, 8, 24, 2), vocabulary=50, batch_rows=3, length_tokens=10
    )
    models = [reference.MaskedLM(shape, work.vocabulary, dropout=0.0) for shape in (work.teacher, work.student)]
    plain = reference.GeneralDistillation(*models, vocabulary_losses=False, temperature=1.0)
    example = next(work.batches())
    with FlopCounterMode(display=False) as counter:
        plain.step(example.input_ids, example.mask, position_labels(example))
    assert work.step_flops() == pytest.approx(counter.get_total_flops(), rel=1e-12)


def test_general_distill_prints_both_and_ends_with_the_ratio():
    command = [sys.executable, "-m", "benchmarks.general_distill", "--sizes", "small", "--pairs", "2", "--vocabulary"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    lines = output.splitlines()
    found = {line.split()[0]: float(re.search(r"(\d+) tokens/s +peak memory \d+ MiB", line)[1]) for line in lines[3:5]}
    assert set(found) == {"reference", "ours"}
    assert "hard, prediction" in lines[1]
    ratio = float(re.fullmatch(r"ratio (\d+\.\d\d)", lines[-1])[1])
    assert 0.1 < ratio < 10
