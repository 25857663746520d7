"""The Hub through the libraries' own client: the sources of profiles/bert-base.yaml, and every fault of a server."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, load_file

from tests.support.hub_client import VOCABULARY_SIZE, Client, environment
from tests.support.hub_content import VOCABULARY, bert, classifier, glue, wikitext
from tests.support.hub_server import Fault, serve_hub
from tests.support.project import copy_project, write_params
from tests.support.root import ROOT
from tinybert.config.load import check_params, merged_profile
from tinybert.config.tasks import TASKS
from tinybert.pipeline.paths import task_model

PROFILE = check_params(merged_profile("bert-base", ROOT))
BERT, BERT_SHA = PROFILE.teacher.hub.model, PROFILE.teacher.hub.revision
CLASSIFIER, GATED, SHA = "someone/bert-mnli", "someone/gated-bert", "c" * 40
ABSENT = "f" * 40
TOKENS = ["[CLS]", "paris", "[UNK]", "a", "city", "[SEP]"]
SPLITS = {"train": 40, "dev": 16, "test": 8}


@pytest.fixture(scope="module")
def served():
    repositories = (
        bert(BERT, BERT_SHA),
        bert(GATED, SHA, gated=True),
        classifier(CLASSIFIER, SHA, ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")),
        wikitext(PROFILE.corpus.hub.revision),
        glue(PROFILE.tasks.hub.revision),
    )
    with serve_hub(*repositories) as hub:
        yield hub


@pytest.fixture(scope="module")
def client(served, tmp_path_factory):
    client = Client(served.endpoint, tmp_path_factory.mktemp("hub"))
    yield client
    client.close()


@pytest.fixture
def hub(served, client):
    """The server without faults or memory, before an empty cache."""
    for folder in client.home.iterdir():
        shutil.rmtree(folder)
    served.faults.clear()
    served.requests.clear()
    return served


def asked_of(hub, name: str) -> list[str]:
    return [line for line in hub.requests if f"/{name}/" in line]


def check_broken_cache(client) -> None:
    """Every file in the cache is whole, and none is half a download."""
    assert not list(client.home.rglob("*.incomplete"))
    for blob in client.home.glob("hub/*/blobs/*"):
        content = blob.read_bytes()
        git_object = b"blob %d\0" % len(content) + content
        assert blob.name in (hashlib.sha256(content).hexdigest(), hashlib.sha1(git_object).hexdigest())


def test_the_tokenizer_is_the_models_own_at_the_pinned_revision(hub, client):
    assert len(VOCABULARY) == VOCABULARY_SIZE
    assert client.ask("tokenizer") == TOKENS
    requests = asked_of(hub, BERT)
    assert len(requests) >= 3 and all(BERT_SHA in line for line in requests)


@pytest.mark.long
def test_the_tokenizer_equals_the_one_of_from_pretrained(hub, client):
    assert client.ask("transformers", BERT_SHA, BERT) == client.ask("tokenizer")[1:-1] == TOKENS[1:-1]


def test_the_teacher_has_the_models_weights_and_loads_no_more(hub, client):
    stored = load(hub.repositories["models", BERT].files["model.safetensors"])
    sums = client.ask("teacher")
    assert sums["bert.encoder.layer.1.output.LayerNorm.weight"] == pytest.approx(24)  # ones, stored as gamma
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.transform.dense.weight"):
        assert sums[name] == pytest.approx(stored[name].double().sum().item())
    files = {line.rsplit("/", 1)[1] for line in asked_of(hub, BERT) if "/resolve/" in line}
    assert files == {"config.json", "model.safetensors"}


def test_the_profiles_corpus_streams_all_articles(hub, client):
    found = client.ask("corpus")
    assert [document["title"] for document in found] == [f"Article {number}" for number in range(60)]
    paragraph = "the king of old rome ruled the river . it flows to the sea , and the capital is a city ."
    assert {document["text"] for document in found} == {"\n".join([paragraph] * 4)}
    assert all(PROFILE.corpus.hub.revision in line for line in asked_of(hub, "Salesforce/wikitext"))
    assert not list(client.home.rglob("*.parquet"))


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[] if task in ("cola", "mnli", "stsb") else pytest.mark.long) for task in TASKS]
)
def test_the_profiles_tasks_have_their_splits_columns_and_labels(hub, client, task):
    splits = client.ask("task_rows", task)
    names = ["train", *TASKS[task].dev_splits, *TASKS[task].test_splits]
    assert {name: len(rows) for name, rows in splits.items()} == {name: SPLITS[name.split("_")[0]] for name in names}
    first, last = splits["train"][0], splits["train"][-1]
    assert list(first) == [*TASKS[task].columns, "label", "idx"]
    assert (first["label"], last["idx"]) == (0, 39)
    assert first[TASKS[task].columns[0]] == "The the is the the of number 0 ."
    if task == "stsb":
        assert [row["label"] for row in splits["dev"][9:12]] == [4.5, 5.0, 0.0]
    assert all("label" not in row for row in splits[names[-1]])
    assert all(PROFILE.tasks.hub.revision in line for line in asked_of(hub, "nyu-mll/glue"))


def test_a_table_of_ones_own_may_be_a_dataset_of_the_hub(hub, client):
    labels, splits = client.ask("own_rows", PROFILE.tasks.hub.revision)
    assert labels == ["not_equivalent", "equivalent"]
    assert {split: len(rows) for split, rows in splits.items()} == SPLITS
    assert splits["train"][1]["label"] == 1 and "label" not in splits["test"][0]
    assert any("/mrpc/train-" in line for line in asked_of(hub, "nyu-mll/glue"))
    assert "tasks.mine.data.train: hub" in client.ask("own_rows", ABSENT)


def test_a_finetuned_teacher_and_a_student_come_from_the_hub(hub, client):
    assert client.ask("finetuned", "mnli", CLASSIFIER, SHA) == ["entailment", "neutral", "contradiction"]
    assert client.ask("start", BERT, BERT_SHA) == client.ask("teacher")
    assert "wrong number of outputs (got 3); allowed: 2" in client.ask("finetuned", "rte", CLASSIFIER, SHA)


def test_what_is_cached_loads_without_the_hub(hub, client):
    questions = ("teacher",), ("task_rows", "cola"), ("own_rows", PROFILE.tasks.hub.revision)
    first = [client.ask(*question) for question in questions]
    assert not any(isinstance(answer, str) for answer in first)
    unreachable = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert [client.ask(*question, **unreachable) for question in questions] == first
    assert "the cache holds another revision only" in client.ask("own_rows", ABSENT, **unreachable)
    hub.faults.append(Fault("", status=503))
    assert "the cache holds another revision only" in client.ask("own_rows", ABSENT)


QUESTIONS = {"tokenizer": BERT, "teacher": BERT, "task_rows": "nyu-mll/glue", "corpus": "Salesforce/wikitext"}
ARGUMENTS = {"task_rows": ("rte",)}
FILE = "GET .*(tokenizer.json|/lfs/)"
PASSING = {
    "a file answers 503": Fault(FILE, times=1, status=503),
    "listings answer 500 twice": Fault("GET /api/.*/(tree|revision)/", times=2, status=500),
    "a download is cut half-way": Fault(FILE, times=1, cut=True),
    "a connection is torn off": Fault(FILE, times=1, reset=True),
    "an answer is late": Fault(FILE, times=1, delay_s=1.5),
}
QUICK = {"a file answers 503": "tokenizer", "a connection is torn off": "teacher"}


def cases(faults, quick):
    """Each fault for each question; those that `quick` does not name take long."""
    pairs = [(question, fault) for fault in faults for question in QUESTIONS]
    return [pytest.param(*pair, marks=[] if quick.get(pair[1]) == pair[0] else pytest.mark.long) for pair in pairs]


@pytest.mark.parametrize(("question", "fault"), cases(PASSING, QUICK | {"a download is cut half-way": "corpus"}))
def test_passing_faults_are_waited_out(hub, client, question, fault):
    hub.faults.append(replace(PASSING[fault]))
    answer = client.ask(question, *ARGUMENTS.get(question, ()))
    assert hub.faults[0].times == 0
    hub.faults.clear()
    check_broken_cache(client)
    assert not isinstance(answer, str)
    assert answer == client.ask(question, *ARGUMENTS.get(question, ()))


LASTING = {
    "all files answer 502": (Fault(FILE, status=502), "server error 502 Bad Gateway; try again later"),
    "all downloads are cut": (
        Fault(FILE, cut=True),
        "connection error: peer closed connection without sending",
    ),
    "all connections are torn off": (
        Fault(FILE, reset=True),
        "connection error: [Errno 104] Connection reset",
    ),
    "all answers are late": (
        Fault(FILE, delay_s=1.5),
        "no answer in time; raise HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TI",
    ),
}


@pytest.mark.parametrize(("question", "fault"), cases(LASTING, QUICK | {"all downloads are cut": "task_rows"}))
def test_lasting_faults_end_in_one_line_and_leave_nothing_broken(hub, client, question, fault):
    planted, reason = LASTING[fault]
    hub.faults.append(replace(planted))
    line = client.ask(question, *ARGUMENTS.get(question, ()))
    check_unclear(line, question, reason)
    check_broken_cache(client)
    hub.faults.clear()
    assert not isinstance(client.ask(question, *ARGUMENTS.get(question, ())), str)
    check_broken_cache(client)


def check_unclear(line: str, question: str, reason: str, name: str | None = None) -> None:
    """One line with the key, the repository, its revision, the reason and a way out."""
    keys = {"corpus": "corpus.source: hub: ", "task_rows": "tasks.source: hub: "}
    assert line.startswith(keys.get(question, "teacher.hub.model: ") + (name or QUESTIONS[question]) + " ("), line
    assert reason in line and "\n" not in line and "); fix: check " in line and len(line) < 500, line


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_absent_revision_is_reported(hub, client, question):
    line = client.ask(question, *ARGUMENTS.get(question, ()), ABSENT)
    check_unclear(line, question, f"{ABSENT}) cannot be loaded from the Hub (the repository has no such revision);")


@pytest.mark.parametrize("question", ["tokenizer", "teacher"])
def test_an_absent_or_gated_model_is_reported(hub, client, question):
    line = client.ask(question, SHA, "someone/none")
    check_unclear(line, question, "there is no such repository, or it is private and HF_TOKEN holds", "someone/none")
    line = client.ask(question, SHA, GATED)
    check_unclear(line, question, f"{SHA}) cannot be loaded from the Hub (it is gated: accept its conditions", GATED)
    assert not isinstance(client.ask(question, SHA, GATED, HF_TOKEN="hf_of_a_test"), str)


@pytest.mark.long
def test_a_stage_without_access_prints_one_line_and_no_output(hub, tmp_path):
    tree = shrunk_profile()
    tree["teacher"]["hub"] = {"model": GATED, "revision": SHA}
    project, variables = copy_project(tmp_path / "project"), environment(hub.endpoint, tmp_path / "home")
    write_params(project, tree)
    refused = run_in(project, variables, "stages.prepare_tokenizer")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"prepare_tokenizer: teacher.hub.model: {GATED} ({SHA}) cannot be loaded")
    assert len(refused.stderr.splitlines()) == 1 and "HF_TOKEN" in refused.stderr
    assert not (project / "data" / "tokenizer").exists()
    assert run_in(project, variables | {"HF_TOKEN": "hf_of_a_test"}, "stages.prepare_tokenizer").returncode == 0
    written = project / "reports/metrics/prepare_tokenizer.json"
    assert json.loads(written.read_text()) == {"tokens": VOCABULARY_SIZE}


def run_in(project, variables, *command):
    command = [sys.executable, "-m", *command]
    return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, timeout=500)


def shrunk_profile() -> dict:
    """profiles/bert-base.yaml with its sources, all nine tasks, fewer students and steps, and models of others."""
    tree = merged_profile("bert-base", ROOT)
    tree["corpus"] |= {"max_documents": 50, "heldout_every": 10}
    few = {"epochs": 1, "max_steps": 2, "batch_size": 8, "learning_rate": 1e-4}
    student = tree["students"]["tinybert4"]
    student["architecture"] = {"layers": 2, "width": 24, "heads": 3, "feed_forward": 48, "dropout": 0.1}
    student["init"] = {"hub": {"model": BERT, "revision": BERT_SHA}}
    tree["general"] = {"students": ["lazy", "tinybert4"], "training": few}
    tree["domain"]["students"] = ["lazy"]
    for task in TASKS:
        tree["tasks"][task]["teacher"] = few
    tree["tasks"] |= {"run": list(TASKS)}
    tree["tasks"]["mnli"]["finetuned_teacher"] = {"hub": {"model": CLASSIFIER, "revision": SHA}}
    return tree


@pytest.mark.long
def test_the_profiles_stages_run_on_what_the_hub_serves(hub, tmp_path):
    project, variables = copy_project(tmp_path / "project"), environment(hub.endpoint, tmp_path / "home")
    write_params(project, shrunk_profile())
    stages = ("prepare_tokenizer", "prepare_teacher", "general_distill", "prepare_task", "finetune_teacher")
    finished = run_in(project, variables, "dvc", "repro", *stages)
    assert finished.returncode == 0, finished.stderr
    corpus = json.loads((project / "reports/metrics" / "prepare_corpus.json").read_text())
    assert corpus["documents"] == {"train": 45, "heldout": 5}
    for task in TASKS:
        counts = json.loads((project / "reports/metrics" / "prepare_task" / f"{task}.json").read_text())["examples"]
        assert counts == {split: SPLITS[split.split("_")[0]] for split in counts} and len(counts) in (3, 5)
        assert (project / task_model(task, PROFILE.seed, "teacher") / "model.safetensors").is_file()
    # Neither is trained, so both are what was served.
    served = load(hub.repositories["models", CLASSIFIER].files["model.safetensors"])
    kept = load_file(project / task_model("mnli", PROFILE.seed, "teacher") / "model.safetensors")
    assert torch.equal(kept["classifier.weight"], served["classifier.weight"][[2, 1, 0]])
    served = load(hub.repositories["models", BERT].files["model.safetensors"])
    kept = load_file(project / "models" / "teacher" / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(kept[name], served[name])


def test_an_absent_data_set_is_reported(hub, client):
    del hub.repositories["datasets", "nyu-mll/glue"]
    try:
        check_unclear(client.ask("task_rows", "rte"), "task_rows", "doesn't exist on the Hub or cannot be accessed")
    finally:
        hub.repositories["datasets", "nyu-mll/glue"] = glue(PROFILE.tasks.hub.revision)
