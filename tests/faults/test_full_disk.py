"""A full disk: one line that names the file, nothing half-written, what was there before stays."""

import contextlib
import errno
import os
import re
import subprocess
import tempfile

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from tests.support.builders import STUDENT, TEACHER, classifier
from tests.support.project import copy_project, run, tiny_params, write_params
from tests.unit.distill.test_loop import examples
from tinybert.cli import main
from tinybert.compress.onnx_files import export_onnx
from tinybert.data.sequences import sequences_writer
from tinybert.data.tokenizer import save_tokenizer, train_tokenizer
from tinybert.distill.loop import start_accelerator
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.distill.resume import Checkpoint
from tinybert.distill.teacher_cache import CachedTeacher, TeacherCache
from tinybert.models.model_folders import save_model
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_file, atomic_folder, report_disk_error, write_json, write_jsonl

ROOM = 2 * 4096  # bytes that are left on the full disk: two pages


def mounted(folder, size: str) -> None:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("a small disk cannot be mounted here")


@pytest.fixture
def disk(tmp_path):
    """A folder on a disk of its own, which `fill` fills but for two pages."""
    folder = tmp_path / "disk"
    try:
        mounted(folder, "1m")
    except FileNotFoundError:
        pytest.skip("no mount command here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk, room: int = ROOM) -> None:
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "others").write_bytes(bytes(free - room))


def content(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_text(path) -> None:
    with atomic_file(path) as handle:
        handle.write("text\n" * 10_000)


def write_bytes(path) -> None:
    with atomic_file(path, "wb") as handle:
        handle.write(bytes(50_000))


def write_model(path) -> None:
    with atomic_folder(path) as folder:
        save_model(classifier(TEACHER), folder)


def write_sequences(path) -> None:
    with atomic_folder(path) as folder, sequences_writer(folder, np.dtype(np.uint16)) as append:
        append(np.full(50_000, 7), np.full(5_000, 10))


def write_short_sequences(path) -> None:  # more bytes of offsets than of tokens
    with atomic_folder(path) as folder, sequences_writer(folder, np.dtype(np.uint16)) as append:
        append(np.full(1500, 7), np.ones(1500, dtype=np.int64))


def write_tokenizer(path) -> None:
    with atomic_folder(path) as folder:
        save_tokenizer(train_tokenizer([f"word{number}" for number in range(900)], vocabulary_size=1000), folder)


WRITERS = {
    "curve.csv": write_text,
    "int8.onnx": write_bytes,
    "metrics.json": lambda path: write_json(path, list(range(10_000))),
    "rows.jsonl": lambda path: write_jsonl(path, ({"row": row} for row in range(10_000))),
    "model": write_model,
    "blocks": write_sequences,
    "offsets": write_short_sequences,
    "tokenizer": write_tokenizer,
    "fp32.onnx": lambda path: export_onnx(classifier(TEACHER), path),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_writer_reports_a_full_disk_and_keeps_the_old_file(disk, name, is_first):
    path = disk / name
    if not is_first:
        WRITERS[name](path)
    fill(disk)
    before = content(disk)
    with pytest.raises(UserError) as raised:
        WRITERS[name](path)
    assert str(raised.value) == f"{path}: No space left on device; fix: free some space and run the command again"
    assert content(disk) == before
    assert list(disk.rglob("*.partial")) == []


def test_a_full_temporary_folder_is_named(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    fill(disk)
    with pytest.raises(
        UserError, match=rf"^{disk}[^:]*: No space left on device; fix: free some space and run the command again$"
    ):
        export_onnx(classifier(TEACHER), tmp_path / "fp32.onnx")
    assert not (tmp_path / "fp32.onnx").exists() and list(content(disk)) == ["others"]


@pytest.mark.parametrize("name", ["full", "missing"])
def test_a_training_continues_without_its_checkpoint(disk, capsys, name):
    checkpoint = Checkpoint(disk / "checkpoints", lambda: "run")
    if name == "full":
        checkpoint.save({"step": 1, "weight": torch.zeros(10)})
    fill(disk)
    before = content(disk)
    checkpoint.save({"step": 2, "weight": torch.zeros(50_000)})
    assert capsys.readouterr().err.count("checkpoint: not saved, training continues") == 1
    assert {name: left for name, left in content(disk).items() if not name.endswith(".lock")} == {
        name: left for name, left in before.items() if not name.endswith(".lock")
    }
    assert checkpoint.step == (1 if name == "full" else None)


def test_the_teacher_is_asked_live_if_its_outputs_do_not_fit(disk, capsys):
    fill(disk)
    loss = DistillationLoss(DistillationConfig({"hidden": 1.0}, layer_map="uniform"), STUDENT, TEACHER)
    cached = CachedTeacher(classifier(TEACHER), loss, examples(), TeacherCache(disk / "outputs", 10**8))
    cached.begin(start_accelerator("float32"))
    assert cached.files == []
    assert "teacher cache: training continues without it" in capsys.readouterr().err
    assert [name for name in content(disk) if name.endswith((".rows", ".partial"))] == []
    assert cached(cached.examples.batch([0, 1])).hidden


FAULTS = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    SafetensorError(f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)} (os error 28)"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_without_a_disk_to_fill(tmp_path, kind, fault):
    path = tmp_path / "output"
    path.write_text("old")
    with pytest.raises(UserError) as raised, (atomic_file if kind == "file" else atomic_folder)(path) as target:
        (target.write if kind == "file" else (target / "part").write_text)("half")
        raise fault
    assert str(raised.value).startswith(f"{path}: ") and str(raised.value).endswith(
        "; fix: free some space and run the command again"
    )
    assert {name: left.decode() for name, left in content(tmp_path).items()} == {"output": "old"}


def test_other_errors_and_reported_ones_are_not_changed(tmp_path):
    for error in (OSError(errno.EACCES, "no"), UserError("a: No space left on device"), ValueError("disk")):
        with pytest.raises(type(error)) as found, report_disk_error(tmp_path):
            raise error
        assert found.value is error


def test_a_forbidden_file_is_one_line(monkeypatch, capsys):
    def forbidden(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("pathlib.Path.is_file", forbidden)
    with pytest.raises(SystemExit) as ended:
        main(["init", "rows.csv", "--text", "text", "--label", "label"])
    assert str(ended.value) == "rows.csv: Permission denied; fix: change its permissions, or name another file"


def test_a_forbidden_output_is_named_not_its_temporary_file(tmp_path):
    with pytest.raises(UserError) as raised, atomic_file(tmp_path / "out.json") as handle:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), handle.name)
    assert str(raised.value).startswith(f"{tmp_path / 'out.json'}: Permission denied; fix: ")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = copy_project(tmp_path_factory.mktemp("project"))
    write_params(folder, tiny_params())
    return folder


def test_a_stage_reports_a_full_disk_and_runs_when_there_is_room(project):
    mounted(project / "data", "32k")
    try:
        full = run(project, "stages.prepare_corpus")
        assert full.returncode == 1
        line = r"prepare_corpus: data/corpus/general/(train|heldout)\.jsonl: No space left on device; .*"
        assert re.fullmatch(line, full.stderr.strip()), full.stderr
        assert content(project / "data") == {} and not (project / "reports/metrics").exists()
        subprocess.run(["mount", "-o", "remount,size=10m", project / "data"], check=True)
        store = {"MLFLOW_TRACKING_URI": f"sqlite:///{project}/data/full/mlflow.db"}
        with full_store(project / "data/full"):
            roomy = run(project, "stages.prepare_corpus", **store)
        assert roomy.returncode == 0
        assert roomy.stderr.count("tracking: continues without MLflow") == len(roomy.stderr.splitlines()) == 1
        assert (project / "data/corpus/general/train.jsonl").is_file()
    finally:
        subprocess.run(["umount", "--lazy", project / "data"], check=True)


def test_a_stage_reports_a_full_disk_that_a_library_finds(project):
    """Such as a library that writes elsewhere, to files that it does not name."""
    script = project / "stages/prepare_corpus.py"
    whole = script.read_text()
    script.write_text(whole.replace("    found =", "    raise OSError(28, 'No space left on device')\n    found ="))
    try:
        found = run(project, "stages.prepare_corpus", TMPDIR="/tmp")
    finally:
        script.write_text(whole)
    place = f"a disk that the stage writes to, such as those of {project} and /tmp"
    message = f"prepare_corpus: {place}: No space left on device; fix: free some space and run the command again\n"
    assert (found.returncode, found.stderr) == (1, message)


@contextlib.contextmanager
def full_store(folder):
    """A disk without any room, for MLflow's database."""
    mounted(folder, "8k")
    fill(folder, room=0)
    yield
    subprocess.run(["umount", folder], check=True)
