"""Any params.yaml is accepted and meaningful, or refused with one line for each mistake."""

import copy
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.project import default_tree
from tests.support.properties import REFUSED, damaged_bytes, damaged_trees, is_finite, outcome
from tests.support.root import ROOT
from tinybert.config.load import check_params, load_params, merged_profile, read_yaml
from tinybert.config.schema import Params
from tinybert.config.students import mapped_layers, training_of
from tinybert.data.domain_filter import Rule
from tinybert.distill.loop import lr_factor
from tinybert.models.bert import BertConfig
from tinybert.models.bilstm import BiLstmConfig
from tinybert.pipeline import paths
from tinybert.report.results import stage_instances
from tinybert.stage import declared_values

pytestmark = pytest.mark.properties
SHIPPED = [ROOT / "params.yaml"]
TREES = [
    default_tree(),
    *(merged_profile(path.stem, ROOT) for path in sorted((ROOT / "profiles").glob("*.yaml"))),
]
STAGES = read_yaml(ROOT / "dvc.yaml")["stages"]
KEY = re.compile(r"params\.yaml: (?P<first>[^.: ]+)")
GENERAL = re.compile(r"params\.yaml: (no valid YAML|must be a mapping|and \d+ more mistakes|cannot be read)")
UNKNOWN = re.compile(r"params\.yaml: .*(unknown key|must be text: keys are names|must not hold half a surrogate pair)")


def read(tree) -> Params | object:
    return outcome(lambda: named(lambda: check_params(tree)), names="params.yaml: ")


def named(check):
    """Each line of a refusal begins with a key of the schema, but where the key itself is the mistake."""
    try:
        return check()
    except Exception as error:
        for line in str(error).split("\n"):
            found = KEY.match(line)
            is_known = found and found["first"] in {*Params.model_fields}
            assert is_known or GENERAL.match(line) or UNKNOWN.match(line), line
        raise


def as_written(params: Params) -> dict:
    """The tree that a person would have written for these params."""
    tree = params.model_dump(mode="json", exclude_unset=True)
    for student in tree["students"].values():
        student["init"] = student["init"] or "random"
    return tree


def assert_meaningful(params: Params) -> None:
    tree = as_written(params)
    assert is_finite(tree)
    assert check_params(copy.deepcopy(tree)) == params
    instances = [instance.path for instance in stage_instances(params)]
    assert len({*instances}) == len(instances)
    assert len({paths.task_model("cola", params.seed, model) for model in params.task_models}) == len(
        params.task_models
    )
    assert_stages_find_their_params(params)
    assert_models_can_be_shaped(params)
    assert_training_can_be_scheduled(params)
    Rule(params.filter)
    for place in (params.teacher.local.folder, params.tasks.local.folder, *params.corpus.local.files):
        paths.resolve(place).exists()  # whatever it is, it raises nothing


def assert_stages_find_their_params(params: Params) -> None:
    item = {"task": params.tasks.run[0], "corpus": "general"}
    for name, stage in STAGES.items():
        students = params.tasks.students if "task" in stage.get("matrix", {}) else params.general.students
        students = params.domain.students if name == "domain_distill" else students
        if not students:  # of domain distillation, which then has no instance
            continue
        chosen = item | {"student": students[0]}
        keys = stage.get("params", [])
        for what, value in chosen.items():
            keys = [key.replace(f"${{item.{what}}}", value) for key in keys]
        if "${" not in str(keys):
            assert declared_values(params, keys).keys() == {*keys}


def assert_models_can_be_shaped(params: Params) -> None:
    for name in params.general.students:
        student = params.students[name]
        shape = student.architecture
        if shape.kind == "bilstm":
            BiLstmConfig(200, shape.embedding, shape.width, shape.layers, shape.feed_forward, shape.dropout)
            continue
        BertConfig.of(shape, vocab_size=200, max_position_embeddings=512)
        if params.teacher.source == "synthetic" and isinstance(student.init.teacher, (str, tuple)):
            depth = params.teacher.synthetic.architecture.layers
            layers = mapped_layers(student.init.teacher, shape.layers, depth)
            assert len(layers) == shape.layers
            assert all(1 <= layer <= depth for block in layers for layer in block)


def assert_training_can_be_scheduled(params: Params) -> None:
    warmup = params.optimizer.warmup_fraction
    assert all(0 < lr_factor(step, 10, warmup, "linear") <= 1 for step in range(10))
    trainings = [training_of(params, name, "general") for name in params.general.students]
    trainings += [training_of(params, name, "domain") for name in params.domain.students]
    for task in params.tasks.run:
        trainings += [training_of(params, name, "prediction", task=task) for name in params.tasks.students]
    for training in trainings:
        assert training.learning_rate > 0
        assert min(training.batch_size, training.accumulation_steps) > 0
    for student in params.students.values():
        for stage in filter(None, (student.general, student.domain, student.intermediate, student.prediction)):
            weights = stage.active_losses.values()
            assert weights and is_finite([*weights]) and min(weights) > 0


@given(damaged_trees(*TREES))
@example({"\ud800": 1})
@example({"a\nb" * 999: 1, None: 2})
@example(default_tree({"quantization.latency.batch_sizes": [1, 1]}))
@example(default_tree({"students.tinybert4.prediction": {"losses": {"hidden": 1e308}, "alpha": 1.0}}))
@example(default_tree({"filter.subjects": {"history": [" ", "a\0b"]}}))
def test_a_changed_tree_is_valid_or_refused_by_line(tree):
    params = read(tree)
    if params is not REFUSED:
        assert_meaningful(params)


def mostly(fitting, others: st.SearchStrategy) -> st.SearchStrategy:
    """What fits, three times in four."""
    return st.integers(0, 3).flatmap(lambda number: others if number == 3 else st.just(fitting))


@st.composite
def lists_of_names(draw) -> dict:
    """The default with other lists of students, tasks, models and percentages, most of which fit together."""
    tree = copy.deepcopy(TREES[0])
    names = [*tree["students"], "nobody", "teacher", "tinybert4_pruned20"]
    few = st.lists(st.sampled_from(names), max_size=3)
    if draw(st.booleans()):
        tree["students"]["tinybert4_pruned20"] = copy.deepcopy(tree["students"]["tinybert4"])
        tree["general"]["students"] = [*tree["students"]]
    tree["general"]["students"] = draw(mostly([*tree["students"]], few))
    tree["domain"]["students"] = draw(mostly(["attentive", "lazy"], few))
    tree["tasks"]["students"] = draw(mostly(["tinybert4", "bilstm"], few))
    tree["tasks"]["run"] = draw(mostly(["rte", "cola"], st.lists(st.sampled_from(["cola", "qqp", "x"]), max_size=2)))
    tree["seeds"] = draw(mostly([7, 42, 0], st.lists(st.sampled_from([0, 42, 2**32 - 1, 2**32]))))
    percents = draw(mostly([99, 20, 1], st.lists(st.sampled_from([20, 1, 99, 0, 50]), max_size=3)))
    tree["pruning"]["sparsities_percent"] = percents
    tree["quantization"]["models"] = draw(mostly(["teacher", *tree["tasks"]["students"]], few))
    return tree


@given(lists_of_names())
def test_lists_fit_together_or_are_refused(tree):
    params = read(tree)
    if params is not REFUSED:
        assert_meaningful(params)


ARCHITECTURE = {"layers": 2, "width": 64, "heads": 4, "feed_forward": 256, "dropout": 0.0}
LOSSES = ["hard", "prediction", "logit_mse", "attention", "attention_kl", "hidden", "embedding", "cosine", "pkd",
          "atention"]  # fmt: skip
MAPS = ["uniform", "top", "bottom", "mean", "random", "learnable", [1, 4], [4, 1], [1], [0, 1], [1, 9], [2, 3, 4],
        {"learnable": {"learning_rate": 1e-3, "init": "last"}}, None]  # fmt: skip


@st.composite
def students(draw) -> dict:
    """The default with one student of a drawn config."""
    sizes = {"layers": [1, 3, 4, 5], "width": [63, 128], "heads": [5, 8], "dropout": [0.1, 1.0]}
    shape = {key: draw(mostly(ARCHITECTURE[key], st.sampled_from(sizes.get(key, [1])))) for key in ARCHITECTURE}
    if draw(st.integers(0, 4)) == 0:
        shape = {"kind": "bilstm", "embedding": 16} | shape
        shape.pop("heads")
    weights = mostly(1.0, st.sampled_from([0, 0.0, 2, 1e300, -1]))
    stage = {
        "losses": draw(st.dictionaries(mostly("hidden", st.sampled_from(LOSSES)), weights, min_size=1, max_size=4)),
        "temperature": draw(mostly(2.0, st.sampled_from([None, 0, 1e-300]))),
        "alpha": draw(mostly(0.25, st.sampled_from([0, 1, 1.5]))),
        "layer_map": draw(mostly(None, st.sampled_from(MAPS))),
    }
    start = draw(mostly("random", st.sampled_from([{}, {"teacher": "top"}, {"teacher": [1, 4]}, {"folder": "x"}, "x"])))
    student = {"architecture": shape, "init": start, "layer_map": draw(mostly("uniform", st.sampled_from(MAPS)))}
    student |= {"projection": "shared", "general": draw(st.sampled_from([stage, None])), "domain": stage}
    return default_tree({"students.lazy": student | {"prediction": stage}})


@given(students())
def test_a_students_parts_fit_together_or_are_refused(tree):
    params = read(tree)
    if params is not REFUSED:
        assert_meaningful(params)


# --- the text of the file ---------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n" for below, name in zip("abcdefghi", "bcdefghij", strict=True)
)
FRAGMENTS = [
    "a: 2001-99-99", "a: !!int x", "a: !!float x", "a: !!bool x", "a: !!python/object:os.system x",
    "a: !!binary '*'", "seed: " + "9" * 5000, "seed: 0x" + "f" * 5000, "a: 1\na: 2",
    "a\tb: c\n\t- d", "---\na: 1\n---\nb: 2",
    "&a {x: *a}", "&a [*a]", "a: *x", "<<: 3", "<<: {seed: 1}", "? [a]: b\n: c", "'a\\nb': 1", '"a\\nb": 1',
    '"[x]": 1', "[x]: 1",
    "null: 1\n1: 2\ntrue: 3\n.inf: 4", "seed: .nan", "seed: 1_0", "seed: 0o17", "x" * 5000 + ": 1", BOMB,
    BOMB + "seed: *j\nmasking: *j\nteacher: {source: *j, hub: *j}\ncorpus: {local: {files: *j}}",
    "a: " + "[" * 2000, "a: " + "{a: " * 500, "%YAML 9.0\n--- a", "seed: !!str 1", "!!set {a}",
    "!!omap [a: 1]", "\ufeffseed: 1",    "glue: {students: &s [a], tasks: *s}",
    "a: |\n  x\n y", "a: 'x", "a: @x", "a: `x", "- 1", "x", "",
]  # fmt: skip


def read_file(path: Path, content: bytes) -> Params | object:
    path.write_bytes(content)
    started = time.monotonic()
    params = outcome(lambda: named(lambda: load_params("params.yaml")), names="params.yaml: ")
    assert time.monotonic() - started < 20
    return params


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", FRAGMENTS)
def test_odd_yaml_is_refused_by_line(folder, text):
    assert read_file(folder / "params.yaml", text.encode()) is REFUSED


@given(
    st.sampled_from(FRAGMENTS).filter(lambda text: len(text) < 2000).flatmap(lambda text: damaged_bytes(text.encode()))
)
@example(b"\xff\xfea\x00")
@example("seed: é".encode("latin-1"))
def test_any_bytes_are_refused_by_line(folder, content):
    read_file(folder / "params.yaml", content)


def spots(text: bytes) -> list[int]:
    """The places behind each colon: where values begin."""
    return [found.end() for found in re.finditer(rb": ", text)]


@st.composite
def damaged_files(draw) -> bytes:
    """params.yaml with a fragment in the place of one value, or damaged as bytes are."""
    text = SHIPPED[0].read_bytes()
    if draw(st.booleans()):
        return draw(damaged_bytes(text))
    start = draw(st.sampled_from(spots(text)))
    fragment = draw(st.sampled_from(FRAGMENTS)).encode().split(b"\n")[0][:300]
    return text[:start] + fragment + text[text.index(b"\n", start) :]


@given(damaged_files())
def test_a_damaged_file_is_valid_or_refused_by_line(folder, content):
    params = read_file(folder / "params.yaml", content)
    if params is not REFUSED:
        assert_meaningful(params)
