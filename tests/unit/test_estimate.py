"""The estimate of a run: steps, tokens, time, disk and memory."""

import json
import math

import pytest

from tests.support.families import save_family
from tests.support.project import TASK, default_tree, set_key, tiny_params
from tests.support.root import ROOT
from tinybert import estimate
from tinybert.config.load import check_params, merged_profile
from tinybert.config.schema import Params
from tinybert.data.corpus import documents as corpus_documents
from tinybert.estimate import Sizes, Work, duration, measured_machine
from tinybert.source_checks import check_rows

PHASES = ("teacher", "intermediate", "prediction", "pruning")
DOCUMENTS: dict[tuple, list[dict]] = {}
FAST = 7.5e10  # per thread: half a layer, about 3/4 of a product's 100 GFLOP/s in the log of 2026-11-23


def rows_of(params: Params) -> dict:
    """The training rows of tasks that are not on the Hub."""
    here = params.tasks.run if params.tasks.source != "hub" else ()
    return {task: check_rows(params, task) for task in here}


def sizes_of(params: Params) -> Sizes:
    return Sizes(params, rows_of(params))


@pytest.fixture(autouse=True)
def cached_documents(monkeypatch):
    """Equal synthetic corpora are generated once: that takes half a second, and most tests change other params."""

    def documents(corpus, *, seed: int) -> list[dict]:
        key = (corpus.model_dump_json(), seed)
        if key not in DOCUMENTS:
            DOCUMENTS[key] = list(corpus_documents(corpus, seed=seed))
        return DOCUMENTS[key]

    monkeypatch.setattr(estimate, "documents", documents)


@pytest.fixture
def default(monkeypatch):
    monkeypatch.setattr(estimate, "measured_machine", lambda *_: ("a machine", 2 * FAST, 4e-9))
    return check_params(default_tree())


def test_the_default_takes_the_time_that_was_measured(default):
    """Steps and tokens of docs/log.md, entry "estimate of a run", on its rows; seconds within a factor of two."""
    tree = default_tree({"tasks.synthetic.train_examples": 1500})
    tree["tasks"]["cola"]["teacher"]["epochs"] = tree["tasks"]["cola"]["prediction"]["epochs"] = 6
    default = check_params(tree)
    works = sizes_of(default).works()
    found = {stage: Work.sum(stage_works) for stage, stage_works in works.items()}
    assert found["prepare_teacher"].tokens == pytest.approx(9 * 191_031, rel=0.2)
    assert found["finetune_teacher"].steps == 6 * 47
    assert found["task_distill_prediction"].steps == pytest.approx(3 * 6 * math.ceil(2771 / 32), rel=0.1)
    measured = {
        "prepare_teacher": 103,
        "general_distill": 39,
        "domain_distill": 72,
        "finetune_teacher": 9,
        "task_distill_intermediate": 17,
        "task_distill_prediction": 22,
        "finetune_student": 20,
        "prune": 5,
    }
    lines = list(estimate.estimate(default, rows_of(default)))
    for stage, seconds in measured.items():
        (line,) = [line for line in lines if line.startswith(stage)]
        number, unit = line.split()[-2:]
        shown = float(number) * {"s": 1, "min": 60}[unit]
        assert seconds / 2 < shown < 2 * seconds, line


def test_what_a_download_decides_is_unknown(default):
    params = check_params(merged_profile("bert-base", ROOT))
    lines = list(estimate.estimate(params, rows_of(params)))
    (line,) = [line for line in lines if line.startswith("general_distill")]
    assert line.split() == ["general_distill", "4", "?", "?", "?"]
    assert lines[-2].endswith("at least; ?: unknown until downloaded")
    assert "models unknown until downloaded" in lines[-1] and "memory: unknown until downloaded" in lines[-1]


def test_skipped_training_is_not_listed(default, tmp_path):
    tree = tiny_params()
    (tmp_path / "config.json").write_text('{"hidden_size": 24}')
    tree["tasks"]["cola"] = TASK | {"augmented_copies": 0, "finetuned_teacher": {"folder": str(tmp_path)}}
    params = check_params(tree)
    stages = [line.split()[0] for line in estimate.estimate(params, rows_of(params))]
    assert "finetune_teacher" not in stages and "augment" not in stages and "prune" in stages


def test_limits_of_steps_and_of_documents_count(default):
    tree = tiny_params()
    sizes = sizes_of(check_params(tree))
    assert sizes.works()["prepare_teacher"][0].steps == 4
    assert sizes.works()["general_distill"][2] == Work()  # a BiLSTM learns from task rows only
    tree["corpus"]["max_documents"] = 50
    assert sizes_of(check_params(tree)).text.count == pytest.approx(sizes.text.count / 2, rel=0.2)


def test_long_local_text_is_extrapolated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"title": "", "text": "a word " * 100}) + "\n" for _ in range(400)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    tree = tiny_params()
    tree["corpus"] |= {"source": "local", "max_documents": None, "local": {"files": ["a.jsonl"]}}
    tree["tokenize"] = {"sequence_tokens": 66, "packing": "pack"}
    whole = sizes_of(check_params(tree)).text
    assert whole.count == pytest.approx(0.9 * 400 * math.ceil(200 * 1.3 / 64))
    monkeypatch.setattr(estimate, "SEEN_BYTES", 50_000)
    assert sizes_of(check_params(tree)).text.count == pytest.approx(whole.count, rel=0.05)
    tree["corpus"]["max_documents"] = 100
    assert sizes_of(check_params(tree)).text.count == pytest.approx(whole.count / 4, rel=0.05)


def test_max_documents_counts_paragraphs_as_documents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    article = json.dumps({"title": "", "text": "\n".join(["a word"] * 10)}) + "\n"
    (tmp_path / "a.jsonl").write_text(article * 40)
    tree = tiny_params()
    tree["corpus"] |= {"source": "local", "unit": "paragraph", "local": {"files": ["a.jsonl"]}}
    for limit, expected in ((None, 400), (100, 100)):
        tree["corpus"]["max_documents"] = limit
        assert sizes_of(check_params(tree)).text.count == pytest.approx(0.9 * expected)


def test_rows_of_a_table_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("text,label\n" + "".join(f"one two {n},{n % 2}\n" for n in range(30)))
    tree = tiny_params()
    data = {"train": "own.csv", "dev": "own.csv", "texts": ["text"], "label": "label"}
    tree["tasks"] |= {"run": ["mine"], "mine": TASK | {"data": data}}
    sizes = sizes_of(check_params(tree))
    assert (sizes.rows["mine"].count, sizes.rows["mine"].tokens) == (30, pytest.approx(3 * 1.3 + 2))
    (tmp_path / "more.csv").write_text("text\n" + "".join(f"new {n}\n" for n in range(320)))
    data["unlabeled"] = "more.csv"
    tree["tasks"]["mine"]["prediction"] = TASK["prediction"] | {"max_steps": None}
    works = sizes_of(check_params(tree)).works()
    # Two epochs in batches of 32: 27 labeled rows with a copy each, and 320 unlabeled ones.
    assert works["task_distill_prediction"][0].steps == 2 * 12
    assert works["finetune_teacher"][0].steps == works["prune"][0].steps == 4


def with_changes(section: str, **changes) -> Sizes:
    """The sizes of the tiny params with another section of one training."""
    tree = tiny_params()
    for name, value in changes.items():
        set_key(tree, f"{section}.{name}", value)
    return sizes_of(check_params(tree))


@pytest.mark.parametrize(
    "section",
    ["teacher.pretraining", "general.training", "domain.training", *(f"tasks.cola.{phase}" for phase in PHASES)],
)
def test_memory_is_that_of_the_largest_training(default, section):
    """A larger batch of any training counts, split into micro-batches if it is; a training of 0 epochs does not."""
    usual, large = sizes_of(check_params(tiny_params())).memory_bytes(), {"batch_size": 4096}
    assert with_changes(section, **large).memory_bytes() > 1.2 * usual
    split = with_changes(section, **large, accumulation_steps=2).memory_bytes()
    assert split == with_changes(section, batch_size=2048).memory_bytes() > usual
    if section == "tasks.cola.intermediate":
        assert with_changes(section, **large, epochs=0).memory_bytes() <= usual


def test_memory_grows_with_the_limit_of_rows(default):
    short, long = (with_changes("tasks.cola", max_length_tokens=limit).memory_bytes() for limit in (32, 512))
    assert short < long


def test_the_teacher_runs_in_one_epoch_of_one_seed(default):
    """It reads 72 rows once, of 12 steps of 32 rows, for one of 2 seeds; phase 2 and the control do not need it."""
    sizes = with_changes("tasks.cola.intermediate", epochs=4, max_steps=None)
    student, teacher = 6 * sizes.students["tinybert4"].matrices, 2 * sizes.teachers["cola"].matrices

    def per_token(sizes, stage) -> float:
        return (work := sizes.works()[stage][0]).flops / work.tokens

    assert per_token(sizes, "task_distill_intermediate") == pytest.approx(student + teacher * 72 / (12 * 32) / 2)
    assert per_token(sizes, "task_distill_prediction") == per_token(sizes, "finetune_student") == pytest.approx(student)
    no_phase_1 = with_changes("tasks.cola.intermediate", epochs=0)
    assert per_token(no_phase_1, "task_distill_prediction") > student
    no_cache = with_changes("tasks", teacher_cache_gb=0)
    assert per_token(no_cache, "task_distill_intermediate") == pytest.approx(student + teacher)


def test_a_teacher_of_unknown_size_makes_memory_unknown(default, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    tree = tiny_params()
    tree["tasks"]["cola"] = TASK | {"finetuned_teacher": {"folder": str(tmp_path)}}
    assert math.isnan(sizes_of(check_params(tree)).memory_bytes())


def test_memory_and_disk_grow_with_the_models(default):
    small, large = sizes_of(check_params(tiny_params())), sizes_of(default)
    assert 5e8 < small.memory_bytes() < large.memory_bytes() < 1e9  # measured: 0.78 GB
    assert small.disk_bytes() < large.disk_bytes() < 3e8


@pytest.mark.parametrize("family", ["distilbert", "gpt2", "t5", "roberta"])
def test_a_task_teacher_of_another_family_has_its_own_size(default, tmp_path, family):
    """Its layers and width; it reads 72 rows for one of two seeds, of 4 steps of 32."""
    save_family(family, tmp_path, ("unacceptable", "acceptable"))
    tree = tiny_params()
    own = sizes_of(check_params(tree))
    tree["tasks"]["cola"] = TASK | {"finetuned_teacher": {"folder": str(tmp_path)}}
    found = sizes_of(check_params(tree))
    assert (found.teachers["cola"].shape.layers, found.teachers["cola"].shape.width) == (2, 16)
    assert own.teachers["cola"] == own.teacher == found.teacher != found.teachers["cola"]
    stage = "task_distill_intermediate"
    works = [Work.sum(sizes.works()[stage]) for sizes in (own, found)]
    students = 6 * own.students["tinybert4"].matrices
    teachers = [sizes.teachers["cola"].matrices for sizes in (own, found)]
    expected = [students + 2 * weights * 72 / (4 * 32) / 2 for weights in teachers]
    assert [work.flops / work.tokens for work in works] == pytest.approx(expected)


def test_a_teacher_of_which_predictions_are_known_costs_nothing(default):
    tree = tiny_params()
    files = {"train": "t.csv", "dev": "d.csv", "id": "id", "label": "label", "missing": "gold"}
    tree["tasks"]["cola"] = TASK | {"augmented_copies": 0, "finetuned_teacher": {"predictions": files}}
    tree["students"]["tinybert4"] |= {"intermediate": None, "prediction": {"losses": {"prediction": 1.0}}}
    tree["students"]["tinybert4"]["prediction"]["temperature"] = 1.0
    tree["tasks"]["students"] = ["tinybert4"]
    assert Sizes(check_params(tree), {}).teachers["cola"].weights == 0


def test_the_speed_is_measured(default):
    name, speed, _ = measured_machine(default.teacher.synthetic.architecture, "float32")
    assert speed > 1e8 and "CPU threads" in name


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.21, "3.2 s"), (89, "89 s"), (100, "1.7 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
