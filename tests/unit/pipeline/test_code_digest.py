"""What reruns a stage: a changed line of code that it imports, and nothing else."""

import shutil

import pytest

from tests.support.root import ROOT
from tinybert.pipeline import code_digest

STAGES = sorted(path.stem for path in (ROOT / "stages").glob("[a-z]*.py"))


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of stages/ and src/ that a test may edit."""
    for name in ("stages", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_digest, "PACKAGE", tmp_path / "src/tinybert")
    monkeypatch.setattr(code_digest, "STAGES", tmp_path / "stages")
    return tmp_path


def digests():
    return {stage: code_digest.code_digest(stage) for stage in STAGES}


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_words_rerun_nothing(tree):
    before = digests()
    losses = tree / "src/tinybert/distill/losses.py"
    losses.write_text(losses.read_text().replace('"""', '"""Reworded. ', 1) + "\n# a comment\n")
    edit(tree / "src/tinybert/pipeline/hub.py", "raise UserError(", "raise UserError('reworded' + ")
    edit(tree / "src/tinybert/pipeline/tracking.py", "\nclass ", "\nNEW = 1\n\n\nclass ")
    assert digests() == before


def test_a_changed_loss_reruns_the_stages_that_import_it(tree):
    before = digests()
    edit(tree / "src/tinybert/distill/losses.py", "temperature**2", "temperature**3")
    changed = {stage for stage, digest in digests().items() if digest != before[stage]}
    expected = {"prepare_teacher", "general_distill", "domain_distill", "finetune_teacher", "finetune_student", "prune"}
    assert changed == expected | {"task_distill_intermediate", "task_distill_prediction"}


def test_a_changed_card_reruns_what_shows_it(tree):
    before = digests()
    edit(tree / "src/tinybert/report/model_card.py", "\ndef ", "\nNEW = 1\n\n\ndef ")
    changed = {stage for stage, digest in digests().items() if digest != before[stage]}
    assert changed and changed <= {"package"}


def test_what_reports_alone_read_reruns_no_training(tree):
    before = digests()
    edit(tree / "src/tinybert/report/rendering.py", "\ndef ", "\nNEW = 1\n\n\ndef ")
    changed = {stage for stage, digest in digests().items() if digest != before[stage]}
    assert changed == {"package", "report"}


def test_data_files_count_with_the_modules_beside_them(tree):
    before = digests()
    data = next((tree / "src/tinybert/synthetic").glob("*.yaml"))
    data.write_text(data.read_text() + "\n")
    changed = {stage for stage, digest in digests().items() if digest != before[stage]}
    assert "prepare_corpus" in changed
    assert "prune" not in changed


def test_imports_inside_functions_count(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def f():\n    from tinybert.pipeline import files\n")
    assert [path.name for path in code_digest.imported_modules(script)] == ["files.py"]
