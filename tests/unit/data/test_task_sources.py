"""GLUE rows: the nine official layouts, the error line of each mistake in a file, the Hub, the synthetic tasks."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tinybert.config.tasks import TASKS
from tinybert.data.encoding import fraction_of
from tinybert.data.task_sources import read_splits
from tinybert.pipeline import hub
from tinybert.pipeline.errors import UserError

# Task -> folder, header of train and dev (None: there is none), one row of it, the row that is read, header of test.
LAYOUTS = {
    "cola": ("CoLA", None, "ab12\t1\t\tFish swim.", {"sentence": "Fish swim.", "label": 1}, "index\tsentence"),
    "sst2": ("SST-2", "sentence\tlabel", "a joy \t1", {"sentence": "a joy", "label": 1}, "index\tsentence"),
    "mrpc": (
        "MRPC",
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '0\t12\t13\tHe said " yes .\tShe left .',
        {"sentence1": 'He said " yes .', "sentence2": "She left .", "label": 0},
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
    ),
    "stsb": (
        "STS-B",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tfile\t2012\t1\tnone\tnone\tA cat.\tA dog.\t2.250",
        {"sentence1": "A cat.", "sentence2": "A dog.", "label": 2.25},
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
    ),
    "qqp": (
        "QQP",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "7\t1\t2\tWhy?\tHow?\t0",
        {"question1": "Why?", "question2": "How?", "label": 0},
        "id\tquestion1\tquestion2",
    ),
    "mnli": (
        "MNLI",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tfiction\t( a )\t( b )\t(a)\t(b)\tIt rains.\tIt is dry.\tneutral\tcontradiction",
        {"premise": "It rains.", "hypothesis": "It is dry.", "label": 2},
        "index\tgenre\tsentence1\tsentence2",
    ),
    "qnli": (
        "QNLI",
        "index\tquestion\tsentence\tlabel",
        "0\tWho?\tNobody.\tnot_entailment",
        {"question": "Who?", "sentence": "Nobody.", "label": 1},
        "index\tquestion\tsentence",
    ),
    "rte": (
        "RTE",
        "index\tsentence1\tsentence2\tlabel",
        "0\tIt rains.\tWater falls.\tentailment",
        {"sentence1": "It rains.", "sentence2": "Water falls.", "label": 0},
        "index\tsentence1\tsentence2",
    ),
    "wnli": (
        "WNLI",
        "index\tsentence1\tsentence2\tlabel",
        "0\tHe fell.\tBob fell.\t1",
        {"sentence1": "He fell.", "sentence2": "Bob fell.", "label": 1},
        "index\tsentence1\tsentence2",
    ),
}
DEV_FILES = {"mnli": ("dev_matched", "dev_mismatched")}


def write_task(root: Path, name: str, *rows: str, test: bool = False) -> Path:
    """The task's official files with `rows`; returns the train file."""
    folder, header, _, example, test_header = LAYOUTS[name]
    (root / folder).mkdir(exist_ok=True)
    lines = [*([header] if header else []), *rows]
    for split in ("train", *DEV_FILES.get(name, ("dev",))):
        (root / folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if test:
        wanted = [str(value) for column, value in example.items() if column != "label"]
        fields = ["0"] * (test_header.count("\t") + 1 - len(wanted)) + wanted
        for split in ("test_matched", "test_mismatched") if name == "mnli" else ("test",):
            (root / folder / f"{split}.tsv").write_text(f"{test_header}\n" + "\t".join(fields), encoding="utf-8")
    return root / folder / "train.tsv"


def read(root: Path, name: str) -> dict[str, list[dict]]:
    return read_splits(TASKS[name], "local", settings=local(root), seed=0)


def local(root: Path):
    return SimpleNamespace(local=SimpleNamespace(folder=str(root)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_official_layout(tmp_path, name):
    _, _, row, expected, _ = LAYOUTS[name]
    write_task(tmp_path, name, row, row, test=True)
    splits = read(tmp_path, name)
    assert splits["train"] == [expected | {"idx": 0}, expected | {"idx": 1}]
    assert type(splits["train"][0]["label"]) is (float if name == "stsb" else int)
    dev_splits = DEV_FILES.get(name, ("dev",))
    test_splits = ("test_matched", "test_mismatched") if name == "mnli" else ("test",)
    assert list(splits) == ["train", *dev_splits, *test_splits]
    for split in test_splits:
        assert splits[split] == [{key: value for key, value in expected.items() if key != "label"} | {"idx": 0}]


def test_without_a_test_file_there_is_no_test_split(tmp_path):
    write_task(tmp_path, "rte", LAYOUTS["rte"][2])
    assert list(read(tmp_path, "rte")) == ["train", "dev"]


def test_windows_line_ends_byte_order_mark_and_blank_lines(tmp_path):
    train = write_task(tmp_path, "sst2", "fine\t1")
    train.write_bytes("\ufeffsentence\tlabel\r\nso\x85so\t0\r\n\r\n".encode())
    assert read(tmp_path, "sst2")["train"] == [{"sentence": "so\x85so", "label": 0, "idx": 0}]


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("cola", "ab\t1\tFish swim.", "line 2: 3 fields; 4 are expected: source, label, mark, sentence"),
        ("cola", "ab\t2\t\tFish.", "line 2, column label: '2'; one of 0, 1 is expected"),
        ("cola", "ab\t\t\tFish.", "line 2, column label: ''; one of 0, 1 is expected"),
        ("sst2", "fine\t1\textra", "line 3: 3 fields; 2 are expected"),
        ("sst2", " \t1", "line 3, column sentence: empty"),
        ("sst2", "fine\t1.0", "line 3, column label: '1.0'"),
        ("sst2", "fi\0ne\t1", "line 3: holds NUL bytes"),
        ("mrpc", "1\t2\t3\tHe left .\t", "line 3, column #2 String: empty"),
        ("rte", "0\ta\tb\tmaybe", "line 3, column label: 'maybe'; one of entailment, not_entailment is expected"),
        ("stsb", "0\tm\tf\t2012\t1\tn\tn\ta\tb\tfive", "line 3, column score: 'five'; a number from 0 to 5"),
        ("stsb", "0\tm\tf\t2012\t1\tn\tn\ta\tb\tnan", "line 3, column score: 'nan'; a number from 0 to 5"),
        ("stsb", "0\tm\tf\t2012\t1\tn\tn\ta\tb\t5.01", "line 3, column score: '5.01'"),
    ],
)
def test_mistakes_in_a_row_name_file_line_and_column(tmp_path, name, row, expected):
    train = write_task(tmp_path, name, LAYOUTS[name][2], row)
    with pytest.raises(UserError) as caught:
        read(tmp_path, name)
    for path, line in zip((train, train.with_name("dev.tsv")), str(caught.value).splitlines(), strict=True):
        assert line.startswith(f"tasks.local.folder: {path}, {expected}")


def test_mistakes_in_a_file_name_it(tmp_path):
    with pytest.raises(UserError, match=r"tasks\.local\.folder: .*RTE/train\.tsv does not exist"):
        read(tmp_path, "rte")
    train = write_task(tmp_path, "rte", LAYOUTS["rte"][2])
    train.write_text("index\tsentence1\tlabel\n0\ta\tentailment\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.tsv, line 1: 0 columns 'sentence2' among"):
        read(tmp_path, "rte")
    train.write_text("index\tsentence1\tsentence2\tlabel\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.tsv has no rows"):
        read(tmp_path, "rte")
    train.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.tsv, line 1: 0 columns"):
        read(tmp_path, "rte")
    train.write_bytes("index\tsentence1\tsentence2\tlabel\n0\tcafé\tb\tentailment\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"train\.tsv, line 2: not UTF-8"):
        read(tmp_path, "rte")


def test_qqp_rows_torn_by_a_line_break_are_left_out_but_not_many(tmp_path):
    good, torn = LAYOUTS["qqp"][2], ["8\t3\t4\tWas it", "real?\tWhat?\t0"]
    write_task(tmp_path, "qqp", good, *torn, good)
    assert [row["idx"] for row in read(tmp_path, "qqp")["train"]] == [0, 1]
    write_task(tmp_path, "qqp", good, *torn * 11)
    with pytest.raises(UserError, match=r"QQP/train\.tsv, line 23: 4 fields; 6 are expected"):
        read(tmp_path, "qqp")


@pytest.fixture
def fake_hub(monkeypatch):
    """A `datasets` module whose load_dataset records its call and returns `splits`."""
    module = ModuleType("datasets")

    def load_dataset(*names, **options):
        module.call = (names, options)
        return module.splits

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(hub, "_is_reachable", lambda: True)
    return module


HUB = SimpleNamespace(hub=SimpleNamespace(dataset="someone/glue", revision="abc"))


def test_hub_splits_are_renamed_and_test_labels_dropped(fake_hub):
    row = {"premise": "a", "hypothesis": "b", "label": 2, "idx": 4, "extra": 0}
    names = ("train", "validation_matched", "validation_mismatched", "test_matched")
    fake_hub.splits = {name: [row | {"label": -1} if "test" in name else row] for name in names}
    splits = read_splits(TASKS["mnli"], "hub", settings=HUB, seed=0)
    assert list(splits) == ["train", "dev_matched", "dev_mismatched", "test_matched"]
    assert splits["dev_matched"] == [{"premise": "a", "hypothesis": "b", "label": 2, "idx": 4}]
    assert splits["test_matched"] == [{"premise": "a", "hypothesis": "b", "idx": 4}]
    assert fake_hub.call == (("someone/glue", "mnli"), {"revision": "abc"})


def test_hub_data_without_a_column_or_split_is_named(fake_hub):
    fake_hub.splits = {"train": [{"text": "a", "label": 0, "idx": 0}], "validation": []}
    with pytest.raises(UserError, match=r"tasks\.hub\.dataset: cola has no column sentence; it has text, label, idx"):
        read_splits(TASKS["cola"], "hub", settings=HUB, seed=0)
    fake_hub.splits = {"train": []}
    with pytest.raises(UserError, match="cola has no split validation; it has train"):
        read_splits(TASKS["cola"], "hub", settings=HUB, seed=0)


SYNTHETIC = SimpleNamespace(synthetic=SimpleNamespace(train_examples=12, dev_examples=5))


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "rte"])
def test_synthetic_tasks_have_the_set_sizes_and_columns(name):
    task = TASKS[name]
    splits = read_splits(task, "synthetic", settings=SYNTHETIC, seed=3)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 12, "dev": 5}
    for row in splits["train"] + splits["dev"]:
        assert set(row) == {*task.columns, "label", "idx"}
        assert 0 <= row["label"] <= 5 if task.is_regression else row["label"] in range(len(task.labels))


def test_tasks_without_synthetic_examples_name_those_that_have():
    with pytest.raises(
        UserError, match=r"tasks\.source: synthetic: qqp has no synthetic examples, only cola, .*tasks\.run"
    ):
        read_splits(TASKS["qqp"], "synthetic", settings=SYNTHETIC, seed=0)


ROWS = [{"sentence": str(number)} for number in range(100)]


def test_the_whole_is_all_rows_in_their_order():
    assert fraction_of(ROWS, 1.0, seed=3) == ROWS


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 50), (0.7, 70), (0.009, 1), (1e-9, 1), (0.996, 100)])
def test_the_number_of_rows(fraction, count):
    assert len(fraction_of(ROWS, fraction, seed=3)) == count


def test_rows_keep_their_order_and_are_spread_over_all():
    places = [int(row["sentence"]) for row in fraction_of(ROWS, 0.5, seed=3)]
    assert places == sorted(set(places))
    assert 15 < sum(place < 50 for place in places) < 35  # a draw of 50 among 100: 25, standard deviation 2.5


def test_smaller_shares_are_parts_of_larger_ones():
    half, more = (fraction_of(ROWS, fraction, seed=3) for fraction in (0.5, 0.7))
    assert all(row in more for row in half)


def test_the_seed_decides():
    first, again, other = (fraction_of(ROWS, 0.5, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
