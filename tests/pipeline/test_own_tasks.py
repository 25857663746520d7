"""The real `dvc repro` on tables: classes with a dev share, scored pairs, and rows of several labels."""

import json
import random
from pathlib import Path

import pytest

from tests.support.families import save_family
from tests.support.outputs import check_whole, few_students_params
from tests.support.project import TASK, copy_project, run, write_params
from tinybert.pipeline.files import read_jsonl

pytestmark = pytest.mark.long
TOPICS = ("war", "river", "city")
WORDS = ("the", "king", "history", "paris", "of", "fought", "a", "and", "old", "new", "said", "people")
DATA = {
    "topics": {"train": "local/topics.csv", "texts": ["message"], "label": "topic", "metric": "f1",
               "positive": "river"},
    "pairs": {"train": "local/pairs.tsv.gz", "unlabeled": "local/more.csv", "texts": ["one", "two"], "label": "score",
              "kind": "regression"},
    "tags": {"train": "local/tags.jsonl", "dev": "local/tags.jsonl", "test": "local/tags.jsonl",
             "unlabeled": "local/more.csv", "texts": ["text"], "label": "tags", "kind": "multilabel"},
}  # fmt: skip


def write_tables(folder: Path) -> None:
    import gzip

    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))

    folder.mkdir()
    topics = [f'"{text()}, {topic}",{topic}' for topic in rng.choices(TOPICS, k=60)]
    (folder / "topics.csv").write_text("\n".join(["message,topic", *topics]))
    pairs = [f"{text()}\t{text()}\t{rng.uniform(0, 5):.2f}" for _ in range(40)]
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress("\n".join(["one\ttwo\tscore", *pairs]).encode()))
    tags = [{"text": f"{text()} {number}", "tags": [t for t in TOPICS if rng.random() < 0.4]} for number in range(40)]
    (folder / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tags))
    more = [f"{text()},{text()},{text()}" for _ in range(5)]
    (folder / "more.csv").write_text("\n".join(["one,two,text", *more]))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = copy_project(tmp_path_factory.mktemp("project"))
    write_tables(folder / "local")
    tree = few_students_params()
    tree["seeds"] = [42]
    tree["tasks"] |= {"run": list(DATA)} | {name: TASK | {"data": data} for name, data in DATA.items()}
    write_params(folder, tree)
    done = run(folder, "dvc", "repro")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_outputs_are_complete_and_a_second_run_does_nothing(project):
    check_whole(project)
    assert "Running stage" not in run(project, "dvc", "repro").stdout


@pytest.mark.parametrize(
    ("task", "metrics", "splits"),
    [
        ("topics", ["f1", "accuracy", "macro_f1"], ["dev"]),
        ("pairs", ["pearson", "spearman"], ["dev"]),
        ("tags", ["micro_f1", "macro_f1"], ["dev", "dev_test"]),
    ],
)
def test_each_task_is_scored_in_its_metrics(project, task, metrics, splits):
    found = json.loads((project / f"metrics/evaluate/{task}-tinybert4/42.json").read_text())
    assert list(found) == ["costs", "retokenized", *splits]
    for split in splits:
        assert all(list(found[split][system]) == metrics for system in ("student", "teacher", "majority"))
    quantized = json.loads((project / f"metrics/quantize/{task}-tinybert4.json").read_text())
    assert all(list(variant["dev"]) == metrics for variant in quantized.values())
    assert f"{task}: {metrics[0]}" in (project / "reports/summary.md").read_text()


@pytest.mark.parametrize("task", DATA)
def test_the_final_model_answers(project, task):
    from transformers import pipeline

    folder = project / "models/final" / task / "tinybert4"
    question = {"text": "the old king", "text_pair": "a war"} if task == "pairs" else "the old king"
    (answer,) = pipeline("text-classification", str(folder), truncation=True, top_k=None)([question])
    assert {one["label"] for one in answer} == ({"score"} if task == "pairs" else set(TOPICS))
    card = (folder / "README.md").read_text()
    assert Path(DATA[task]["train"]).name in card and "local/" not in card
    assert ("Unlabeled rows used: new texts of more.csv" in card) == ("unlabeled" in DATA[task])


@pytest.mark.parametrize("task", ["pairs", "tags"])
def test_unlabeled_rows_follow_the_others(project, task):
    unlabeled, rows = (list(read_jsonl(project / "data" / path)) for path in
                       (f"unlabeled/{task}/rows.jsonl", f"augmented/{task}/train.jsonl"))  # fmt: skip
    counts = json.loads((project / f"reports/metrics/prepare_task/{task}.json").read_text())["examples"]
    assert len(unlabeled) == counts["unlabeled"] == 5
    assert [{key: row[key] for key in unlabeled[0]} for row in rows[-5:]] == unlabeled


@pytest.mark.parametrize("teacher", ["roberta", "predictions"])
def test_any_teacher_teaches_a_table(tmp_path, teacher):
    folder = copy_project(tmp_path / "project")
    write_tables(folder / "local")
    if teacher == "roberta":
        ready = {"folder": str(save_family("roberta", folder / "local/model", TOPICS))}
    else:  # classes that an LLM gave, of all rows but the first five in train
        rows = (folder / "local/topics.csv").read_text().splitlines()[1:]
        known = [f"{number},{row.rpartition(',')[2]}" for number, row in enumerate(rows)]
        for split, without in (("train", 5), ("dev", 0)):
            (folder / f"local/llm_{split}.csv").write_text("\n".join(["row,class", *known[without:]]))
        files = {"train": "local/llm_train.csv", "dev": "local/llm_dev.csv", "id": "row", "label": "class"}
        ready = {"predictions": files | {"missing": "drop"}}
    tree = few_students_params()
    tree["seeds"] = [42]
    data = DATA["topics"] | {"dev": DATA["topics"]["train"]}
    own = TASK | {"data": data, "finetuned_teacher": ready, "augmented_copies": 0}
    tree["tasks"] |= {"run": ["topics"], "topics": own}
    for student in tree["students"].values():
        student["intermediate"] = None
    tree["students"]["tinybert4"]["prediction"] = {"losses": {"prediction": 1.0}, "temperature": 1.0}
    tree["quantization"]["models"] = ["tinybert4"]
    write_params(folder, tree)
    done = run(folder, "dvc", "repro")
    assert done.returncode == 0, done.stderr[-3000:]
    check_whole(folder)
    found = json.loads((folder / "metrics/evaluate/topics-tinybert4/42.json").read_text())["dev"]
    counted = json.loads((folder / "metrics/finetune_teacher/topics.json").read_text())
    assert found["teacher"] == counted["dev"]
    card = (folder / "models/final/topics/tinybert4/README.md").read_text()
    if teacher == "roberta":
        assert "fine-tuned by a third party: a local folder" in card
    else:
        assert found["teacher"]["accuracy"] == 1.0 and counted["without_prediction"] == 5
        assert "tasks.topics: 5 of 60 training rows have no prediction" in done.stdout
        assert "came in files" in card and "for 5 training rows none" in card
