"""The check of all local sources before a run."""

import json

import pytest

from stages import check_params as check_params_stage
from tests.support.hub_content import bert, classifier, write_model
from tests.support.project import TASK, tiny_params, write_params
from tinybert.config.load import check_params
from tinybert.models import outputs
from tinybert.pipeline.errors import UserError
from tinybert.source_checks import check_sources

BERT = {"layers": 2, "width": 24, "heads": 3, "feed_forward": 48, "dropout": 0.0}
QUIZ = {"subject": "city", "prompt": "The capital of France is [MASK] .", "answer": "paris"}


@pytest.fixture
def tree(tmp_path, monkeypatch) -> dict:
    """Params whose sources all are local and present, with the current folder as the project."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "local/teacher", bert("a/b", "0"))
    write_model(tmp_path / "local/ready", classifier("a/c", "0", ("unacceptable", "acceptable")))
    for name in ("wiki", "glue/CoLA"):
        (tmp_path / "local" / name).mkdir(parents=True)
    (tmp_path / "local/wiki/a.jsonl").write_text('{"title": "A", "text": "A text."}\n')
    (tmp_path / "local/wiki/b.txt").write_text(" = B = \nA text.\n")
    for split in ("train", "dev"):
        (tmp_path / f"local/glue/CoLA/{split}.tsv").write_text("x\t1\t\tA fine sentence.\n" * 16)
    (tmp_path / "local/quiz.jsonl").write_text(json.dumps(QUIZ) + "\n")
    (tmp_path / "local/glove.txt").write_text("the 0.1 0.2\nking 0.3 0.4\n")
    tree = tiny_params(heads=3)
    tree["teacher"] |= {"source": "local"}
    tree["corpus"] |= {"source": "local", "local": {"files": ["local/wiki/*.jsonl", "local/wiki/b.txt"]}}
    tree["domain_evaluation"]["quiz"]["source"] = "local"
    for student in tree["students"].values():
        student["architecture"] = student["architecture"] if "embedding" in student["architecture"] else BERT
    tree["students"]["little_professor"]["init"] = {"folder": "local/teacher"}
    tree["tasks"] |= {"source": "local", "cola": TASK | {"finetuned_teacher": {"folder": "local/ready"}}}
    tree["augmentation"]["substitution"]["word_vectors"]["source"] = "file"
    return tree


def mistakes(tree: dict) -> list[str]:
    with pytest.raises(UserError) as caught:
        check_sources(check_params(tree))
    return str(caught.value).splitlines()


def test_sources_that_are_all_here_pass(tree):
    check_sources(check_params(tree))


def test_all_that_is_missing_is_listed_in_one_go(tree, tmp_path):
    (tmp_path / "local").rename(tmp_path / "elsewhere")
    found = mistakes(tree)
    assert [line.split("; ")[0] for line in found] == [
        "corpus.local.files: 'local/wiki/*.jsonl' matches no file",
        "corpus.local.files: 'local/wiki/b.txt' matches no file",
        "tasks.local.folder: local/glue/CoLA/train.tsv does not exist",
        "tasks.local.folder: local/glue/CoLA/dev.tsv does not exist",
        "domain_evaluation.quiz.local.file: local/quiz.jsonl does not exist",
        "augmentation.substitution.word_vectors.file: local/glove.txt does not exist",
        "teacher.local.folder: not a folder (got 'local/teacher')",
        "tasks.cola.finetuned_teacher.folder: not a folder (got 'local/ready')",
        "students.little_professor.init.folder: not a folder (got 'local/teacher')",
    ]


def test_without_domain_students_no_quiz_is_read(tree, tmp_path):
    (tmp_path / "local/quiz.jsonl").unlink()
    tree["domain"]["students"] = []
    check_sources(check_params(tree))


def test_what_the_run_does_not_use_is_not_opened(tree, tmp_path):
    (tmp_path / "local").rename(tmp_path / "elsewhere")
    for section in ("corpus", "teacher", "tasks"):
        tree[section]["source"] = "hub"
    tree["domain_evaluation"]["quiz"]["source"] = "synthetic"
    tree["students"]["little_professor"]["init"] = "random"
    tree["tasks"]["cola"] = TASK | {"augmented_copies": 0}
    check_sources(check_params(tree))


@pytest.mark.parametrize(
    ("path", "content", "line"),
    [
        ("wiki/a.jsonl", "text", "corpus.local.files: local/wiki/a.jsonl, line 1: no JSON"),
        ("glue/CoLA/dev.tsv", "x\t1\n", "tasks.local.folder: local/glue/CoLA/dev.tsv, line 1: 2 fields; 4 are"),
        ("quiz.jsonl", '{"subject": "a"}', "domain_evaluation.quiz.local.file: local/quiz.jsonl: no column 'prompt'"),
        ("quiz.jsonl", json.dumps(QUIZ | {"answer": "the king"}), "local/quiz.jsonl: no question whose answer is a"),
        ("glove.txt", "2 2\nthe 0.1 0.2", "augmentation.substitution.word_vectors.file: local/glove.txt, line 2"),
        ("teacher/tokenizer.json", "{}", "local/teacher/tokenizer.json: no tokenizer"),
        ("teacher/model.safetensors", "", "local/teacher/model.safetensors: damaged"),
        ("teacher/config.json", '{"model_type": "t5"}', "local/teacher/config.json: model_type: not supported"),
    ],
)
def test_damaged_files_are_reported(tree, tmp_path, path, content, line):
    (tmp_path / "local" / path).write_text(content)
    assert mistakes(tree)[0].startswith(line)


def test_students_are_compared_with_the_teachers_shape(tree):
    for name in ("tinybert4", "bilstm"):
        tree["students"][name]["init"] = {"teacher": "bottom"}
    tree["students"]["tinybert4"]["architecture"] = BERT | {"width": 48}
    tree["students"]["bilstm"]["architecture"]["embedding"] = 32
    tree["students"]["little_professor"]["architecture"] = BERT | {"feed_forward": 24}
    found = mistakes(tree)
    assert found[0].startswith(
        "students.tinybert4.architecture.width: larger than the teacher's, from which it is cut (got 48)"
    )
    assert found[1].startswith(
        "students.bilstm.architecture.embedding: larger than the teacher's, from which it is cut (got 32)"
    )
    assert found[2].startswith("students.little_professor.init: local/teacher: wrong intermediate_size (got 48)")


def test_lengths_are_compared_with_the_teachers_positions(tree):
    tree["tokenize"]["sequence_tokens"] = tree["tasks"]["cola"]["max_length_tokens"] = 512
    expected = "too long for the model (got 512 tokens); allowed: at most 128, the model's positions; fix: lower it"
    assert mistakes(tree) == [
        f"{key}: {expected}" for key in ("tasks.cola.max_length_tokens", "tokenize.sequence_tokens")
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"labels": ["a", "b", "c"]}, "tasks.mine.finetuned_teacher: wrong number of outputs (got 2); allowed: 3"),
        ({"kind": "regression"}, "tasks.mine.finetuned_teacher: wrong number of outputs (got 2); allowed: 1"),
        ({"labels": ["a", "b"]}, "tasks.mine.finetuned_teacher: unknown classes (got unacceptable, acceptable)"),
        ({}, "tasks.mine.finetuned_teacher: unknown classes (got unacceptable, acceptable); allowed: 1, 2"),
        ({"hub": {"dataset": "a/b", "revision": "c"}}, None),
        ({"hub": {"dataset": "a/b", "revision": "c"}, "labels": ["a", "b"]}, "tasks.mine.finetuned_teacher: unknown "),
    ],
)
def test_classes_of_a_task_teacher_are_compared_if_known(tree, tmp_path, data, expected):
    names = data.get("labels", [1, 2])
    rows = "".join(f"text {number},{names[number % len(names)]}\n" for number in range(40))
    (tmp_path / "own.csv").write_text(f"text,label\n{rows}")
    data = {"train": "own.csv", "texts": ["text"], "label": "label"} | data
    tree["tasks"]["mine"] = tree["tasks"]["cola"] | {"data": data}
    tree["tasks"]["run"] = ["mine"]
    if expected is None:
        check_sources(check_params(tree))
    else:
        assert mistakes(tree)[0].startswith(expected)


def test_all_rows_of_own_tables_are_read(tree, tmp_path):
    rows = "".join(f"text {number},{number % 2}\n" for number in range(15))
    (tmp_path / "own.csv").write_text(f"text,label\n{rows}")
    tree["tasks"]["mine"] = tree["tasks"]["cola"] | {"data": {"train": "own.csv", "texts": ["text"], "label": "label"}}
    tree["tasks"] |= {"run": ["mine", "other"]}
    tree["tasks"]["other"] = tree["tasks"]["mine"] | {"data": tree["tasks"]["mine"]["data"] | {"train": "absent.csv"}}
    for task in ("mine", "other"):
        tree["tasks"][task]["finetuned_teacher"] = None
    (only,) = mistakes(tree)
    assert only.startswith("tasks.other.data.train: ") and "does not exist" in only
    (tmp_path / "own.csv").write_text(f"text,label\n{rows},0\n")
    assert "line 17, column text: no text (got nothing)" in mistakes(tree)[0]


def test_prediction_files_are_read(tree, tmp_path, capsys):
    (tmp_path / "p.csv").write_text("id,label\n0,acceptable\n")
    files = {"train": "p.csv", "dev": "absent.csv", "id": "row", "label": "label", "missing": "gold"}
    tree["tasks"]["cola"] |= {"augmented_copies": 0, "finetuned_teacher": {"predictions": files}}
    tree["students"]["tinybert4"] |= {
        "intermediate": None,
        "prediction": {"losses": {"prediction": 1.0}, "temperature": 1.0},
    }
    tree["tasks"]["students"] = tree["quantization"]["models"] = ["tinybert4"]
    key = "tasks.cola.finetuned_teacher.predictions"
    first, second = mistakes(tree)
    assert first.startswith(f"{key}.train: p.csv: no column 'row'") and second.startswith(f"{key}.dev: ")
    files |= {"dev": "p.csv", "id": "id"}
    assert mistakes(tree)[0].startswith(f"{key}.dev: p.csv: no prediction of dev's row with id '1'")
    (tmp_path / "dev.csv").write_text("\n".join(["id,label", *(f"{number},acceptable" for number in range(16))]))
    files["dev"] = "dev.csv"
    write_params(tmp_path, tree)
    check_params_stage.main()
    assert "tasks.cola: 15 of 16 training rows have no prediction\n" in capsys.readouterr().out
    tree["tasks"]["source"] = "hub"  # whose rows have no known ids
    check_sources(check_params(tree))


def test_stop_words_are_read_if_they_are_used(tree):
    tree["augmentation"]["substitution"]["stop_words"] = "englsh"
    (line,) = mistakes(tree)
    assert line.startswith("augmentation.substitution.stop_words: ") and "does not exist" in line
    tree["tasks"]["cola"]["augmented_copies"] = 0
    check_sources(check_params(tree))


def test_a_machine_without_bfloat16_is_reported(tree, monkeypatch):
    def reject() -> None:
        raise UserError("precision: bfloat16 is not supported by this machine; fix: set it to float32")

    monkeypatch.setattr(outputs, "check_bfloat16", reject)
    tree["precision"] = "bfloat16"
    assert mistakes(tree) == ["precision: bfloat16 is not supported by this machine; fix: set it to float32"]
