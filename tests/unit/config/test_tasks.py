"""The table of tasks against what the Hub and the papers say."""

from dataclasses import fields

import pytest

from tinybert.config.tasks import GLUE, TASKS, Task, read_task, write_task
from tinybert.data.task_sources import LAYOUTS, TsvLayout
from tinybert.pipeline.errors import UserError

# Label names by id as the Hub's nyu-mll/glue lists them.
HUB_LABELS = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "stsb": (),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
}


def test_all_nine_tasks_are_there_with_the_hubs_label_ids():
    assert {name: task.labels for name, task in TASKS.items()} == HUB_LABELS
    assert all(name == task.name for name, task in TASKS.items())


def test_each_task_of_glue_has_a_layout():
    assert tuple(TASKS) == tuple(LAYOUTS)


@pytest.mark.parametrize(("system", "average"), [("bert_base", 79.5), ("tinybert4", 77.0), ("tinybert6", 79.4)])
def test_published_scores_have_the_published_average(system, average):
    published = [item for task in TASKS.values() for item in task.published.items()]
    scores = [share for (name, _), shares in published if name == system for share in shares]
    assert len(scores) == 9  # eight tasks, MNLI twice, no WNLI
    assert 100 * sum(scores) / 9 == pytest.approx(average, abs=0.06)


def test_each_published_score_has_a_metric_of_the_task():
    for task in TASKS.values():
        assert {metric for _, metric in task.published} <= set(task.metrics)
        assert all(len(scores) == len(task.dev_splits) for scores in task.published.values())
    assert [name for name, task in TASKS.items() if not task.published] == ["wnli"]
    assert TASKS["mrpc"].published["tinybert4", "f1"] == (0.864,)


def test_spellings_and_columns_fit_the_labels():
    for task in TASKS.values():
        layout = LAYOUTS[task.name]
        assert len(layout.texts) == len(task.columns)
        assert task.is_regression or len(layout.spellings) == len(task.labels)


@pytest.mark.parametrize("name", TASKS)
def test_a_description_is_read_as_it_was_written(tmp_path, name):
    folder = tmp_path / "data/tasks" / name
    folder.mkdir(parents=True)
    write_task(TASKS[name], folder)
    assert read_task(name, tmp_path) == TASKS[name]


@pytest.mark.parametrize("text", [None, "", "{}", '{"name": 1}'])
def test_a_missing_or_damaged_description_is_one_line(tmp_path, text):
    if text is not None:
        (tmp_path / "data/tasks/x").mkdir(parents=True)
        (tmp_path / "data/tasks/x/task.json").write_text(text)
    wrong = "missing" if text is None else "damaged"
    with pytest.raises(UserError, match=rf"^data/tasks/x/task\.json: {wrong}; stage prepare_task writes it; fix: dvc"):
        read_task("x", tmp_path)


@pytest.mark.parametrize("name", GLUE)
def test_the_table_has_no_misspelled_key(name):
    assert GLUE[name].keys() <= {"task", "files", "published", "reproduced"}
    for part, kind in (("task", Task), ("files", TsvLayout)):
        assert GLUE[name][part].keys() <= {field.name for field in fields(kind)}
