"""Paths that params name: relative ones start at the project as the user has it, also in a queued experiment's copy."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.builders import masked_lm
from tinybert.augment.word_vectors import word_vectors
from tinybert.config.fields import ModelSource, source_folder
from tinybert.config.students import Init
from tinybert.config.tasks import TASKS
from tinybert.data.task_sources import read_splits
from tinybert.data.tokenizer import folder_tokenizer, save_tokenizer, train_tokenizer
from tinybert.evaluate.language_model import load_questions
from tinybert.models.initialization import start_teacher
from tinybert.models.model_folders import save_model
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_jsonl


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The copy that a queued experiment runs in, without `local`, which git does not know; the project is beside it."""
    project, copy = tmp_path / "project", tmp_path / "copy"
    (project / "local").mkdir(parents=True)
    copy.mkdir()
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(project))
    return project / "local"


def test_in_the_project_a_path_stays_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert paths.resolve("local/a") == Path("local/a")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert paths.resolve("local/a") == Path("local/a")


def test_relative_paths_in_a_copy_resolve_to_the_project(copy):
    assert paths.resolve("local/a") == copy / "a"
    assert paths.resolve("/elsewhere/a") == Path("/elsewhere/a")
    assert paths.checkpoints("prune", {"task": "cola"}) == copy.parent / ".checkpoints/prune/cola"


def test_a_copy_reads_task_rows_of_the_project(copy):
    (copy / "glue/RTE").mkdir(parents=True)
    for split in ("train", "dev"):
        text = "index\tsentence1\tsentence2\tlabel\n0\tFish swim.\tThey do.\tentailment\n"
        (copy / f"glue/RTE/{split}.tsv").write_text(text)
    settings = SimpleNamespace(local=SimpleNamespace(folder="local/glue"))
    rows = read_splits(TASKS["rte"], "local", settings=settings, seed=0)["dev"]
    assert [row["sentence2"] for row in rows] == ["They do."]


def test_a_copy_reads_models_and_tokenizer_of_the_project(copy):
    (copy / "model").mkdir()
    save_tokenizer(train_tokenizer(["fish swim"], vocabulary_size=40), copy / "model")
    save_model(masked_lm(), copy / "model")
    for source in (Init(folder="local/model"), ModelSource(folder="local/model")):
        assert source_folder(source, key="start") == copy / "model"
    local = SimpleNamespace(folder="local/model")
    teacher = SimpleNamespace(source="local", local=local, pretraining=SimpleNamespace(epochs=1))
    assert start_teacher(teacher, vocab_size=50, seed=0).parameter_count == masked_lm().parameter_count
    assert folder_tokenizer(paths.resolve(local.folder)).token_to_id("[MASK]") == 4


def test_a_copy_reads_quiz_and_word_vectors_of_the_project(copy):
    write_jsonl(copy / "quiz.jsonl", [{"subject": "biology", "prompt": "The fish can [MASK].", "answer": "swim"}])
    quiz = SimpleNamespace(source="local", local=SimpleNamespace(file="local/quiz.jsonl"))
    tokenizer = train_tokenizer(["fish swim swim swim"], vocabulary_size=60)
    questions, dropped = load_questions(quiz, tokenizer)
    assert ([question["answer"] for question in questions], dropped) == (["swim"], 0)
    (copy / "glove.txt").write_text("fish 1.0 0.0\nswim 0.5 0.5\n")
    found = word_vectors(SimpleNamespace(source="file", file="local/glove.txt"), "unused", seed=0)
    assert list(found.words) == ["fish", "swim"]


def test_absent_paths_are_reported_as_the_user_wrote_them(copy):
    with pytest.raises(UserError, match=r"^students\.a\.init\.folder: not a folder \(got 'local/model'\)"):
        source_folder(Init(folder="local/model"), key="students.a.init")
    quiz = SimpleNamespace(source="local", local=SimpleNamespace(file="local/quiz.jsonl"))
    with pytest.raises(UserError, match=r"^domain_evaluation\.quiz\.local\.file: \S*local/quiz\.jsonl does not exist"):
        load_questions(quiz, None)
