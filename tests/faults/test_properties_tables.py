"""Any table gives rows that fit its task, or one line that names the key of the table."""

import gzip
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.properties import REFUSED, damaged_bytes, outcome
from tinybert.config.tasks import TableData
from tinybert.data.encoding import label_array
from tinybert.data.own_tasks import LEAST_ROWS, read_own, records, shared_texts
from tinybert.data.table_files import Table
from tinybert.evaluate.scoring import majority_predictions, score
from tinybert.pipeline.files import write_jsonl

pytestmark = pytest.mark.properties
KINDS = ("classification", "regression", "multilabel")
TEXTS = st.one_of(
    st.sampled_from(["a", "b", "a b", "", " ", "x\ty", 'say "x", y', "line\nend", "é漢😀"]), st.text(max_size=9)
)
CELLS = {
    "classification": st.sampled_from(["x", "y", "z", "x", "y", "z", "x", "y", "rare", 1, True, 0.5, None, "", " x "]),
    "regression": st.one_of(st.floats(width=32), st.sampled_from([0, 1, "2.5", "-1e3", "nan", "1_0", "", None, "x"])),
    "multilabel": st.lists(st.sampled_from(["x", "y", "z", "x;y", 1, ""]), max_size=3),
}


@st.composite
def tables(draw) -> tuple[str, list[dict]]:
    """A kind and rows of it: mostly good ones, because one bad cell is enough to be refused."""
    kind, pair = draw(st.sampled_from(KINDS)), draw(st.booleans())
    good = {"classification": ["x", "y", "z"], "regression": [0, 1.5, 2], "multilabel": [[], ["x"], ["x", "y"]]}[kind]
    number = draw(st.integers(0, 60))
    labels = draw(st.lists(st.sampled_from(good), min_size=number, max_size=number))
    texts = draw(st.lists(st.integers(0, 30), min_size=number, max_size=number))
    rows = [{"a": f"text {t}", "b": f"pair {t % 7}", "label": one} for t, one in zip(texts, labels, strict=True)]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2])) if rows else 0):
        row = draw(st.sampled_from(rows))
        if draw(st.booleans()):
            row["label"] = draw(CELLS[kind])
        else:
            row["a"] = draw(TEXTS)
    return kind, rows if pair else [{"a": row["a"], "label": row["label"]} for row in rows]


@given(tables(), st.floats(0.01, 0.5))
def test_rows_of_any_table_fit_its_task(tmp_path, table, dev_fraction):
    kind, rows = table
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = tuple(name for name in ("a", "b") if rows and name in rows[0]) or ("a",)
    data = TableData(train=str(path), texts=texts, label="label", kind=kind, dev_fraction=dev_fraction)
    found = outcome(lambda: read_own("mine", data), names="tasks.mine.data.")
    if found is REFUSED:
        return
    task, splits = found
    train, dev = splits["train"], splits["dev"]
    assert len(rows) >= LEAST_ROWS and len(dev) and sorted([*train["idx"], *dev["idx"]]) == list(range(len(rows)))
    assert shared_texts(splits, task) == {"dev": 0}
    for row in [*records(train), *records(dev)]:
        original = rows[row["idx"]]
        assert [row[column] for column in task.columns] == [original[name].strip() for name in texts]
        if kind == "classification":
            assert task.labels[row["label"]] == str(original["label"]).strip()
        elif kind == "multilabel":
            assert {task.labels[one] for one in row["label"]} == set(map(str, original["label"]))
        else:
            assert row["label"] == float(original["label"])
    if kind == "classification":
        assert set(train["label"]) == set(dev["label"]) == set(range(len(task.labels)))
    gold = [label_array(split["label"], task) for split in (train, dev)]
    assert all(
        np.isfinite(value) for value in score(task, majority_predictions(task, gold[0], len(dev)), gold[1]).values()
    )
    write_jsonl(tmp_path / "out.jsonl", records(train))


ROWS = [{"a": f"text {number}", "label": "xyz"[number % 3]} for number in range(20)]


def encoded(ending: str) -> bytes:
    frame, handle = pd.DataFrame(ROWS), io.BytesIO()
    if ending == "parquet":
        frame.to_parquet(handle)
        return handle.getvalue()
    if ending == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    return frame.to_csv(index=False, sep="\t" if ending == "tsv" else ",").encode()


FILES = {ending: encoded(ending) for ending in ("csv", "tsv", "jsonl", "parquet")}


@given(st.data(), st.sampled_from([*FILES]), st.booleans())
def test_damaged_files(tmp_path, data, ending, packed):
    content = data.draw(damaged_bytes(FILES[ending]))
    path = tmp_path / f"rows.{ending}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(content) if packed else content)
    settings = TableData(train=str(path), texts=("a",), label="label")
    found = outcome(lambda: read_own("mine", settings), names="tasks.mine.data.")
    if found is not REFUSED:
        task, splits = found
        assert len(splits["train"]) + len(splits["dev"]) >= LEAST_ROWS and len(task.labels) >= 2


@given(st.lists(st.fixed_dictionaries({"a": TEXTS, "b": TEXTS}), min_size=1, max_size=9))
def test_csv_is_read_as_pandas_writes_it(tmp_path, rows):
    rows = [{name: re.sub("[\r\0\ufeff]", "", text) for name, text in row.items()} for row in rows]
    path = tmp_path / "rows.csv"
    text = pd.DataFrame(rows).to_csv(index=False)
    path.write_bytes(text.encode("utf-8", "replace"))
    found = [cells for _, cells in Table(str(path), "key").rows(("a", "b"))]
    assert found == [{name: one.encode("utf-8", "replace").decode() for name, one in row.items()} for row in rows]
