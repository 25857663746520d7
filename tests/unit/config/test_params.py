"""params.yaml: accepted as shipped, and one line for each mistake."""

import copy

import pytest

from tests.support.project import default_tree, set_key
from tests.support.root import ROOT
from tinybert.config.load import StageParams, check_params, load_params, read_yaml
from tinybert.config.students import training_of
from tinybert.pipeline.errors import UserError

DEFAULT = default_tree({"students.attentive.init": "random"})  # so that the checks of its losses are reached
HUB = {"model": "someone/bert", "revision": "abc123"}
TRAINING = {"epochs": 7, "max_steps": None, "batch_size": 4, "learning_rate": 0.1}
WITHOUT_PHASE_1 = {key: value for key, value in DEFAULT["students"]["tinybert4"].items() if key != "intermediate"}


def changed(path: str, value):
    return set_key(copy.deepcopy(DEFAULT), path, value)


def german(**changes) -> dict:
    """Valid params of another language: text, teacher and a task of one's own; no augmentation."""
    tree = copy.deepcopy(DEFAULT)
    data = {"train": "local/reviews.csv", "texts": ["text"], "label": "label"}
    tree |= {"language": "de"}
    for section in ("corpus", "teacher"):
        tree[section]["source"] = "local"
    tree["tasks"] |= {"run": ["reviews"], "reviews": tree["tasks"]["cola"] | {"data": data, "augmented_copies": 0}}
    tree["domain_evaluation"]["quiz"]["source"] = "local"
    for key, value in changes.items():
        set_key(tree, key.replace("__", "."), value)
    return tree


COPIES = {"tasks__reviews__augmented_copies": 2}
# Students cut out of their task's teacher, which starts from the encoder as provided.
NO_TEXT = {"tasks__reviews__teacher__encoder": "given", "domain__students": [], "general__students": ["tinybert4"],
           "tasks__students": ["tinybert4"], "students__tinybert4__init": {"teacher": "uniform", "per_task": True},
           "students__tinybert4__general": None}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        COPIES | {"augmentation__substitution__stop_words": "off"},
        COPIES | {"augmentation__substitution__stop_words": "local/stop_words.txt"},
        COPIES | {"augmentation__strategy": "sampling", "augmentation__sampling__pos_tagger": "off"},
        {"language": "multilingual"},
        {"corpus__source": "synthetic"} | NO_TEXT,
    ],
)
def test_other_languages_are_accepted(changes):
    assert check_params(german(**changes)).language in ("de", "multilingual")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"language": "German"}, "language: no code (got German); allowed: two or three letters of ISO 639"),
        (
            {"corpus__source": "synthetic"},
            "corpus.source: synthetic texts are English (got language de); allowed: your own",
        ),
        (
            NO_TEXT | {"corpus__source": "synthetic", "tasks__reviews__teacher__encoder": "pretrained"},
            "corpus.source: synthetic texts are English (got language de); allowed: your own",
        ),
        ({"tasks__run": ["cola"]}, "tasks.source: synthetic texts are English (got language de)"),
        (
            {"domain_evaluation__quiz__source": "synthetic"},
            "domain_evaluation.quiz.source: synthetic texts are English",
        ),
        (COPIES, "augmentation.substitution.stop_words: english is for English (got language de); allowed: off, or"),
        (
            COPIES | {"augmentation__strategy": "sampling"},
            "augmentation.sampling.pos_tagger: rules is for English (got language de); allowed: off, which",
        ),
    ],
)
def test_what_a_language_lacks_is_one_line(changes, line):
    with pytest.raises(UserError) as refused:
        check_params(german(**changes))
    assert str(refused.value).startswith(f"params.yaml: {line}") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["../../x", "/x", "a/b", ".", "x y", "x;y", "$(x)", "`x`", "x\n", "-x", "X", "é", "", "x" * 65]
)
@pytest.mark.parametrize("key", ["general.students", "domain.students", "tasks.students", "tasks.run", "students"])
def test_names_that_are_unsafe_in_paths_or_commands_are_rejected(key, name):
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
        ("sed", 1, "sed: unknown key; fix: check its spelling, or remove it"),
        ("students.lazy.domain.loses", {}, "students.lazy.domain.loses: unknown key"),
        ("seed", "x", "seed: should be a valid integer (got 'x')"),
        ("seed", True, "seed: should be a valid integer (got True)"),
        ("seed", 1.5, "seed: should be a valid integer (got 1.5)"),
        ("optimizer.weight_decay", "0.1", "optimizer.weight_decay: should be a valid number (got '0.1')"),
        ("optimizer.weight_decay", float("nan"), "optimizer.weight_decay: should be a finite number (got nan)"),
        ("general.training.learning_rate", 0, "general.training.learning_rate: should be greater than 0 (got 0)"),
        (
            "students.lazy.domain.losses.attention",
            -1.0,
            "students.lazy.domain.losses.attention: should be greater than or equal to 0 (got -1.0)",
        ),
        (
            "students.lazy.domain.losses",
            {"hard": 0},
            "students.lazy.domain.losses: every λ is 0; fix: set at least one above 0",
        ),
        (
            "students.lazy.domain.losses.atention",
            1.0,
            "losses.atention: is not a loss; allowed: hard, prediction, logit_mse, attention",
        ),
        (
            "students.lazy.domain.temperature",
            None,
            "students.lazy.domain.temperature: missing; the prediction loss needs one, such as 2.0",
        ),
        (
            "tasks.cola.teacher.epochs",
            0,
            "tasks.cola.teacher.epochs: got 0; fix: set it to 1 or more, or name a finetuned_teacher",
        ),
        ("quantization.max_score_drop", 1.5, "quantization.max_score_drop: should be less than or equal to 1"),
        (
            "students.lazy.layer_map",
            "upper",
            "students.lazy.layer_map: must be uniform, top, bottom, mean, random, or a list",
        ),
        (
            "students.lazy.layer_map",
            [0, 1, 2],
            "students.lazy.layer_map: must be uniform, top, bottom, mean, random, or a list",
        ),
        (
            "students.lazy.layer_map",
            [1, 2, 3],
            "students.lazy.layer_map: must list 2 teacher layers, one a student layer (got 3)",
        ),
        (
            "students.lazy.architecture.heads",
            5,
            "students.lazy.architecture.heads: must divide width (got 5 and 64); fix: change one of them",
        ),
        (
            "students.Lazy",
            {},
            "students.Lazy: must be lower-case letters, digits and _, beginning with a letter (got 'Lazy')",
        ),
        ("tasks.run", ["cola", "qqp"], "tasks.run: qqp has no section; fix: add tasks.qqp, or take it off the list"),
        ("tasks.run", ["cola", "cola"], "tasks.run: cola is listed twice; fix: list it once"),
        ("tasks.run", "cola", "tasks.run: must be a list (got 'cola')"),
        ("tasks.run", [], "tasks.run: Value should have at least 1 item after validation, not 0 (got [])"),
        (
            "tasks.students",
            ["nobody"],
            "tasks.students: not among general.students (got nobody); allowed: lazy, attentive",
        ),
        (
            "students.tinybert4",
            WITHOUT_PHASE_1,
            "students.tinybert4.intermediate: missing; fix: add it, or null to skip that phase",
        ),
        (
            "students.lazy.layer_map",
            "learnable",
            "a learnable map is {learnable: {learning_rate: 1.0e-3, init: equal}} (got 'learnable')",
        ),
        (
            "students.lazy.layer_map",
            {"learnable": {"learning_rate": 0.1, "init": "x"}},
            "students.lazy.layer_map.learnable.init: should be 'equal' or 'last' (got 'x')",
        ),
        (
            "students.lazy.init",
            "local/x",
            "students.lazy.init: must be random, {teacher: uniform | top | bottom | [layers]}, {folder:",
        ),
        ("students.lazy.init", {"teacher": [1, 9]}, "students.lazy.init.teacher: 9 is beyond the teacher's layers"),
        (
            "students.lazy.init",
            {"teacher": [1]},
            "students.lazy.init.teacher: must list 2 teacher layers, one a student layer (got 1)",
        ),
        ("students.lazy.init", {"teacher": [1, 2], "folder": "x"}, "teacher and folder are both given"),
        (
            "students.lazy.init",
            {"folder": "x", "hub": HUB},
            "students.lazy.init: folder and hub are both given; fix: keep one of them",
        ),
        ("students.lazy.init", {"hub": {"model": "x/y"}}, "students.lazy.init.hub.revision: missing; fix: add it "),
        ("students.bilstm.init", {"hub": HUB}, "init.hub: a BiLSTM starts at random or"),
        ("students.lazy.init", {"per_task": True}, "per_task: no layers to start from; fix: set teacher"),
        (
            "students.tinybert4.init",
            {"teacher": "uniform", "per_task": True},
            "init.per_task: each task has its own start, without general or domain distillation; fix: set general",
        ),
        (
            "students.attentive.domain.layer_map",
            [1, 2, 3],
            "students.attentive.domain.layer_map: must list 2 teacher layers, one a student layer (got 3)",
        ),
        (
            "students.attentive.domain.layer_map",
            [1, 9],
            "students.attentive.domain.layer_map: 9 is beyond the teacher's layers",
        ),
        (
            "students.attentive.domain.layer_map",
            "upper",
            "students.attentive.domain.layer_map: must be uniform, top, bottom, mean, random, or a list",
        ),
        (
            "students.lazy.general.layer_map",
            "top",
            "students.lazy.general.layer_map: no loss of this stage reads it; fix: remove it, or add on",
        ),
        (
            "students.lazy.general.training",
            {"epochs": 1},
            "students.lazy.general.training.max_steps: missing; fix: add it ",
        ),
        (
            "students.lazy.general.training",
            3,
            "students.lazy.general.training: must be a mapping of keys to values (got 3)",
        ),
        ("students.lazy.general.training", TRAINING | {"epoch": 1}, "general.training.epoch: unknown key"),
        ("tasks.cola.train_fraction", 0, "tasks.cola.train_fraction: should be greater than 0 (got 0)"),
        ("tasks.cola.train_fraction", 1.5, "tasks.cola.train_fraction: should be less than or equal to 1 (got 1.5)"),
        (
            "tasks.cola.finetuned_teacher",
            {"folder": "x", "hub": HUB},
            "tasks.cola.finetuned_teacher: must be {folder: path} or {hub: {model: name, revision: commit}}",
        ),
        ("tasks.cola.finetuned_teacher", {}, "tasks.cola.finetuned_teacher: must be {folder: path} or {hub"),
        (
            "tasks.cola.finetuned_teacher",
            "x",
            "tasks.cola.finetuned_teacher: must be a mapping of keys to values (got 'x')",
        ),
        ("tasks.cola.finetuned_teacher", {"hub": {}}, "tasks.cola.finetuned_teacher.hub.model: missing; fix: add it "),
        (
            "students.bilstm.prediction",
            {"losses": {"hidden": 1.0}},
            "prediction.losses.hidden: a BiLSTM has no layers to compare",
        ),
        ("students.bilstm.general", {"losses": {"hard": 1.0}}, "general: a BiLSTM has no masked-LM head"),
        ("students.bilstm.init", {"folder": "x"}, "init.folder: a BiLSTM starts at random or"),
        (
            "students.lazy.domain",
            {"losses": {"attention": 1.0}, "alpha": 1.0},
            "students.lazy.domain.alpha: no loss is left on (got 1.0); fix: change alpha, or add anothe",
        ),
        (
            "students.lazy.domain",
            {"losses": {"attention": 1.0}, "alpha": 1.5},
            "students.lazy.domain.alpha: should be less than or equal to 1 (got 1.5)",
        ),
        (
            "quantization.models",
            ["tinybert4_pruned30"],
            "quantization.models: not among the models of the tasks (got tinybert4_pruned30); allowed: teacher, tiny",
        ),
        (
            "teacher.pretraining.epochs",
            0,
            "teacher.pretraining.epochs: a synthetic teacher starts from scratch (got 0); allowed: 1 or more",
        ),
        ("masking.random_fraction", 0.5, "masking: mask_fraction + random_fraction must be at most 1 (got 1.3)"),
        (
            "filter.subjects",
            {},
            "filter.subjects: Dictionary should have at least 1 item after validation, not 0 (got {})",
        ),
        (
            "filter.subjects",
            {"a": [" "]},
            "filter.subjects.a.0: must be text without line breaks and control characters",
        ),
        ("general", 3, "general: must be a mapping of keys to values (got 3)"),
        ("students.attentive.layer_map", [1, 9], "students.attentive.layer_map: 9 is beyond the teacher's layers"),
        ("students.attentive.architecture.layers", 5, "attentive.layer_map: uniform cannot map 5 student layers to 4"),
        ("students.attentive.architecture.heads", 8, "students.attentive.general.losses.attention: the student has 8"),
        (
            "tasks.teacher_encoder",
            "given",
            "tasks.teacher_encoder: a synthetic teacher starts from scratch (got given)",
        ),
        (
            "tasks.cola.teacher.encoder",
            "given",
            "tasks.cola.teacher.encoder: a synthetic teacher starts from scratch (got given)",
        ),
        ("tasks.heldout_fraction", 0.9, "tasks.heldout_fraction: "),
        (
            "students.teacher",
            DEFAULT["students"]["lazy"],
            "students.teacher: the name is reserved; fix: rename this student",
        ),
        (
            "students.untrained",
            DEFAULT["students"]["lazy"],
            "students.untrained: the name is reserved; fix: rename this student",
        ),
        ("tasks.synthetic.train_examples", 9, "tasks.synthetic.train_examples: "),
        (
            "tasks.cola.pruning.epochs",
            0,
            "tasks.cola.pruning.epochs: sparsity rises while training goes on (got 0); allowed: 1 or more",
        ),
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
    ("student", "key", "value", "most"),
    [("tinybert4", "width", 256, 128), ("tinybert4", "feed_forward", 257, 256), ("bilstm", "embedding", 129, 128)],
)
def test_students_larger_than_the_teacher_are_refused(student, key, value, most):
    tree = changed(f"students.{student}.architecture.{key}", value)
    tree["students"][student]["init"] = {"teacher": "uniform"}
    tree["general"]["students"] = [*tree["general"]["students"], "bilstm"]
    with pytest.raises(UserError) as error:
        check_params(tree)
    line = f"{key}: larger than the teacher's, from which it is cut (got {value}); allowed: {most} or less"
    assert str(error.value).startswith(f"params.yaml: students.{student}.architecture.{line}")
    tree["students"][student]["init"] = "random"
    check_params(tree)


def test_keys_that_dvc_reads_must_be_there():
    tree = copy.deepcopy(DEFAULT)
    del tree["tasks"]["cola"]["train_fraction"], tree["seeds"]
    with pytest.raises(UserError) as refused:
        check_params(tree)
    assert [line.split(": ")[1:3] for line in str(refused.value).splitlines()] == [
        ["seeds", "missing; fix"],
        ["tasks.cola.train_fraction", "missing; fix"],
    ]


def test_a_map_that_all_stages_replace_need_not_fit_the_teacher():
    tree = changed("students.attentive.layer_map", [1, 9])
    for stage in ("general", "domain"):
        tree["students"]["attentive"][stage]["layer_map"] = "top"
    check_params(tree)


def test_training_of_a_student_replaces_that_of_track_or_task():
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
    with pytest.raises(UserError, match=r"the stage reads tasks\.mrpc, which its params do not declare"):
        training_of(view, "tinybert4", "intermediate", task="mrpc")


def test_only_a_phase_1_that_trains_can_prune():
    pruning = {"percent": 20, "ramp_fraction": 0.5, "increments": 6}
    tree = changed("students.tinybert4.intermediate.pruning", pruning)
    assert check_params(tree).students["tinybert4"].intermediate.pruning.increments == 6
    tree["tasks"]["cola"]["intermediate"] |= {"epochs": 0}
    with pytest.raises(
        UserError, match=r"students\.tinybert4\.intermediate\.pruning: cola has 0 epochs of phase 1; fix: raise its"
    ):
        check_params(tree)
    with pytest.raises(UserError, match=r"students\.tinybert4\.prediction\.pruning: only phase 1 prunes; fix: move"):
        check_params(changed("students.tinybert4.prediction.pruning", pruning))


def test_no_student_is_pruned_to_less_than_it_is():
    tree = changed("students.tinybert4.intermediate.pruning", {"percent": 60, "ramp_fraction": 0.5, "increments": 6})
    tree["pruning"]["sparsities_percent"] = [60, 80]
    check_params(tree)
    tree["pruning"]["sparsities_percent"] = [20, 60]
    with pytest.raises(UserError, match=r"sparsities_percent: below tinybert4's 60 in phase 1 \(got 20\)"):
        check_params(tree)


def test_seeds_contain_the_seed_once():
    check_params(changed("seeds", [43, 42]))
    for seeds, line in (([43], "seeds: must contain seed 42 \\(got 43\\)"), ([42, 42], "seeds: 42 is listed twice")):
        with pytest.raises(UserError, match=line):
            check_params(changed("seeds", seeds))


def test_students_have_the_stages_they_are_listed_for():
    tree = changed("tasks.students", ["lazy"])
    tree["quantization"]["models"] = ["teacher"]
    with pytest.raises(
        UserError, match=r"tasks\.students: lazy has no section students\.lazy\.prediction; fix: add it"
    ):
        check_params(tree)


@pytest.mark.parametrize(
    ("name", "model"), [("bilstm", "bilstm"), ("bilstm", "bilstm_pruned20"), ("small_pruned", "small_pruned")]
)
def test_a_bilstm_cannot_become_int8_as_published(name, model):
    tree = changed(f"students.{name}", DEFAULT["students"]["bilstm"])
    tree["tasks"]["students"] = [name]
    tree["general"]["students"] = [*tree["general"]["students"], name]
    tree["quantization"] |= {"models": ["teacher"], "method": "published"}
    check_params(tree)
    tree["quantization"]["models"] = [model]
    with pytest.raises(
        UserError, match=rf"quantization\.method: published supports BERT only \(got the BiLSTM {model}\)"
    ):
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


def test_scalars_are_read_as_in_yaml_1_2(tmp_path):
    values = {"5e-5": 5e-5, "1.0e-3": 1e-3, ".5": 0.5, "1.": 1.0, "010": 10, "0o17": 15, "0x1f": 31, "-3": -3}
    values |= {"true": True, "null": None, "~": None, "on": "on", "yes": "yes", "12:30": "12:30", ".inf": float("inf")}
    path = tmp_path / "values.yaml"
    path.write_text("".join(f"- {text}\n" for text in values))
    assert read_yaml(path) == list(values.values())
    assert [type(value) for value in read_yaml(path)] == [type(value) for value in values.values()]


def test_a_stage_sees_only_what_it_declares():
    params = load_params(ROOT / "params.yaml")
    view = StageParams(params, ["seed", "students.lazy.domain", "tasks.cola.teacher"])
    assert view.seed == params.seed
    assert view.students["lazy"].domain == params.students["lazy"].domain
    assert view.tasks["cola"].teacher.epochs == params.tasks.cola.teacher.epochs
    for read in (lambda: view.precision, lambda: view.students["lazy"].init, lambda: view.tasks.run):
        with pytest.raises(UserError, match="which its params do not declare"):
            read()
