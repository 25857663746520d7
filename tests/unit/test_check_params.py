"""The script check_params, without the sources that it checks."""

import pytest

from stages import check_params
from tests.support.report_tree import small_params
from tinybert.config.students import training_of
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_json


@pytest.fixture
def without_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tinybert.estimate.estimate", lambda params, rows: ["time: 1 s"])
    monkeypatch.setattr("tinybert.source_checks.check_sources", lambda params: {})


def test_the_control_is_told_how_the_phases_train(without_sources, monkeypatch):
    params = small_params()
    name, task = params.tasks.students[0], params.tasks.run[0]
    student, own = params.students[name], params.tasks[task].prediction.model_copy(update={"epochs": 77})
    phase = student.prediction.model_copy(update={"training": own})
    for changes in ({"prediction": phase}, {"intermediate": None}):
        students = params.students | {name: student.model_copy(update=changes)}
        changed = params.model_copy(update={"students": students})
        monkeypatch.setattr(check_params, "load_params", lambda found=changed: found)
        check_params.main()
        phases = ("intermediate", "prediction") if "prediction" in changes else ("prediction",)
        expected = [training_of(changed, name, one, task=task).model_dump() for one in phases]
        assert read_json(paths.trainings(task, name)) == expected
        assert (expected[-1]["epochs"] == 77) == ("prediction" in changes)


@pytest.mark.parametrize(("source", "reads_text"), [("local", True), ("local", False), ("synthetic", True)])
def test_synthetic_text_for_a_real_teacher_is_warned_of(without_sources, monkeypatch, capsys, source, reads_text):
    params = small_params()
    encoder, students = ("pretrained", params.students) if reads_text else ("given", {})
    params = params.model_copy(
        update={
            "students": students,
            "general": params.general.model_copy(update={"students": tuple(students)}),
            "domain": params.domain.model_copy(update={"students": ()}),
            "teacher": params.teacher.model_copy(update={"source": source}),
            "tasks": params.tasks.model_copy(update={"teacher_encoder": encoder, "run": ()}),
        }
    )
    assert params.reads_text == reads_text and params.corpus.source == "synthetic"
    monkeypatch.setattr(check_params, "load_params", lambda: params)
    check_params.main()
    warning = "warning: corpus.source: synthetic, but a model trains on text; fix: set corpus.source to local or hub;"
    printed = capsys.readouterr().out
    assert printed.startswith("time: 1 s\n") and (warning in printed) == (source == "local" and reads_text)
