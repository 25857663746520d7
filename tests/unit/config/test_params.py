"""params.yaml and the profiles: accepted as shipped, and one line for each mistake."""

import copy
from pathlib import Path

import pytest

from tinybert.config.load import StageParams, check_params, load_params, read_yaml
from tinybert.config.students import training_of
from tinybert.pipeline.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = [ROOT / "params.yaml", *sorted((ROOT / "profiles").glob("*.yaml"))]
DEFAULT = read_yaml(ROOT / "params.yaml")
HUB = {"model": "someone/bert", "revision": "abc123"}
TRAINING = {"epochs": 7, "max_steps": None, "batch_size": 4, "learning_rate": 0.1}
WITHOUT_PHASE_1 = {key: value for key, value in DEFAULT["students"]["tinybert4"].items() if key != "intermediate"}


def keys(tree, path=()):
    """All key paths of a tree but those below free names (students, tasks, subjects)."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict) and (*path, key) not in {("students",), ("filter", "subjects")}:
            yield from keys(value, (*path, key))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_are_valid_and_complete(path):
    load_params(path)
    tasks = {("glue", task) for task in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")}
    general = {key for key in keys(DEFAULT) if key[:2] not in tasks}
    assert {key for key in keys(read_yaml(path)) if key[:2] not in tasks} == general


def changed(path: str, value):
    tree = copy.deepcopy(DEFAULT)
    *parents, last = path.split(".")
    node = tree
    for key in parents:
        node = node[key]
    node[last] = value
    return tree


@pytest.mark.parametrize(
    "name", ["../../x", "/x", "a/b", ".", "x y", "x;y", "$(x)", "`x`", "x\n", "-x", "X", "é", "", "x" * 65]
)
@pytest.mark.parametrize("key", ["general.students", "domain.students", "tasks.students", "tasks.run", "students"])
def test_names_that_would_leave_their_place_in_paths_or_commands_are_refused(key, name):
    section, _, last = key.partition(".")
    tree = copy.deepcopy(DEFAULT)
    if last:
        tree[section][last] = [name]
    else:
        tree["students"][name] = tree["students"]["lazy"]
    with pytest.raises(UserError, match=f"params.yaml: {key}"):
        check_params(tree)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("sed", 1, "sed: unknown key; check its spelling, or remove it"),
        ("students.lazy.domain.loses", {}, "students.lazy.domain.loses: unknown key"),
        ("seed", "x", "seed: 'x' should be a valid integer"),
        ("seed", True, "seed: True should be a valid integer"),
        ("seed", 1.5, "seed: 1.5 should be a valid integer"),
        ("optimizer.weight_decay", "0.1", "optimizer.weight_decay: '0.1' should be a valid number"),
        ("optimizer.weight_decay", float("nan"), "optimizer.weight_decay: nan should be a finite number"),
        ("general.training.learning_rate", 0, "general.training.learning_rate: 0 should be greater than 0"),
        ("students.lazy.domain.losses.attention", -1.0, "domain.losses.attention: -1.0 should be greater"),
        ("students.lazy.domain.losses", {"hard": 0}, "students.lazy.domain: every λ of losses is 0"),
        (
            "students.lazy.domain.losses.atention",
            1.0,
            "'atention' should be 'hard', 'prediction', 'logits', 'attention'",
        ),
        ("students.lazy.domain.temperature", None, "students.lazy.domain: temperature is missing"),
        ("tasks.cola.teacher.epochs", 0, "tasks.cola: teacher.epochs is 0; give it at least 1, or name a finetuned_"),
        (
            "quantization.calibration.examples",
            1501,
            "quantization.calibration.examples is 1501, tasks.synthetic.train_examples 1500; lower the one or raise",
        ),
        (
            "students.lazy.layer_map",
            "upper",
            "students.lazy.layer_map: 'upper' must be uniform, top, bottom, mean, random or a list",
        ),
        (
            "students.lazy.layer_map",
            [0, 1, 2],
            "students.lazy.layer_map: [0, 1, 2] must be uniform, top, bottom, mean, random or",
        ),
        (
            "students.lazy.layer_map",
            [1, 2, 3],
            "layer_map lists 3 teacher layers; one for each of the 2 student layers",
        ),
        ("students.lazy.architecture.heads", 5, "width 64 is no multiple of 5 heads"),
        ("students.Lazy", {}, "students.Lazy: 'Lazy' must be lower-case letters"),
        ("tasks.run", ["cola", "qqp"], "glue: tasks lists qqp, which has no section; add tasks.qqp"),
        ("tasks.run", ["cola", "cola"], "tasks.run lists cola twice"),
        ("tasks.run", "cola", "tasks.run: 'cola' must be a list"),
        ("tasks.run", [], "tasks.run: [] Value should have at least 1 item"),
        ("tasks.students", ["nobody"], "tasks.students lists nobody, which is not among general.students: lazy, "),
        ("tasks.students", ["lazy"], "tasks.students lists lazy, which has no section students.lazy.prediction"),
        (
            "students.tinybert4",
            WITHOUT_PHASE_1,
            "does not say what students.tinybert4.intermediate is; add it, null where",
        ),
        (
            "students.lazy.layer_map",
            "learnable",
            "each student layer ({learnable: {learning_rate: 1.0e-3, init: equal}})",
        ),
        (
            "students.lazy.layer_map",
            {"learnable": {"learning_rate": 0.1, "init": "x"}},
            "lazy.layer_map.learnable.init: 'x'",
        ),
        ("students.lazy.init", "local/x", "'local/x' must be random, {teacher: uniform | top | bottom | [layers]}, "),
        ("students.lazy.init", {"teacher": [1, 9]}, "students.lazy.init.teacher: 9 is beyond the teacher's layers"),
        ("students.lazy.init", {"teacher": [1]}, "init.teacher lists 1 teacher layers; one for each of the 2"),
        ("students.lazy.init", {"teacher": [1, 2], "folder": "x"}, "teacher and folder are both given"),
        (
            "students.lazy.init",
            {"folder": "x", "hub": HUB},
            "students.lazy.init: folder and hub are both given; a student starts from one of them",
        ),
        ("students.lazy.init", {"hub": {"model": "x/y"}}, "students.lazy.init.hub.revision: missing; add it"),
        ("students.bilstm.init", {"hub": HUB}, "init.hub: a BiLSTM starts at random or"),
        ("students.attentive.domain.layer_map", [1, 2, 3], "domain.layer_map lists 3 teacher layers; one for each of"),
        (
            "students.attentive.domain.layer_map",
            [1, 9],
            "students.attentive.domain.layer_map: 9 is beyond the teacher's layers",
        ),
        (
            "students.attentive.domain.layer_map",
            "upper",
            "students.attentive.domain.layer_map: 'upper' must be uniform, top, bottom, mean, random or a list",
        ),
        (
            "students.lazy.general.layer_map",
            "top",
            "students.lazy.general: layer_map is read by no loss of this stage; remove it, or add",
        ),
        ("students.lazy.general.training", {"epochs": 1}, "students.lazy.general.training.max_steps: missing; add it"),
        ("students.lazy.general.training", 3, "students.lazy.general.training: 3 must be a mapping of keys to values"),
        ("students.lazy.general.training", TRAINING | {"epoch": 1}, "general.training.epoch: unknown key"),
        ("tasks.cola.train_fraction", 0, "tasks.cola.train_fraction: 0 should be greater than 0"),
        ("tasks.cola.train_fraction", 1.5, "tasks.cola.train_fraction: 1.5 should be less than or equal to 1"),
        (
            "tasks.cola.finetuned_teacher",
            {"folder": "x", "hub": HUB},
            "tasks.cola.finetuned_teacher: must be {folder: path} or {hub: {model: name, revision: commit}}",
        ),
        ("tasks.cola.finetuned_teacher", {}, "tasks.cola.finetuned_teacher: must be {folder: path} or {hub"),
        ("tasks.cola.finetuned_teacher", "x", "tasks.cola.finetuned_teacher: 'x' must be a mapping of keys to values"),
        ("tasks.cola.finetuned_teacher", {"hub": {}}, "tasks.cola.finetuned_teacher.hub.model: missing; add it"),
        (
            "students.bilstm.prediction",
            {"losses": {"hidden": 1.0}},
            "prediction.losses.hidden: a BiLSTM has no layers to compare",
        ),
        (
            "students.bilstm.general",
            {"losses": {"hard": 1.0}},
            "general: a BiLSTM has no masked-LM head",
        ),
        ("students.bilstm.init", {"folder": "x"}, "init.folder: a BiLSTM starts at random or"),
        ("students.lazy.domain", {"losses": {"value_relation": 1.0}}, "relation_heads is missing"),
        (
            "students.lazy.domain",
            {"losses": {"value_relation": 1.0}, "relation_heads": 5},
            "relation_heads 5 must divide the student's width 64 and the teacher's 128",
        ),
        ("students.lazy.domain", {"losses": {"attention": 1.0}, "alpha": 1.0}, "alpha 1.0 leaves no loss on"),
        ("students.lazy.domain", {"losses": {"attention": 1.0}, "alpha": 1.5}, "students.lazy.domain.alpha: 1.5"),
        ("quantization.models", ["tinybert4_pruned30"], "lists tinybert4_pruned30, which is not among the task models"),
        ("teacher.pretraining.epochs", 0, "teacher: pretraining.epochs is 0; an synthetic teacher"),
        ("masking.random_fraction", 0.5, "masking: mask_fraction + random_fraction is 1.3; at most 1 is allowed"),
        ("filter.subjects", {}, "filter.subjects: {} Dictionary should have at least 1 item"),
        ("general", 3, "general: 3 must be a mapping of keys to values"),
        ("students.attentive.layer_map", [1, 9], "students.attentive.layer_map: 9 is beyond the teacher's layers"),
        ("students.attentive.architecture.layers", 5, "attentive.layer_map: uniform cannot map 5 student layers to 4"),
        ("students.attentive.architecture.heads", 8, "students.attentive.general.losses.attention: the student has 8"),
        (
            "students.teacher",
            DEFAULT["students"]["lazy"],
            "students.teacher: teacher is the name of the teacher's model",
        ),
        ("tasks.cola.pruning.epochs", 0, "tasks.cola: pruning.epochs is 0; pruning needs at least 1"),
    ],
)
def test_each_mistake_has_one_line_with_its_key(path, value, line):
    with pytest.raises(UserError) as error:
        check_params(changed(path, value))
    assert line in str(error.value)
    assert [text for text in str(error.value).splitlines() if not text.startswith("params.yaml: ")] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("students.attentive.domain.layer_map", "top"),
        ("students.attentive.domain.layer_map", [2, 4]),
        ("students.attentive.domain.layer_map", {"learnable": {"learning_rate": 0.1, "init": "last"}}),
        ("students.attentive.domain.layer_map", None),
        ("students.attentive.domain.training", TRAINING | {"accumulation_steps": 2}),
        ("students.lazy.init", {"hub": HUB}),
        ("tasks.cola.train_fraction", 0.5),
        ("tasks.cola.train_fraction", 1),
        ("tasks.cola.finetuned_teacher", {"folder": "local/cola"}),
        ("tasks.cola.finetuned_teacher", {"hub": HUB}),
    ],
)
def test_optional_forms_are_accepted(path, value):
    check_params(changed(path, value))


@pytest.mark.parametrize(
    ("student", "key", "value", "line"),
    [
        ("tinybert4", "width", 256, "architecture.width is 256, the teacher has 128 to cut from"),
        ("tinybert4", "feed_forward", 257, "architecture.feed_forward is 257, the teacher has 256 to cut from"),
        ("bilstm", "embedding", 129, "architecture.embedding: 129 is above the width 128 of the teacher's embeddings"),
    ],
)
def test_a_start_that_the_teacher_is_too_small_for_is_refused(student, key, value, line):
    tree = changed(f"students.{student}.architecture.{key}", value)
    tree["students"][student]["init"] = {"teacher": "uniform"}
    tree["general"]["students"] = [*tree["general"]["students"], "bilstm"]
    with pytest.raises(UserError) as error:
        check_params(tree)
    assert str(error.value).startswith(f"params.yaml: students.{student}.")
    assert line in str(error.value)
    tree["students"][student]["init"] = "random"
    check_params(tree)


def test_keys_that_dvc_reads_must_be_there():
    tree = copy.deepcopy(DEFAULT)
    del tree["tasks"]["cola"]["train_fraction"], tree["tasks"]["further_seeds"]
    with pytest.raises(UserError) as refused:
        check_params(tree)
    assert [line.split(": ")[1:3] for line in str(refused.value).splitlines()] == [
        ["tasks.further_seeds", "missing; add it (params.yaml of the default shows its place)"],
        ["tasks.cola.train_fraction", "missing; add it (params.yaml of the default shows its place)"],
    ]


def test_a_map_of_every_stage_frees_the_students_own_of_the_teachers_depth():
    tree = changed("students.attentive.layer_map", [1, 9])
    for stage in ("general", "domain"):
        tree["students"]["attentive"][stage]["layer_map"] = "top"
    check_params(tree)


def test_training_is_the_recipes_own_else_the_tracks_or_the_tasks():
    tree = changed("students.attentive.domain.training", TRAINING)
    tree["students"]["tinybert4"]["prediction"]["training"] = TRAINING
    params = check_params(tree)
    assert training_of(params, "attentive", "domain").epochs == 7
    assert training_of(params, "lazy", "domain") == params.domain.training
    assert training_of(params, "pkd_skip", "general") == params.general.training  # a stage that it skips
    assert training_of(params, "tinybert4", "prediction", task="mrpc").batch_size == 4
    assert training_of(params, "tinybert4", "intermediate", task="mrpc") == params.tasks.mrpc.intermediate


def test_training_is_found_in_what_a_stage_declares():
    params = load_params(ROOT / "params.yaml")
    keys = ["students.lazy.domain", "domain.training", "students.tinybert4.intermediate", "tasks.cola.intermediate"]
    view = StageParams(params, keys)
    assert training_of(view, "lazy", "domain") == params.domain.training
    assert training_of(view, "tinybert4", "intermediate", task="cola") == params.tasks.cola.intermediate
    with pytest.raises(UserError, match=r"the stage reads glue\.mrpc, which its params do not declare"):
        training_of(view, "tinybert4", "intermediate", task="mrpc")


def test_a_missing_key_is_named():
    tree = copy.deepcopy(DEFAULT)
    del tree["masking"]["rate"]
    with pytest.raises(UserError, match=r"masking\.rate: missing"):
        check_params(tree)


def test_several_mistakes_have_a_line_each():
    tree = changed("seed", -1)
    tree["extra"] = 1
    with pytest.raises(UserError) as error:
        check_params(tree)
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "named"), [("a: [1", "no valid YAML"), ("a: 1\na: 2\n", "no valid YAML"), ("- 1", "must be a mapping")]
)
def test_files_that_are_no_mapping_are_refused(tmp_path, text, named):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=named):
        load_params(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_params(tmp_path / "none.yaml")


def test_exponents_are_numbers_as_in_dvc(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text().replace("weight_decay: 0.01", "weight_decay: 5e-05"))
    assert load_params(path).optimizer.weight_decay == 5e-5


def test_a_stage_sees_only_what_it_declares():
    params = load_params(ROOT / "params.yaml")
    view = StageParams(params, ["seed", "students.lazy.domain", "tasks.cola.teacher"])
    assert view.seed == params.seed
    assert view.students["lazy"].domain == params.students["lazy"].domain
    assert view.glue["cola"].teacher.epochs == params.tasks.cola.teacher.epochs
    for read in (lambda: view.precision, lambda: view.students["lazy"].init, lambda: view.tasks.run):
        with pytest.raises(UserError, match="which its params do not declare"):
            read()
