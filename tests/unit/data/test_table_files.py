"""Tables in all formats give the same rows; each mistake is one line that names the key, the file and the place."""

import gzip
import json

import pandas as pd
import pyarrow.parquet
import pytest

from tinybert.config.tasks import HubTable
from tinybert.data.table_files import Table
from tinybert.pipeline import hub
from tinybert.pipeline.errors import UserError

ROWS = [{"id": 1, "text": 'He said "yes", twice', "label": "a"}, {"id": 2, "text": "λ is\ta letter", "label": "b"}]
ENDINGS = ["csv", "tsv", "jsonl", "parquet"]


def write(folder, ending: str, *, rows=ROWS, packed=False):
    frame, path = pd.DataFrame(rows), folder / f"table.{ending}"
    if ending == "parquet":
        frame.to_parquet(path)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "tsv":  # has no quotes
        lines = [list(rows[0]), *([str(cell).replace("\t", " ") for cell in row.values()] for row in rows)]
        path.write_text("".join("\t".join(line) + "\n" for line in lines))
    else:
        frame.to_csv(path, index=False)
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = path.with_name(f"{path.name}.gz")
    return path


def read(path, *columns):
    return list(Table(str(path), "tasks.x.data.train").rows(columns or ("text", "label")))


def mistake(path, *columns) -> str:
    with pytest.raises(UserError) as caught:
        read(path, *columns)
    line = str(caught.value)
    assert line.startswith(f"tasks.x.data.train: {path}") and "\n" not in line and "; fix: " in line
    return line.removeprefix(f"tasks.x.data.train: {path}").lstrip(", :")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_all_formats_give_the_same_rows(tmp_path, ending, packed):
    found = read(write(tmp_path, ending, packed=packed))
    texts = [row["text"].replace("\t", " " if ending == "tsv" else "\t") for row in ROWS]
    assert [cells for _, cells in found] == [
        {"text": t, "label": row["label"]} for t, row in zip(texts, ROWS, strict=True)
    ]
    first = {"jsonl": "line 1", "parquet": "row 1"}.get(ending, "line 2")
    assert found[0][0] == first


def test_a_quoted_field_may_hold_separators_and_line_ends(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b'\xef\xbb\xbftext,label\r\n"a, b\r\nc",x\r\n\r\nd,y\r\n')
    assert read(path) == [("line 3", {"text": "a, b\nc", "label": "x"}), ("line 5", {"text": "d", "label": "y"})]


def test_empty_columns_after_the_last_are_ignored(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("text,label,,\na,x,,\n")
    assert read(path) == [("line 2", {"text": "a", "label": "x"})]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_missing_column_names_those_there_are(tmp_path, ending):
    line = mistake(write(tmp_path, ending), "text", "topic")
    assert line.startswith("no column 'topic'; allowed: id, text, label; fix: name one of these, in quotes")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.csv", b"", "no rows"),
        ("a.csv", b"text,label\n", "no rows"),
        ("a.jsonl", b"\n", "no rows"),
        ("a.txt", b"text\n", "unknown format; allowed: .csv, .tsv, .jsonl, .parquet, each also .gz"),
        ("a.csv", b"text;label\na;b\n", "no column 'text'; allowed: text;label; fix: separate fields by"),
        ("a.csv", b"text;label\na, b;c\n", "line 2: 2 fields; 1 are expected: text;label; fix: separate"),
        ("a.tsv", b"text,label\na,b\n", "no column 'text'; allowed: text,label; fix: separate fields by"),
        ("a.csv", b"text,label\na,b,c\n", "line 2: 3 fields; 2 are expected: text, label; fix: quote fields"),
        ("a.tsv", b"text\tlabel\na\tb\tc\n", "line 2: 3 fields; 2 are expected: text, label; fix: correct its tabs"),
        ("a.jsonl", b'{"text, label": "a"}\n', "no column 'text'; allowed: text, label; fix: name one of these"),
        ("a.csv", b'"text, label"\na\n', "no column 'text'; allowed: text, label; fix: name one of these"),
        ("a.csv", b"text,text\na,b\n", "line 1: two columns have one name: text, text"),
        ("a.csv", b'text,label\n"a,b\n', "line 2: no CSV (unexpected end of data, at line 2)"),
        ("a.csv", b'text,label\n"a\nb",c\n"d,e\nf,g\nh,i\n', "line 4: no CSV (unexpected end of data, at line 6)"),
        ("a.csv", b'text,label\n"a,b\nc,d\n"e",f\n', "line 2: no CSV (',' expected after '\"', at line 4)"),
        ("a.csv", "text,label\ncafé,b\n".encode("latin-1"), "line 2: not UTF-8 (byte 0xe9 at column 4)"),
        ("a.csv", "text,label\na,b\n".encode("utf-16"), "line 1: holds NUL bytes"),
        ("a.jsonl", b'{"text": "a", "label": "b"}\n[1]\n', "line 2: must be a JSON object"),
        ("a.jsonl", b'{"text": "a", "label": NaN}\n', "line 1: no JSON, NaN is no JSON"),
        ("a.jsonl", b'{"text": "a", "label": "b"}\n{"text": "a"}\n', "line 2: no column 'label'"),
        ("a.parquet", b"PAR1 no more", "cannot be read (Parquet"),
        ("a.csv.gz", b"text,label\n", "cannot be read (Not a gzipped file"),
        ("a.parquet.gz", b"PAR1", "cannot be read (Not a gzipped file"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file(tmp_path, name, content, line):
    path = tmp_path / name
    path.write_bytes(content)
    assert mistake(path).startswith(line)


def test_only_wanted_columns_of_parquet_are_read(tmp_path):
    """A date that Python does not have, in a column that nobody asks for."""
    far = pyarrow.array([2**62], pyarrow.timestamp("us"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "far": far}), tmp_path / "a.parquet")
    assert Table(str(tmp_path / "a.parquet"), "key").columns() == ("text", "far")
    assert read(tmp_path / "a.parquet", "text") == [("row 1", {"text": "a"})]


def test_lists_of_numbered_classes_of_the_hub_come_as_names(monkeypatch):
    import datasets

    kind = datasets.ClassLabel(names=["joy", "anger", "fear"])
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.List(kind), "one": kind})
    content = {"text": ["a", "b"], "label": [[2, 0], []], "one": [-1, 1]}
    rows = datasets.Dataset.from_dict(content, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: rows)
    monkeypatch.setattr(hub, "_is_reachable", lambda: True)
    table = Table("train", "tasks.x.data.train", HubTable(dataset="someone/rows", revision="abc"))
    found = [cells for _, cells in table.rows(("label", "one"))]
    assert found == [{"label": ["fear", "joy"], "one": None}, {"label": [], "one": "anger"}]
    assert table.class_names("label") == ("joy", "anger", "fear") and table.has_values("one")


def test_values_are_looked_for_in_all_rows(tmp_path):
    path = write(tmp_path, "jsonl", rows=[{"text": "a"}, {"text": "b", "label": None}, {"text": "c", "label": "x"}])
    table = Table(str(path), "tasks.x.data.test")
    assert table.has_values("label") and table.has_values("text") and not table.has_values("other")


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path):
    arrow = pyarrow.table([["a"], ["b"]], names=["text", "text"])
    pyarrow.parquet.write_table(arrow, tmp_path / "table.parquet")
    assert "two columns have one name: text, text" in mistake(tmp_path / "table.parquet", "text")


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_blank_lines_are_no_rows(tmp_path, ending):
    (tmp_path / f"table.{ending}").write_text("text\na\n\nb\n")
    assert read(tmp_path / f"table.{ending}", "text") == [("line 2", {"text": "a"}), ("line 4", {"text": "b"})]


def test_blank_lines_may_precede_the_header(tmp_path):
    (tmp_path / "table.csv").write_text("\ntext,label\na,b\n")
    assert read(tmp_path / "table.csv") == [("line 3", {"text": "a", "label": "b"})]


def test_a_dataset_of_the_hub(monkeypatch):
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    calls = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: calls.append((names, options)) or rows)
    monkeypatch.setattr(hub, "_is_reachable", lambda: True)
    table = Table("train", "tasks.x.data.train", HubTable(dataset="someone/rows", revision="abc", config="small"))
    assert list(table.rows(("text", "label"))) == [
        ("row 1", {"text": "a", "label": "yes"}),
        ("row 2", {"text": "b", "label": "no"}),
    ]
    assert len(calls) == 1 and table.class_names("label") == ("no", "yes") and table.class_names("text") is None
    names, options = calls[-1]
    assert names == ("someone/rows", "small")
    assert options["split"] == "train" and options["revision"] == "abc"
    with pytest.raises(UserError, match=r"tasks\.x\.data\.train: someone/rows, split train: no column 'topic'"):
        list(table.rows(("topic",)))
