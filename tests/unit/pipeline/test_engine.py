"""Parts of a stage on a Ray cluster of two nodes on this machine; a third node joins and is killed."""

import sys
import time
from types import SimpleNamespace

import pytest
import torch

from tests.unit.augment.test_substitution import CORPUS, settings
from tinybert.augment.substitution import WordPredictor, read_sentences, replacement_candidates
from tinybert.data.domain_filter import filter_file
from tinybert.data.sequences import write_sequences
from tinybert.data.tokenizer import train_tokenizer
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.pipeline.engine import ITEMS_PER_RAY_TASK, ordered_map
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import write_jsonl

RULE = SimpleNamespace(
    subjects={"animals": ["fields", "birds"]}, matching="whole_word", ignore_case=True, min_hits=1,
    min_hits_per_1000_words=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "address", "message"),
    [
        ("spark", "", r"^TINYBERT_ENGINE: no such engine here \(got spark\); allowed: local, ray; fix: unset it, or"),
        ("ray", "127.0.0.1:1", r"^RAY_ADDRESS: no Ray cluster can be used \(got '127.0.0.1:1': .*\); allowed: HOST:PO"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, engine, address, message):
    monkeypatch.setenv("TINYBERT_ENGINE", engine)
    if address:
        pytest.importorskip("ray")
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=message) as error:
        list(ordered_map(abs, [1]))
    assert "\n" not in str(error.value)


def test_a_missing_ray_is_one_line(monkeypatch):
    monkeypatch.setenv("TINYBERT_ENGINE", "ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"got ray without its package\); .*fix: unset it, or get ray$"):
        list(ordered_map(abs, [1]))


@pytest.fixture(scope="module")
def cluster():
    """The head and a second node; stages connect as to any cluster, by RAY_ADDRESS."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # by default 15: slow beside other tests
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        started.add_node(num_cpus=1)
        patch.setenv("TINYBERT_ENGINE", "ray")
        patch.setenv("RAY_ADDRESS", started.address)
        yield started
    ray.shutdown()
    started.shutdown()


def outputs(folder, monkeypatch, engine):
    """Outputs of filter, tokenize and augment: the bytes of files, and candidate words."""
    monkeypatch.setenv("TINYBERT_ENGINE", engine)
    tokenizer = train_tokenizer([CORPUS] * 3, vocabulary_size=150)
    words = CORPUS.split()
    texts = [" ".join(words[number % 7 : number % 11 + 9]) for number in range(3 * ITEMS_PER_RAY_TASK)]
    source, kept, sequences = folder / "all.jsonl", folder / f"{engine}.jsonl", folder / engine
    write_jsonl(source, [{"title": "", "text": text} for text in texts])
    counts = filter_file(source, kept, RULE)
    lengths = SimpleNamespace(sequence_tokens=8, packing="pack")
    found = write_sequences(source, tokenizer, sequences, lengths)
    torch.manual_seed(3)
    model = MaskedLM(BertConfig(tokenizer.get_vocab_size(), 16, 2, 2, 32, max_position_embeddings=64))
    sentences = read_sentences(dict.fromkeys(texts), tokenizer, max_tokens=60)
    vectors = SimpleNamespace(nearest=lambda words, count: {word: [] for word in words})
    predictor = WordPredictor(model, tokenizer, batch_tokens=32)
    candidates = replacement_candidates(sentences, settings(), predictor, vectors)
    files = [path.read_bytes() for path in (kept, sequences / "tokens.npy", sequences / "offsets.npy")]
    return files, counts, found, {text: choices for text, (_, choices) in candidates.items()}


def test_a_cluster_gives_the_same_bytes(cluster, tmp_path, monkeypatch):
    local, remote = (outputs(tmp_path, monkeypatch, engine) for engine in ("local", "ray"))
    assert remote == local
    assert 0 < local[1]["documents"]["kept"] < local[1]["documents"]["found"] and any(local[3].values())


def test_items_of_a_node_that_fails_are_computed_by_another(cluster, tmp_path):
    failing = cluster.add_node(num_cpus=1)

    def slow(part):
        import ray

        (tmp_path / f"{part} {ray.get_runtime_context().get_node_id()}").touch()
        time.sleep(0.02)
        return part

    results = ordered_map(slow, range(8 * ITEMS_PER_RAY_TASK))
    found = [next(results)]
    while not (started := [path for path in tmp_path.iterdir() if path.name.endswith(failing.node_id)]):
        time.sleep(0.1)
    cluster.remove_node(failing, allow_graceful=False)
    found += list(results)
    assert found == list(range(8 * ITEMS_PER_RAY_TASK))
    lost = started[0].name.split()[0]
    assert len([path for path in tmp_path.iterdir() if path.name.split()[0] == lost]) == 2


def test_memory_holds_a_few_tasks_only(cluster):
    read = []
    results = ordered_map(abs, (read.append(part) or part for part in range(100 * ITEMS_PER_RAY_TASK)))
    next(results)
    assert len(read) <= 10 * ITEMS_PER_RAY_TASK
    results.close()
