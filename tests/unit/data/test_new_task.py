"""`tinybert init`: what it chooses by the rows, what it prints, and what it writes into params.yaml."""

import json
import re
import shutil

import pandas as pd
import pytest

from tests.support.root import ROOT
from tinybert.config.load import load_params
from tinybert.data import new_task
from tinybert.data.new_task import main
from tinybert.pipeline.errors import UserError


@pytest.fixture
def project(tmp_path, monkeypatch):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, labels, *, words=3):
    rows = [{"message": f"row {number} " + "word " * words, "topic": label} for number, label in enumerate(labels)]
    frame = pd.DataFrame(rows)
    if any(isinstance(label, list) for label in labels):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        frame.to_csv(path, index=False)
    return path.name


def init(*arguments: str):
    main([*arguments, "--text", "message", "--label", "topic"])
    params = load_params()
    (name,) = params.tasks.run
    return params.tasks[name]


def test_only_the_section_and_what_is_run_change(project):
    text = (project / "params.yaml").read_text().replace("  run: [cola]\n", "  run: [cola]               # a comment\n")
    (project / "params.yaml").write_text(text)
    before = text.splitlines()
    init(write(project / "my table.csv", ["war", "peace"] * 30))
    after = (project / "params.yaml").read_text().splitlines()
    removed, added = ([line for line in one if line not in other] for one, other in ((before, after), (after, before)))
    assert removed == [
        "  students: [lazy, attentive, little_professor, tinybert4]",
        "  students: [lazy, attentive, little_professor]",
        "  run: [cola]               # a comment",
        "  sparsities_percent: [20]  # one pruned student per value (published: 20); []: none",
    ]
    assert added[:4] == [
        "  students: []",
        "  run: [my_table]           # a comment",
        "  my_table:",
        "    data: {train: my table.csv, texts: [message], label: topic, kind: classification}",
    ]
    assert added[-1] == "  sparsities_percent: []    # one pruned student per value (published: 20); []: none"
    assert load_params().general.students == ("tinybert4",)


def test_pruned_students_are_neither_made_nor_exported(project):
    path = project / "params.yaml"
    path.write_text(path.read_text().replace("models: [teacher, tinybert4]", "models: [tinybert4, tinybert4_pruned20]"))
    init(write(project / "topics.csv", ["war", "peace"] * 30))
    assert load_params().quantization.models == ("tinybert4",)


@pytest.mark.parametrize(
    ("labels", "kind", "metric"),
    [
        (["war", "peace"] * 30, "classification", None),
        (["war"] * 50 + ["peace"] * 6, "classification", "macro_f1"),
        (["war"] * 70 + ["peace"] * 30, "classification", "macro_f1"),  # entropy .88
        (["war"] * 65 + ["peace"] * 35, "classification", None),  # entropy .93
        ([1, 2, 3] * 20, "classification", None),
        ([number / 8 for number in range(60)], "regression", None),
        (list(range(60)), "regression", None),
        ([["war"], ["war", "peace"], []] * 20, "multilabel", None),
    ],
)
def test_kind_and_metric_follow_the_labels(project, labels, kind, metric):
    ending = "jsonl" if kind == "multilabel" else "csv"
    data = init(write(project / f"topics.{ending}", labels)).data
    assert (data.kind, data.metric, data.train) == (kind, metric, f"topics.{ending}")


def test_text_that_nothing_reads_need_not_be_brought(project, capsys):
    params = (project / "params.yaml").read_text()
    for old, new in (
        ("source: synthetic         # synthetic:", "source: local             # synthetic:"),
        ("corpus:\n  source: synthetic ", "corpus:\n  source: local     "),
        ("teacher_encoder: pretrained ", "teacher_encoder: given "),
        ("local/wiki/*.jsonl.gz", "local/wiki/**/*.jsonl.gz"),
    ):
        assert params.count(old) == 1
        params = params.replace(old, new)
    (project / "params.yaml").write_text(params)
    init(write(project / "tickets.csv", ["war", "peace"] * 30))
    assert load_params().corpus.source == "local"  # general distillation reads it
    before, after = params.split("  tinybert4: ")
    stage = "    general: {losses: {attention: 1.0, hidden: 1.0, embedding: 1.0}}"
    after = after.replace("init: {teacher: uniform}", "init: {teacher: uniform, per_task: true}", 1)
    (project / "params.yaml").write_text(f"{before}  tinybert4: {after.replace(stage, '    general: null', 1)}")
    warning = "warning: the number of tokens is a guess: teacher.local.folder: not a folder (got 'local/teacher'); fix:"
    assert warning in capsys.readouterr().out
    (project / "local/wiki").mkdir(parents=True)
    (project / "local/wiki/text.jsonl.gz").touch()
    init(write(project / "others.csv", ["war", "peace"] * 30))
    read = load_params()
    assert (read.corpus.source, read.teacher.pretraining.max_steps) == ("local", 1)
    assert "params.yaml: teacher.pretraining.max_steps: 1, because no model trains on text\n" in capsys.readouterr().out
    (project / "local/wiki/text.jsonl.gz").unlink()
    init(write(project / "topics.csv", ["war", "peace"] * 30))
    assert load_params().corpus.source == "synthetic"
    assert (
        "params.yaml: corpus.source: synthetic, because the files of corpus.local are absent\n"
        in capsys.readouterr().out
    )


def test_predictions_of_the_first_task_need_not_fit_the_table(project):
    before, after = (project / "params.yaml").read_text().split("  cola:", 1)
    files = "finetuned_teacher: {predictions: {train: a.csv, dev: b.csv, id: id, label: label, missing: drop}}"
    after, count = re.subn(r"finetuned_teacher: null.*", files, after, count=1)
    assert count == 1
    after = re.sub(r"augmented_copies: \d+", "augmented_copies: 0", after, count=1)  # copies would have no predictions
    after = after.replace("models: [teacher, tinybert4]", "models: [tinybert4]", 1)  # files cannot be exported
    inner = "    intermediate: {losses: {attention: 1.0, hidden: 1.0, embedding: 1.0}}\n    prediction: {losses: {pred"
    assert inner in before  # of tinybert4: files have no inner layers
    before = before.replace(inner, "    intermediate: null\n    prediction: {losses: {pred")
    (project / "params.yaml").write_text(f"{before}  cola:{after}")
    assert init(write(project / "topics.csv", ["war", "peace"] * 30)).finetuned_teacher is None


@pytest.mark.parametrize("has_bf16", [True, False])
def test_precision_follows_the_machine(project, monkeypatch, capsys, has_bf16):
    def check():
        if not has_bf16:
            raise UserError("no bf16")

    monkeypatch.setattr(new_task, "check_bfloat16", check)
    params = (project / "params.yaml").read_text().replace("precision: float32 ", "precision: bfloat16 ")
    (project / "params.yaml").write_text(params)
    init(write(project / "topics.csv", ["war", "peace"] * 30))
    assert load_params().precision == ("bfloat16" if has_bf16 else "float32")
    assert ("precision: float32, because this machine has no bf16" in capsys.readouterr().out) != has_bf16


def test_a_separator_makes_several_labels(project):
    data = init(write(project / "topics.csv", ["war|peace", "war", "art"] * 20), "--separator", "|").data
    assert (data.kind, data.separator) == ("multilabel", "|")


def test_length_and_epochs_follow_the_rows(project, capsys):
    short = init(write(project / "short.csv", ["a", "b"] * 30))
    assert short.max_length_tokens == 16  # 5 words × 1.5 and two special tokens
    assert (short.teacher.epochs, short.prediction.epochs) == (10, 10)
    assert short.augmented_copies == 0 and short.prediction.max_steps is None
    long = init(write(project / "long.csv", ["a", "b"] * 15_000, words=40))
    assert long.max_length_tokens == 72
    assert (long.teacher.epochs, long.augmented_copies, long.prediction.max_steps) == (3, 0, None)
    assert "tasks.long: classification, accuracy, 72 tokens, epochs: teacher 3" in capsys.readouterr().out


def test_epochs_of_students_follow_unlabeled_rows_too(project, capsys):
    texts = pd.DataFrame({"message": [f"new {number}" for number in [0, *range(3_000)]]})
    texts.to_csv(project / "texts.csv", index=False)
    task = init(write(project / "few.csv", ["a", "b"] * 30), "--unlabeled", "texts.csv")
    found = [getattr(task, phase).epochs for phase in ("teacher", "intermediate", "prediction", "pruning")]
    assert found == [10, 10, 6, 4] and task.data.unlabeled == "texts.csv"
    printed = capsys.readouterr().out
    assert "unlabeled: 1 of 3,001 rows are left out: repeated texts" in printed and "train: 0 of dev\n" in printed


@pytest.mark.parametrize(("shared", "is_warned"), [(2, False), (3, True)])
def test_shared_texts_are_warned_of_from_a_twentieth_on(project, capsys, shared, is_warned):
    write(project / "topics.csv", ["war", "peace"] * 30)
    known = pd.read_csv(project / "topics.csv").head(shared)
    pd.concat([known, pd.DataFrame({"message": map(str, range(40 - shared)), "topic": "war"})]).to_csv("dev.csv")
    init("topics.csv", "--dev", "dev.csv")
    printed = capsys.readouterr().out
    assert f"texts also in train: {shared} of dev" in printed
    assert ("warning: scores on texts that are also in train" in printed) == is_warned


@pytest.mark.parametrize(("classes", "rows", "epochs"), [(4, 12_000, 3), (64, 12_000, 10), (150, 24_000, 6)])
def test_many_classes_take_more_epochs(project, classes, rows, epochs):
    table = write(project / "many.csv", [f"class {number % classes}" for number in range(rows)])
    assert init(table).teacher.epochs == epochs


@pytest.mark.parametrize(
    ("classes", "rate", "expected"),
    [(8, 5e-5, 5e-5), (9, 5e-5, 2e-4), (9, 2e-5, 8e-5), (9, 1e-3, 1e-3)],
)
def test_a_teacher_of_many_classes_learns_faster(project, classes, rate, expected):
    params = (project / "params.yaml").read_text()
    teacher = "teacher: {epochs: 8, max_steps: null, batch_size: 32, learning_rate: "
    assert f"{teacher}5.0e-4" in params
    (project / "params.yaml").write_text(params.replace(f"{teacher}5.0e-4", f"{teacher}{rate:.1e}"))
    task = init(write(project / "many.csv", [f"class {number % classes}" for number in range(360)]))
    assert task.teacher.learning_rate == pytest.approx(expected)
    assert task.prediction.learning_rate == 1e-3


def test_the_rate_of_many_classes_is_not_inherited(project):
    alone = init(write(project / "first.csv", ["a", "b"] * 20)).teacher.learning_rate
    init(write(project / "many.csv", [f"class {number % 9}" for number in range(360)]))
    assert init(write(project / "second.csv", ["a", "b"] * 20)).teacher.learning_rate == alone


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([0.5, 1.5, 2.0, 3.5] * 5 + ["NA"], "mostly scores (got 'NA'); fix: remove other cells, or add --kind"),
        (["0,5", "1,5", "3"] * 5, "decimal commas (got '0,5'); fix: write points"),
        (["['a', 'b']", "['c']"] * 9, "lists as text (got \"['a', 'b']\"); fix: write JSON lines"),
        ([0.5, 1.5, None] * 9, "no score (got ''); allowed: a number between -1e9 and 1e9; fix: leave out rows"),
    ],
)
def test_labels_that_look_like_something_else_are_refused(project, labels, problem):
    with pytest.raises(UserError, match=re.escape(f"column topic: {problem}")):
        init(write(project / "odd.csv", labels))


def test_a_label_of_white_space_is_one_line(project):
    with pytest.raises(UserError, match="line 2, column topic: no class name"):
        init(write(project / "blank.csv", ["  ", *["a", "b"] * 20]))


def test_a_few_numbers_among_classes_are_classes(project):
    assert init(write(project / "mixed.csv", ["1", "2", "other"] * 9)).data.kind == "classification"


@pytest.mark.parametrize("name", ["domain", "qqp"])
def test_names_that_mean_something_are_refused(project, name):
    with pytest.raises(UserError, match=rf"^--name: tasks\.{name} is in params\.yaml, or reserved"):
        init(write(project / f"{name}.csv", ["a", "b"] * 20))


def test_test_rows_that_are_also_in_train_give_a_warning(project, capsys):
    rows = write(project / "rows.csv", ["a", "b"] * 200)
    init(rows, "--test", rows)
    assert "too high; name other rows with --test" in capsys.readouterr().out


def test_it_prints_what_the_table_holds(project, capsys):
    write(project / "topics.csv", ["war"] * 30 + ["peace"] * 10)
    extra = pd.DataFrame({"message": ["row 0 word word word "] * 2, "topic": ["war", "peace"]})
    frame = pd.concat([pd.read_csv(project / "topics.csv"), extra])
    frame.to_csv(project / "topics.csv", index=False)
    extra.to_csv(project / "dev.csv", index=False)
    pd.DataFrame({"message": ["row 1 word word word ", "row 0 word word word "]}).to_csv(project / "test.csv")
    init("topics.csv", "--dev", "dev.csv", "--test", "test.csv", "--name", "subjects")
    assert capsys.readouterr().out.splitlines()[:9] == [
        "rows: 42 train, 2 dev, 2 test",
        "classes: 2 (war 31, peace 11)",
        "balance: the most frequent class is 73.8% of the rows, the rarest 11 rows",
        "duplicates: 2 training rows have the text of an earlier one, 1 of these with another label",
        "warning: 2 dev rows, each 50.0% of the split; use a larger --dev",
        "texts also in train: 2 of dev, 2 of test",
        "warning: scores on texts that are also in train are too high; name other rows with --dev",
        "texts also in dev: 1 of test",
        "warning: test.csv is not scored: its column topic has no labels, or is missing",
    ]


def test_two_columns_are_a_pair(project):
    names = "one", "the\u00a0two", "same"  # with a no-break space, as spreadsheets have them
    rows = [(f"text {number}", f"another {number % 7}", number % 2) for number in range(60)]
    pd.DataFrame(rows, columns=names).to_csv(project / "pairs.csv", index=False)
    main(["pairs.csv", "--text", *names[:2], "--label", "same"])
    task = load_params().tasks.pairs
    assert task.data.texts == names[:2] and task.data.labels is None and task.max_length_tokens == 16


def test_large_scores_are_warned_of(project, capsys):
    init(write(project / "prices.csv", [100 * number for number in range(60)]))
    assert "warning: scores beyond 10 are learned slowly" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["topics.csv", "--name", "cola"], "--name: tasks.cola is in params.yaml, or reserved; fix: another --name"),
        (["topics.csv", "--name", "source"], "--name: tasks.source is in params.yaml, or reserved; fix: "),
        (["absent.csv"], "TABLE: absent.csv does not exist; fix: correct the path"),
        (["topics.csv", "--label", "theme"], "TABLE: topics.csv: no column 'theme'; allowed: message, topic"),
        (["topics.csv", "--text", "a", "--text", "b"], "params.yaml: tasks.topics.data.texts: "),
        (["topics.csv", "--name", "My"], "params.yaml: tasks.My: must be lower-case letters"),
        (["topics.csv", "--kind", "regression"], "tasks.topics.data.train: topics.csv: line 2, column topic: no score"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(project, arguments, line):
    write(project / "topics.csv", ["war", "peace"] * 30)
    before = (project / "params.yaml").read_bytes()
    labels = [] if "--label" in arguments else ["--label", "topic"]
    with pytest.raises(UserError) as caught:
        main([*arguments, "--text", "message", *labels])
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
    assert (project / "params.yaml").read_bytes() == before
