"""Profiles: overlays that merge into params.yaml, and nothing else of it changes."""

import shutil
from pathlib import Path

import pytest

from tests.support.project import commit_all, run
from tests.support.root import ROOT
from tinybert.cli import main
from tinybert.config.fields import Architecture
from tinybert.config.load import (
    PROFILE_HEADER,
    check_params,
    load_params,
    merge,
    merged_profile,
    read_yaml,
)
from tinybert.config.students import check_students
from tinybert.pipeline.errors import UserError

NAMES = sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))


def leaves(tree, path=()) -> dict:
    """Every value that is no mapping, by its path."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {key: value for name, part in tree.items() for key, value in leaves(part, (*path, name)).items()}


def at(tree, path):
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


@pytest.mark.parametrize("name", NAMES)
def test_merged_profiles_are_valid(name):
    check_params(merged_profile(name, ROOT))


@pytest.mark.parametrize("name", NAMES)
def test_merged_profiles_differ_where_the_overlay_says(name):
    tree, merged = read_yaml(ROOT / "profiles" / f"{name}.yaml"), merged_profile(name, ROOT)
    parent = tree.pop("extends", None)
    default, overlay = merged_profile(parent, ROOT) if parent else read_yaml(ROOT / "params.yaml"), leaves(tree)
    assert {path: at(merged, path) for path in overlay} == overlay
    changed = {path for path, value in leaves(merged).items() if at(default, path) != value}
    assert all(any(path[: len(said)] == said for said in overlay) for path in changed)


def test_mappings_merge_and_all_else_replaces(tmp_path):
    default = {"a": {"b": 1, "c": [1, 2]}, "e": {"teacher": "top"}, "f": "random"}
    text = "a: {c: [3]}\ne: {folder: x}\nf: {teacher: top}\ng: {h: {i: 1}}"
    (tmp_path / "overlay.yaml").write_text(text)
    assert merge(default, read_yaml(tmp_path / "overlay.yaml")) == {
        "a": {"b": 1, "c": [3]},
        "e": {"teacher": "top", "folder": "x"},
        "f": {"teacher": "top"},
        "g": {"h": {"i": 1}},
    }
    assert default["a"] == {"b": 1, "c": [1, 2]}


def test_bert_large_fits_its_students():
    shape = Architecture(layers=24, width=1024, heads=16, feed_forward=4096, dropout=0.1)
    base, students = merged_profile("bert-base", ROOT), check_params(merged_profile("bert-large", ROOT)).students
    check_students(students, shape)
    with pytest.raises(UserError, match="has 12 heads, the teacher 16"):
        check_students(check_params(base).students, shape)


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A git repository with the default params.yaml and the profiles, as current folder."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    monkeypatch.chdir(tmp_path)
    commit_all(tmp_path)
    return tmp_path


def test_the_command_writes_the_merged_profile(project, capsys):
    expected = merged_profile("minilm")
    main(["profile", "minilm"])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("# MiniLM scale: ") and last == "next: make repro; for your own table, make init first"
    assert (project / "params.yaml").read_text().startswith(f"{PROFILE_HEADER}minilm ")
    assert read_yaml("params.yaml") == expected
    assert load_params() == check_params(expected)
    with pytest.raises(SystemExit, match=r"params\.yaml: already holds a profile \(got minilm\)"):
        main(["profile", "bert-base", "--force"])


def test_a_lock_without_outputs_is_removed(project):
    """DVC's experiments fail on the lock of a fresh clone, whose outputs are nowhere."""
    (project / "dvc.yaml").write_text("stages: {one: {cmd: cp params.yaml out, deps: [params.yaml], outs: [out]}}\n")
    for command in (["init", "--quiet"], ["repro", "--quiet"]):
        assert run(project, "dvc", *command).returncode == 0
    main(["profile", "minilm"])
    assert (project / "dvc.lock").is_file()
    shutil.rmtree(project / ".dvc/cache/files")
    shutil.copy(ROOT / "params.yaml", project)
    main(["profile", "minilm", "--force"])
    assert not (project / "dvc.lock").exists()


def test_uncommitted_changes_need_force(project):
    changed = (project / "params.yaml").read_text().replace("seed: 42", "seed: 42 ")
    (project / "params.yaml").write_text(changed)
    with pytest.raises(SystemExit, match=r"params\.yaml: has uncommitted changes; fix: git checkout params\.yaml"):
        main(["profile", "minilm"])
    assert (project / "params.yaml").read_text() == changed
    main(["profile", "minilm", "--force"])
    assert load_params().precision == "bfloat16"


def test_an_invalid_overlay_changes_nothing(project):
    (project / "profiles" / "wrong.yaml").write_text("masking: {rate: 2}\n")
    before = (project / "params.yaml").read_text()
    with pytest.raises(SystemExit, match=r"profiles/wrong\.yaml: masking\.rate: should be less than or equal to 1"):
        main(["profile", "wrong"])
    assert (project / "params.yaml").read_text() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "profiles/wrong.yaml: must be a mapping of keys to values"),
        ("- 1", "profiles/wrong.yaml: must be a mapping of keys to values"),
        (
            "extends: none",
            "profiles/wrong.yaml: extends: there is no profiles/none.yaml (got none); allowed: bert-base",
        ),
        ("extends: [minilm]", "profiles/wrong.yaml: extends: there is no profiles/['minilm'].yaml"),
        ("extends: ''", "profiles/wrong.yaml: extends: there is no profiles/.yaml"),
        ("extends: wrong", "profiles/wrong.yaml: extends: wrong already extends this profile"),
    ],
)
def test_a_profile_extends_another_one(project, text, message):
    (project / "profiles/wrong.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        merged_profile("wrong")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_an_unknown_profile_is_named(project):
    with pytest.raises(UserError, match=r"got none\); allowed: bert-base, bert-large, minilm, sizes"):
        merged_profile("none")
