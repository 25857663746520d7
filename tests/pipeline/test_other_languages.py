"""The real `dvc repro` in German: a cased teacher from a folder, local text and a table; nothing loses its capitals."""

import json
import random
from pathlib import Path

import pytest
import yaml

from tests.support.builders import masked_lm
from tests.support.outputs import check_whole, few_students_params
from tests.support.project import TASK, copy_project, run, write_params
from tinybert.data.tokenizer import SPECIAL_TOKENS, folder_tokenizer
from tinybert.models.bert import BertConfig
from tinybert.models.model_folders import save_model

pytestmark = pytest.mark.long
WORDS = "Die Größe der Straße ist schön und das Äußere im Süden war früher größer als ein Fluß Haus Bär"
ENDINGS = ["##n", "##en", "##er"]
STOP_WORDS = "die der ist und das im war als ein"


def write_sources(folder: Path) -> None:
    """A teacher with vocab.txt, a corpus, a quiz, stop words and a table."""
    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(WORDS.split(), k=rng.randint(4, 10))) + "."

    (folder / "teacher").mkdir(parents=True)
    vocabulary = [*SPECIAL_TOKENS, ".", *WORDS.split(), *ENDINGS]
    save_model(masked_lm(BertConfig(len(vocabulary), 24, 2, 2, 32, max_position_embeddings=128)), folder / "teacher")
    articles = [{"title": "Haus", "text": " ".join(text() for _ in range(12))} for _ in range(60)]
    rows = [f"{text()}\t{rng.choice(('schön', 'häßlich'))}" for _ in range(60)]
    quiz = {"subject": "natur", "prompt": "Die [MASK] ist schön.", "answer": "Größe"}
    files = {
        "teacher/vocab.txt": vocabulary,
        "corpus.jsonl": map(json.dumps, articles),
        "urteile.tsv": ["text\turteil", *rows],
        "stop_words.txt": [STOP_WORDS],
        "quiz.jsonl": [json.dumps(quiz)],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = copy_project(tmp_path_factory.mktemp("project"))
    write_sources(folder / "local")
    tree = few_students_params() | {"language": "de", "seeds": [42]}
    tree["corpus"] |= {"source": "local", "local": {"files": ["local/corpus.jsonl"]}}
    tree["teacher"]["source"] = "local"
    tree["filter"]["subjects"] = {"natur": ["Fluß", "Bär"], "stadt": ["Straße", "Haus"]}
    tree["domain_evaluation"]["quiz"] = {"source": "local", "local": {"file": "local/quiz.jsonl"}}
    data = {"train": "local/urteile.tsv", "texts": ["text"], "label": "urteil"}
    tree["tasks"] |= {"run": ["urteile"], "urteile": TASK | {"data": data, "augmented_copies": 3}}
    tree["augmentation"]["substitution"]["stop_words"] = "local/stop_words.txt"
    write_params(folder, tree)
    done = run(folder, "dvc", "repro")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_all_outputs_are_whole(project):
    check_whole(project)


def test_tokens_keep_capitals_and_umlauts(project):
    tokenizer = folder_tokenizer(project / "models/final/urteile/tinybert4")
    tokens = tokenizer.encode("Die Größe der Straßen").tokens
    assert tokens == ["[CLS]", "Die", "Größe", "der", "Straße", "##n", "[SEP]"]
    assert json.loads((project / "metrics/tokenize/general.json").read_text())["train"]["unknown_share"] == 0.0


def test_augmentation_replaces_german_words_but_no_stop_words(project):
    changed, original = set(), []
    for row in map(json.loads, (project / "data/augmented/urteile/train.jsonl").read_text().splitlines()):
        words = row["text"].rstrip(".").split()
        if row.get("augmented"):
            changed |= {before for before, after in zip(original, words, strict=True) if before != after}
        else:
            original = words
    assert {"Größe", "Äußere", "früher"} <= changed
    assert not {word for word in changed if word.lower() in STOP_WORDS.split()}


def test_cards_name_the_language_and_the_model_answers(project):
    from transformers import pipeline

    folder = project / "models/final/urteile/tinybert4"
    front = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert front["language"] == "de"
    (answer,) = pipeline("text-classification", str(folder), truncation=True, top_k=None)(["Die Straße ist schön."])
    assert {one["label"] for one in answer} == {"schön", "häßlich"}
