"""The script check_params, without the sources that it checks."""

import pytest

from stages import check_params
from tests.support.report_tree import small_params


@pytest.mark.parametrize(("source", "reads_text"), [("local", True), ("local", False), ("synthetic", True)])
def test_synthetic_text_for_a_real_teacher_is_warned_of(tmp_path, monkeypatch, capsys, source, reads_text):
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_params, "load_params", lambda: params)
    monkeypatch.setattr("tinybert.estimate.estimate", lambda params, rows: ["time: 1 s"])
    monkeypatch.setattr("tinybert.source_checks.check_sources", lambda params: {})
    check_params.main()
    warning = "warning: corpus.source: synthetic, but a model trains on text; fix: set corpus.source to local or hub;"
    printed = capsys.readouterr().out
    assert printed.startswith("time: 1 s\n") and (warning in printed) == (source == "local" and reads_text)
