"""Learning curves: what narrowing removes, that it computes the same otherwise, and what the benchmark writes."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.learning_curves import chosen_params, main, read_options
from benchmarks.narrowing import EVENTS, SENSITIVITY_DECAY, Narrower, structures
from tests.support.builders import STUDENT, TEACHER, batch, masked_lm
from tests.support.fake_stage import enter_project
from tests.support.project import tiny_params, write_params
from tests.support.small_distillation import OPTIMIZER, sequences
from tinybert.config.fields import Training
from tinybert.data.sequences import sequences_writer
from tinybert.distill.batches import micro_batches, text_batch
from tinybert.distill.loop import Distiller, Settings, adamw
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import MaskedLM
from tinybert.models.initialization import general_teacher
from tinybert.models.model_folders import load_bert, save_model
from tinybert.models.outputs import OutputSpec
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError

SMALL = replace(STUDENT, num_hidden_layers=TEACHER.num_hidden_layers)
LOSSES = {"hidden": 1.0, "embedding": 1.0, "attention": 1.0, "prediction": 1.0}
ALL_LAYERS = frozenset(range(1, TEACHER.num_hidden_layers + 1))
# The end of a weight's name -> the structure of its rows, and of its columns; the first match counts.
AXES = {
    "embeddings.weight": (None, "residual"),
    "LayerNorm.weight": ("residual",),
    "LayerNorm.bias": ("residual",),
    "query.weight": ("scores", "residual"),
    "query.bias": ("scores",),
    "key.weight": ("scores", "residual"),
    "key.bias": ("scores",),
    "value.weight": ("context", "residual"),
    "value.bias": ("context",),
    "attention.output.dense.weight": ("residual", "context"),
    "intermediate.dense.weight": ("neurons", "residual"),
    "intermediate.dense.bias": ("neurons",),
    "pooler.dense.weight": ("residual", "residual"),
    "transform.dense.weight": ("residual", "residual"),
    "output.dense.weight": ("residual", "neurons"),
    "dense.bias": ("residual",),
    "predictions.bias": (None,),
    "embedding.weight": (None, "residual"),  # these two are projections
    "hidden.weight": (None, "residual"),
}


class Wide:
    """A student as wide as its teacher, its losses and optimizer, and its structures by layer and kind."""

    def __init__(self, config=SMALL) -> None:
        self.student, self.teacher = masked_lm(TEACHER, seed=1), masked_lm(TEACHER, seed=2)
        self.loss = DistillationLoss(DistillationConfig(LOSSES), config, TEACHER)
        for projection in self.loss.projections.values():
            projection.weight = torch.nn.Parameter(torch.eye(TEACHER.hidden_size))
        self.module = Distiller(self.student, self.loss)
        training = Training(epochs=1, max_steps=None, batch_size=3, learning_rate=1e-2)
        self.optimizer = adamw(self.module, Settings(training, OPTIMIZER, 0))
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"]
        found = structures(self.student, self.loss, config)
        names = [(layer, kind) for layer in range(4) for kind in ("scores", "context", "neurons")]
        self.structures = dict(zip([(None, "residual"), *names], found, strict=True))

    def backward(self, seed: int) -> None:
        """The gradients of a batch in which some tokens are predicted."""
        example = batch(seed=seed, positions=torch.tensor([1, 3, 8]), labels=torch.tensor([6, 7, 8]))
        part = micro_batches(example, processes=1, process=0, accumulation_steps=1)[0]
        self.optimizer.zero_grad()
        with torch.no_grad():
            outputs = self.teacher(example, self.loss.teacher_spec())
        self.module(part, outputs)[0].backward()

    def axes(self, name: str) -> list:
        """The structure of each dimension of a weight, None where nothing is removed."""
        kinds = next(kinds for ending, kinds in AXES.items() if name.endswith(ending))
        layer = int(name.split(".layer.")[1].split(".")[0]) if ".layer." in name else None
        keys = [(None if kind == "residual" else layer, kind) for kind in kinds]
        return [self.structures[key] if key[1] else None for key in keys]


@torch.no_grad()
def outputs(student) -> list[torch.Tensor]:
    found = student(batch(), OutputSpec(ALL_LAYERS, ALL_LAYERS, logits=False))
    return [*found.hidden.values(), *found.scores.values()]


def test_removing_zero_units_leaves_the_outputs_unchanged():
    wide = Wide()
    del wide.structures[None, "residual"]
    generator = torch.Generator().manual_seed(0)
    for structure in wide.structures.values():
        grouped = torch.arange(len(structure.sensitivity)).unflatten(0, (structure.groups, -1))
        dropped = grouped.shape[1] - structure.final_size
        zero = torch.cat([units[torch.randperm(len(units), generator=generator)[:dropped]] for units in grouped])
        for tensor, dimension in structure.axes:
            tensor.data.index_fill_(dimension, zero, 0.0)
            if tensor.ndim == 1:  # biases begin at 0
                tensor.data.add_(torch.randn(tensor.shape, generator=generator).index_fill(0, zero, 0.0))
    wide.backward(seed=0)
    before = outputs(wide.student)
    with torch.no_grad():
        for structure in wide.structures.values():
            structure.measure()
            structure.shrink(1.0, wide.optimizer)
    layer = wide.student.bert.encoder.layer[0]
    assert layer.attention.self.query.weight.shape == (12, 24)
    assert layer.intermediate.dense.weight.shape == (24, 24)
    for ours, expected in zip(outputs(wide.student), before, strict=True):
        torch.testing.assert_close(ours, expected)


def test_weights_and_moments_keep_the_same_units():
    wide = Wide()
    for step in range(3):
        wide.backward(step)
        wide.optimizer.step()
    named = dict(wide.module.named_parameters())
    before = {name: (tensor.clone(), {**wide.optimizer.state.get(tensor, {})}) for name, tensor in named.items()}
    generator = torch.Generator().manual_seed(0)
    kept = {}
    for structure in wide.structures.values():
        structure.sensitivity = torch.randperm(len(structure.sensitivity), generator=generator).float()
        ranked = structure.sensitivity.unflatten(0, (structure.groups, -1)).argsort(dim=1, descending=True)
        best = ranked[:, : structure.final_size].sort(dim=1).values
        offsets = torch.arange(structure.groups) * ranked.shape[1]
        kept[id(structure)] = (best + offsets[:, None]).flatten()
        expected = structure.sensitivity[kept[id(structure)]]
        structure.shrink(1.0, wide.optimizer)
        assert torch.equal(structure.sensitivity, expected)
    for name, tensor in named.items():
        old, state = before[name]
        factor = 0.5**0.5 if ".query." in name else 1.0  # heads of 8 became heads of 4
        scaled = {"weight": (tensor, old, factor)}
        for key, power in (("exp_avg", -1), ("exp_avg_sq", -2)):
            if ".pooler." not in name:  # no loss reaches it
                scaled[key] = (wide.optimizer.state[tensor][key], state[key], factor**power)
        for found, expected, scale in scaled.values():
            for dimension, structure in enumerate(wide.axes(name)):
                if structure:
                    expected = expected.index_select(dimension, kept[id(structure)])
            torch.testing.assert_close(found, expected * scale, msg=name)


def test_sensitivity_is_the_sum_over_all_weights_of_a_unit():
    wide = Wide()
    expected = {key: torch.zeros(len(structure.sensitivity)) for key, structure in wide.structures.items()}
    keys = {id(structure): key for key, structure in wide.structures.items()}
    for seed in (1, 2):
        wide.backward(seed)
        sums = {key: torch.zeros_like(total) for key, total in expected.items()}
        for name, weight in wide.module.named_parameters():
            for dimension, structure in enumerate(wide.axes(name)):
                if structure and weight.grad is not None:
                    for unit in range(weight.shape[dimension]):
                        products = weight.select(dimension, unit) * weight.grad.select(dimension, unit)
                        sums[keys[id(structure)]][unit] += products.abs().sum().item()
        for key, structure in wide.structures.items():
            expected[key] = SENSITIVITY_DECAY * expected[key] + (1 - SENSITIVITY_DECAY) * sums[key]
            with torch.no_grad():
                structure.measure()
    for key, structure in wide.structures.items():
        assert expected[key].min() > 0
        torch.testing.assert_close(structure.sensitivity, expected[key], msg=str(key))


def test_width_falls_by_the_cubic_schedule_to_the_shape():
    wide = Wide()
    narrower = Narrower(wide.student, wide.loss, SMALL, fraction=0.5)
    narrower.begin(160, wide.optimizer)
    widths = []
    for step in range(160):
        narrower.before_step(step)
        narrower.after_step()
        widths.append(wide.student.bert.embeddings.word_embeddings.weight.shape[1])
    assert widths[:4] == [24, 24, 24, round(12 + 12 * (1 - 1 / EVENTS) ** 3)]
    assert (widths[39], widths[58], widths[59]) == (round(12 + 12 / 8), 12, 12)
    fresh = MaskedLM(SMALL)
    assert str(wide.student) == str(fresh)  # the sizes that modules print
    assert {name: value.shape for name, value in wide.student.state_dict().items()} == {
        name: value.shape for name, value in fresh.state_dict().items()
    }
    assert {projection.weight.shape for projection in wide.loss.projections.values()} == {(24, 12)}
    assert wide.student.config == SMALL


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a pretrained teacher, another one as it was given, a tokenizer and sequences."""
    enter_project(tmp_path, monkeypatch)
    tree = tiny_params(heads=TEACHER.num_attention_heads)
    tree["teacher"] |= {"source": "local", "local": {"folder": "given"}}
    tree["students"]["tinybert4"]["architecture"] |= {"width": 12, "feed_forward": 24, "dropout": 0.1}
    write_params(tmp_path, tree)
    rows = sequences()
    for folder in (paths.TEACHER, tmp_path / "given"):
        folder.mkdir(parents=True)
    for split, numbers in (("train", range(50)), ("heldout", range(50, 90))):
        folder = paths.sequences("general", split)
        folder.mkdir(parents=True)
        with sequences_writer(folder, np.dtype(np.uint16)) as append:
            chosen = [rows[number] for number in numbers]
            append(np.concatenate(chosen), np.array(list(map(len, chosen))))
    save_model(masked_lm(TEACHER, seed=3), paths.TEACHER)
    save_model(masked_lm(TEACHER, seed=4), tmp_path / "given")
    return tree


def run(init: str, *options: str) -> list[dict]:
    """The lines that a run appends; its student is in the folder `init`."""
    output = Path(f"{init}.jsonl")
    before = len(output.read_text().splitlines()) if output.exists() else 0
    shutil.rmtree(init, ignore_errors=True)
    main(["--init", init, "--steps", "40", "--learning-rate", "0.01", "--save", init, *options, str(output)])
    return [json.loads(line) for line in output.read_text().splitlines()[before:]]


@pytest.mark.parametrize("init", ["random", "subcloning", "narrowing"])
def test_one_line_per_evaluation_with_a_falling_loss(init, project, capsys):
    entries = run(init, "--evaluate-at", "0,10,20,35,99")
    assert [entry["step"] for entry in entries] == [0, 10, 20, 35, 40]
    assert {(entry["init"], entry["student"]) for entry in entries} == {(init, "tinybert4")}
    totals = [entry["total"] for entry in entries]
    assert totals[-1] < (totals[2] if init == "narrowing" else totals[0])  # narrowed until step 20
    for entry in entries:
        assert entry["losses"].keys() == {"attention", "hidden", "embedding"}
        assert entry["total"] == pytest.approx(sum(entry["losses"].values()))
    # 50 rows are 7 batches.
    assert (entries[0]["tokens"], entries[3]["tokens"]) == (0, 5 * sequences().lengths[:50].sum())
    assert entries[0]["seconds"] == 0 < entries[1]["seconds"] < entries[-1]["seconds"]
    # Decay by 1/36 a step after 4 of warm-up.
    assert entries[-1]["learning_rate"] == pytest.approx(0.01 / 36)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(row[0]) for row in printed[2:]] == [0, 10, 20, 35, 40]
    assert float(printed[-1][5]) == pytest.approx(totals[-1], rel=1e-4)
    check_saved(init, entries[-1])


@torch.no_grad()
def check_saved(folder: str, entry: dict) -> None:
    """The folder holds the student and projections of the last line; the loss is that of one large batch."""
    student, teacher = load_bert(MaskedLM, folder), load_bert(MaskedLM, paths.TEACHER)
    assert student.config == STUDENT
    assert student.parameter_count == entry["parameters"]
    loss = DistillationLoss(DistillationConfig(dict.fromkeys(entry["losses"], 1.0)), student.config, TEACHER)
    loss.load(folder)
    rows = sequences()
    example = text_batch([rows[number] for number in range(50, 90)], None, np.random.default_rng(0))
    terms = loss(student(example, loss.student_spec), teacher(example, loss.teacher_spec()), example)
    assert {name: float(value) for name, value in terms.items()} == pytest.approx(entry["losses"], rel=1e-4)
    assert Path(folder, "vocab.txt").read_bytes() == (paths.TOKENIZER / "vocab.txt").read_bytes()


def without_seconds(entries: list[dict]) -> list[dict]:
    return [{key: value for key, value in entry.items() if key not in ("init", "seconds")} for entry in entries]


def test_evaluations_do_not_change_the_training(project):
    often, once = (run("narrowing", "--evaluate-at", steps) for steps in ("0,3,9,14,25", "40"))
    assert without_seconds(often[-1:]) == without_seconds(once)


def test_narrowing_to_the_teachers_width_changes_nothing(project, tmp_path):
    project["students"]["tinybert4"]["architecture"] |= {"width": 24, "feed_forward": 48}
    write_params(tmp_path, project)
    plain, narrowed = (without_seconds(run(init)) for init in ("subcloning", "narrowing"))
    assert plain == narrowed
    assert plain[0]["total"] != plain[-1]["total"]
    expected, found = (load_file(f"{init}/model.safetensors") for init in ("subcloning", "narrowing"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("source", "losses", "seed"),
    [("given", "hidden=1", 4), ("given", "hidden=1,hard=1", 3), ("pretrained", "hidden=1", 3)],
)
def test_the_teacher_is_that_of_the_general_stage(source, losses, seed, project, tmp_path):
    project["tasks"]["teacher_encoder"] = source
    write_params(tmp_path, project)
    options = read_options(["--init", "random", "--losses", losses, "out.jsonl"])
    params = chosen_params(options)
    expected = dict(part.split("=") for part in losses.split(","))
    assert params.students["tinybert4"].general.active_losses == {name: 1.0 for name in expected}
    assert not params.students["tinybert4"].init.teacher
    words = general_teacher(params, params.students["tinybert4"]).bert.embeddings.word_embeddings.weight
    assert torch.equal(words, masked_lm(TEACHER, seed=seed).bert.embeddings.word_embeddings.weight)


def test_projections_of_later_stages_are_narrowed_too(project):
    run("narrowing", "--losses", "attention=1")
    projections = load_file("narrowing/objective.safetensors")
    assert projections.keys() == {"projections.embedding.weight", "projections.hidden.weight"}
    for projection in projections.values():  # columns of the identity, in its order
        chosen = projection.argmax(dim=0)
        assert torch.equal(projection, torch.eye(24)[:, chosen.unique()])
        assert len(chosen) == 12


def test_losses_that_read_logits_are_computed_on_masked_text(project):
    entries = run("narrowing", "--losses", "hard=1,hidden=0.5", "--evaluate-at", "0")
    assert entries[0]["losses"]["hard"] == pytest.approx(math.log(50), rel=0.1)
    for entry in entries:
        assert entry["total"] == pytest.approx(entry["losses"]["hard"] + 0.5 * entry["losses"]["hidden"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": "random"}, r"students\.tinybert4\.init: names no teacher layers"),
        ({"general": None}, r"students\.tinybert4\.general: no losses"),
        (
            {"architecture": {"layers": 2, "width": 12, "heads": 2, "feed_forward": 24, "dropout": 0.0},
             "general": {"losses": {"hidden": 1.0}}},
            r"--init: narrowing keeps all heads \(got 2\); allowed: 3",
        ),
    ],
)  # fmt: skip
def test_students_that_cannot_be_narrowed(changes, message, project, tmp_path):
    project["students"]["tinybert4"] |= changes
    write_params(tmp_path, project)
    with pytest.raises(UserError, match=message):
        run("narrowing")
