"""What the tests' Hub serves: small files under the names, columns and splits of the real repositories."""

import io
import json
from dataclasses import asdict
from pathlib import Path
from string import ascii_lowercase, digits

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from ruamel.yaml import YAML
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from tests.support.hub_server import Repository
from tinybert.models.bert import BertConfig, MaskedLM, SequenceClassifier

WORDS = ["the", "capital", "city", "of", "france", "is", "paris", "king", "ruled", "old", "rome", "river", "film"]
VOCABULARY = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *WORDS, *ascii_lowercase]
VOCABULARY += [f"##{character}" for character in ascii_lowercase + digits]

ENTAILMENT = ["entailment", "not_entailment"]
MNLI_SPLITS = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
SPLITS = ("train", "validation", "test")
# Per configuration of nyu-mll/glue: text columns, class names (None: a score), splits.
GLUE = {
    "ax": (("premise", "hypothesis"), ["entailment", "neutral", "contradiction"], ("test",)),
    "cola": (("sentence",), ["unacceptable", "acceptable"], SPLITS),
    "mnli": (("premise", "hypothesis"), ["entailment", "neutral", "contradiction"], MNLI_SPLITS),
    "mrpc": (("sentence1", "sentence2"), ["not_equivalent", "equivalent"], SPLITS),
    "qnli": (("question", "sentence"), ENTAILMENT, SPLITS),
    "qqp": (("question1", "question2"), ["not_duplicate", "duplicate"], SPLITS),
    "rte": (("sentence1", "sentence2"), ENTAILMENT, SPLITS),
    "sst2": (("sentence",), ["negative", "positive"], SPLITS),
    "stsb": (("sentence1", "sentence2"), None, SPLITS),
    "wnli": (("sentence1", "sentence2"), ["not_entailment", "entailment"], SPLITS),
}
GLUE_ROWS = {"train": 40, "validation": 16, "test": 8}
ARTICLES = 60


def write_model(folder: Path, repository: Repository) -> None:
    """Writes the files of a repository into a new folder."""
    folder.mkdir(parents=True)
    for name, content in repository.files.items():
        (folder / name).write_bytes(content)


def wikitext(sha: str) -> Repository:
    """Salesforce/wikitext with its raw WikiText-103: train in two files, rows as WikiText breaks lines."""
    config = "wikitext-103-raw-v1"
    rows = [row for number in range(ARTICLES) for row in _article(number)]
    half = len(rows) // 2
    files = {
        f"{config}/train-00000-of-00002.parquet": _parquet({"text": rows[:half]}),
        f"{config}/train-00001-of-00002.parquet": _parquet({"text": rows[half:]}),
    }
    counts = {"train": len(rows)}
    for split in ("validation", "test"):
        files[f"{config}/{split}-00000-of-00001.parquet"] = _parquet({"text": _article(1)})
        counts[split] = len(_article(1))
    features = [{"name": "text", "dtype": "string"}]
    files["README.md"] = _card({config: (features, counts)})
    return Repository("datasets", "Salesforce/wikitext", sha, files)


def _article(number: int) -> list[str]:
    text = " the king of old rome ruled the river . it flows to the sea , and the capital is a city . \n"
    return ["", f" = Article {number} = \n", "", *[text] * 3, "", " = = A section = = \n", "", text]


def glue(sha: str) -> Repository:
    """nyu-mll/glue: a folder a task, test rows labeled -1."""
    files, tables = {}, {}
    for name, (columns, labels, splits) in GLUE.items():
        counts = {split: GLUE_ROWS[split.split("_")[0]] for split in splits}
        for split, count in counts.items():
            table = _glue_table(columns, labels, count, is_test=split.startswith("test"))
            files[f"{name}/{split}-00000-of-00001.parquet"] = _parquet(table)
        tables[name] = (_glue_features(columns, labels), counts)
    files["README.md"] = _card(tables)
    return Repository("datasets", "nyu-mll/glue", sha, files)


def _glue_table(columns: tuple[str, ...], labels: list[str] | None, count: int, *, is_test: bool) -> dict:
    words = [(WORDS[i % len(WORDS)], WORDS[i * 3 % len(WORDS)]) for i in range(count)]
    texts = [f"The {first} is the {second} of number {i} ." for i, (first, second) in enumerate(words)]
    table = {column: texts[place:] + texts[:place] for place, column in enumerate(columns)}
    if labels is None:
        table["label"] = pa.array([-1.0 if is_test else i % 11 / 2 for i in range(count)], pa.float32())
    else:
        table["label"] = pa.array([-1 if is_test else i % len(labels) for i in range(count)], pa.int64())
    return table | {"idx": pa.array(range(count), pa.int32())}


def _glue_features(columns: tuple[str, ...], labels: list[str] | None) -> list[dict]:
    label = {"dtype": "float32"}
    if labels:
        label = {"dtype": {"class_label": {"names": {str(i): name for i, name in enumerate(labels)}}}}
    texts = [{"name": column, "dtype": "string"} for column in columns]
    return [*texts, {"name": "label"} | label, {"name": "idx", "dtype": "int32"}]


def _parquet(table: dict) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer)
    return buffer.getvalue()


def _card(tables: dict[str, tuple[list[dict], dict[str, int]]]) -> bytes:
    """README.md of a data set, whose head lists configurations, features, splits and files."""
    infos, configs = [], []
    for name, (features, counts) in tables.items():
        splits = [{"name": split, "num_bytes": 1000, "num_examples": count} for split, count in counts.items()]
        sizes = {"download_size": 1000, "dataset_size": 1000}
        infos.append({"config_name": name, "features": features, "splits": splits} | sizes)
        files = [{"split": split, "path": f"{name}/{split}-*"} for split in counts]
        configs.append({"config_name": name, "data_files": files})
    stream = io.StringIO()
    YAML().dump({"dataset_info": infos, "configs": configs}, stream)
    return f"---\n{stream.getvalue()}---\n# Data\n".encode()


def bert(name: str, sha: str, **changes) -> Repository:
    """A BERT as google-bert/bert-base-uncased lies there: old weight names, no decoder, a next-sentence head."""
    torch.manual_seed(0)
    weights = {_old_name(key): tensor for key, tensor in MaskedLM(_config()).state_dict().items()}
    weights = {key: tensor for key, tensor in weights.items() if not key.startswith("cls.predictions.decoder")}
    weights |= {"cls.seq_relationship.weight": torch.zeros(2, 24), "cls.seq_relationship.bias": torch.zeros(2)}
    return Repository("models", name, sha, _model_files(weights, {"architectures": ["BertForMaskedLM"]}), **changes)


def classifier(name: str, sha: str, labels: tuple[str, ...]) -> Repository:
    """A BERT of the same vocabulary, fine-tuned to tell `labels`."""
    torch.manual_seed(1)
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(i): label for i, label in enumerate(labels)},
    }
    return Repository("models", name, sha, _model_files(SequenceClassifier(_config(), labels).state_dict(), config))


def _config() -> BertConfig:
    return BertConfig(len(VOCABULARY), 24, 2, 3, 48, max_position_embeddings=128)


def _old_name(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _model_files(weights: dict[str, torch.Tensor], config: dict) -> dict[str, bytes]:
    config |= {"model_type": "bert", "hidden_act": "gelu"} | asdict(_config())
    return {
        "README.md": b"# A model\n",
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save({name: tensor.contiguous() for name, tensor in weights.items()}, {"format": "pt"}),
        "pytorch_model.bin": b"never asked for",
        "tokenizer.json": _tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps({"do_lower_case": True, "model_max_length": 512}).encode(),
        "vocab.txt": "".join(f"{piece}\n" for piece in VOCABULARY).encode(),
    }


def _tokenizer() -> Tokenizer:
    """With the parts of the tokenizer.json there."""
    pieces = {piece: id for id, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = ("[SEP]", pieces["[SEP]"]), ("[CLS]", pieces["[CLS]"])
    tokenizer.post_processor = processors.BertProcessing(*ends)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer
