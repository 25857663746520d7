"""Teachers of other families: transformers' own logits, classes by name, and what is refused."""

import json
import random
import sys

import numpy as np
import pytest
import torch

from tests.support.builders import task_with
from tests.support.families import DECODERS, FAMILIES, WORDS, save_family
from tinybert.config.tasks import MULTILABEL, TASKS
from tinybert.data.encoding import encode
from tinybert.distill.batches import PREDICTION_BATCH_SIZE
from tinybert.models.foreign import PredictedTeacher, load_foreign
from tinybert.models.model_folders import load_task_model
from tinybert.models.outputs import Batch, OutputSpec
from tinybert.pipeline.errors import UserError

LIMIT_TOKENS = 24  # shorter than the longest rows
RTE = TASKS["rte"]


def rows(count=9, seed=0) -> list[dict]:
    """Pairs of texts of very different lengths."""
    rng = random.Random(seed)

    def text():
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 16)))

    return [{"idx": idx, "sentence1": text(), "sentence2": text(), "label": idx % 2} for idx in range(count)]


def load(folder, task=RTE, **settings):
    return load_foreign(folder, task, key="tasks.rte.finetuned_teacher", **settings)


def logits_of(model, task, sentences) -> np.ndarray:
    """As `predict` asks: longest first, padded with token 0."""
    encoded = encode(sentences, task, model.tokenizer.backend_tokenizer, max_length_tokens=LIMIT_TOKENS)
    found = np.empty((len(sentences), len(model.labels)), dtype=np.float32)
    with torch.inference_mode():
        for places, batch in encoded.batches(PREDICTION_BATCH_SIZE):
            found[places] = model(batch).logits.numpy()
    return found


@pytest.mark.parametrize("family", [*FAMILIES, *DECODERS])
@pytest.mark.parametrize("task", ["rte", "cola"])
def test_logits_are_those_of_transformers_pipeline(tmp_path, family, task):
    from transformers import pipeline

    about, sentences = TASKS[task], rows()
    save_family(family, tmp_path, about.labels)
    if task == "cola":
        sentences = [row | {"sentence": row["sentence1"]} for row in sentences]
        texts = [{"text": row["sentence"]} for row in sentences]
    else:
        texts = [{"text": row["sentence1"], "text_pair": row["sentence2"]} for row in sentences]
    ours = logits_of(load(tmp_path, about), about, sentences)
    published = pipeline("text-classification", str(tmp_path), truncation="longest_first", max_length=LIMIT_TOKENS)
    found = published(texts, top_k=None, function_to_apply="none")  # one row at a time: without padding
    theirs = [[{one["label"]: one["score"] for one in row}[label] for label in about.labels] for row in found]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.ptp(ours[:, 0]) > 0.01  # the rows differ


@pytest.mark.parametrize("family", FAMILIES)
def test_first_token_states_are_those_of_transformers(tmp_path, family):
    model = load(save_family(family, tmp_path, RTE.labels))
    batch = encode(rows(3), RTE, model.tokenizer.backend_tokenizer, max_length_tokens=LIMIT_TOKENS).batch([0, 1, 2])
    with torch.inference_mode():
        found = model(batch, OutputSpec(hidden=frozenset({0, 2})))
        for row in range(3):
            length = int(batch.mask[row].sum())
            alone = Batch(
                *(part[row : row + 1, :length] for part in (batch.input_ids, batch.mask, batch.token_type_ids))
            )
            inputs = {"input_ids": alone.input_ids, "output_hidden_states": True}
            inputs |= {"token_type_ids": alone.token_type_ids} if model.takes_segments else {}
            states = model.model(**inputs).hidden_states
            for layer in (0, 2):
                torch.testing.assert_close(found.hidden[layer][row], states[layer][0, 0], atol=1e-5, rtol=1e-4)
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 2)


@pytest.mark.parametrize("family", ["roberta", "deberta-v2", "bert"])
def test_a_saved_teacher_is_the_same_again(tmp_path, family):
    (tmp_path / "saved").mkdir()
    model = load(save_family(family, tmp_path, ("not_entailment", "ENTAILMENT")))
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert model.order.tolist() == again.order.tolist() == [1, 0]
    assert np.array_equal(logits_of(again, RTE, rows()), logits_of(model, RTE, rows()))
    assert again.parameter_count == model.parameter_count == sum(part.numel() for part in model.model.parameters())


def test_classes_are_matched_by_name(tmp_path):
    save_family("distilbert", tmp_path / "a", ("entailment", "not_entailment"))
    save_family("distilbert", tmp_path / "b", ("Not-Entailment", "Entailment"))
    first, second = (logits_of(load(tmp_path / name), RTE, rows()) for name in "ab")
    assert np.array_equal(first, second[:, ::-1])  # the weights are the same


@pytest.mark.parametrize(("family", "tokens"), [("roberta", 38), ("electra", 40), ("xlm-roberta", 38)])
def test_positions_behind_the_paddings_are_not_counted(tmp_path, family, tokens):
    model = load(save_family(family, tmp_path, RTE.labels))
    ids = torch.full((1, tokens), 5)
    model(Batch(ids, ids > 0, torch.zeros_like(ids)))
    model.config.check_length(tokens, "max_length_tokens")
    with pytest.raises(
        UserError, match=rf"^max_length_tokens: .*\(got {tokens + 1} tokens\); allowed: at most {tokens},"
    ):
        model.config.check_length(tokens + 1, "max_length_tokens")
    longer = torch.full((1, tokens + 1), 5)
    with pytest.raises((IndexError, RuntimeError)):
        model(Batch(longer, longer > 0, torch.zeros_like(longer)))


def test_a_new_head_has_the_tasks_classes_on_the_encoder(tmp_path):
    save_family("roberta", tmp_path, head=False)
    torch.manual_seed(3)
    model = load_foreign(tmp_path, task_with("a", "b", "c"), key="k", with_head=False)
    torch.manual_seed(3)
    again = load_foreign(tmp_path, task_with("a", "b", "c"), key="k", with_head=False)
    assert model.model.config.id2label == {0: "a", 1: "b", 2: "c"}
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).state_dict()
    found = {name.removeprefix("roberta."): part for name, part in model.model.state_dict().items()}
    assert encoder and all(torch.equal(part, found[name]) for name, part in encoder.items())


def test_kinds_of_tasks_are_kept(tmp_path):
    """A new head of several labels is loaded as such again, by transformers too; a score has one output."""
    save_family("electra", tmp_path, head=False)
    (tmp_path / "tags").mkdir()
    tags = load_foreign(tmp_path, task_with("a", "b", "c", kind="multilabel"), key="k", with_head=False)
    tags.save(tmp_path / "tags")
    again = load_foreign(tmp_path / "tags", task_with("c", "b", "a", kind="multilabel"), key="k")
    assert again.config.problem_type == again.model.config.problem_type == "multi_label_classification"
    assert again.order.tolist() == [2, 1, 0]
    with pytest.raises(UserError, match=r"^k: wrong kind of task \(got multi_label_classification\)"):
        load_foreign(tmp_path / "tags", task_with("a", "b", "c"), key="k")
    score = load_foreign(tmp_path, task_with(kind="regression"), key="k", with_head=False)
    batch = encode(rows(2), RTE, score.tokenizer.backend_tokenizer, max_length_tokens=LIMIT_TOKENS).batch([0, 1])
    assert score(batch).logits.shape == (2, 1)


def cut(folder, ending: str) -> None:
    from safetensors.torch import load_file, save_file

    stored = load_file(folder / "model.safetensors")
    save_file({name: part for name, part in stored.items() if not name.endswith(ending)}, folder / "model.safetensors")


def test_what_cannot_be_loaded_is_one_line(tmp_path):
    folder = save_family("roberta", tmp_path, RTE.labels)
    config = json.loads((folder / "config.json").read_text())

    def line(**settings) -> str:
        with pytest.raises(UserError) as caught:
            load(folder, **settings)
        assert "\n" not in str(caught.value) and str(caught.value).startswith("tasks.rte.finetuned_teacher: ")
        return str(caught.value)

    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "yes", "1": "no"}}))
    assert "unknown classes (got yes, no); allowed: entailment, not_entailment" in line()
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "a", "1": "b", "2": "c"}}))
    assert "cannot be loaded" in line()
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nobody-knows"}))
    assert "cannot be loaded" in line()
    (folder / "config.json").write_text(json.dumps(config))
    cut(folder, "out_proj.bias")
    assert "lacks classifier.out_proj.bias and 0 more weights" in line()
    cut(folder, "layer.1.output.dense.weight")
    assert "lacks roberta.encoder.layer.1.output.dense.weight" in line(with_head=False)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "has no model.safetensors; fix: tinybert convert" in line()


def test_an_encoder_of_another_shape_is_refused(tmp_path):
    save_family("roberta", tmp_path / "model", head=False)
    path = tmp_path / "model/config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 7}))
    with pytest.raises(UserError, match=r"lacks roberta\.embeddings\.word_embeddings\.weight"):
        load(tmp_path / "model", with_head=False)


def test_a_new_head_forgets_the_kind_of_the_old_one(tmp_path):
    save_family("roberta", tmp_path / "model", ("a", "b", "c"), problem_type=MULTILABEL)
    teacher = load(tmp_path / "model", with_head=False)
    teacher.save(tmp_path / "model")
    assert load(tmp_path / "model").config.problem_type is None


def test_a_model_that_pads_on_the_left_is_refused(tmp_path):
    save_family("roberta", tmp_path / "model", RTE.labels)
    path = tmp_path / "model/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"padding_side": "left"}))
    with pytest.raises(UserError, match="a roberta cannot ignore padding on the right"):
        load(tmp_path / "model")


def test_a_foreign_teacher_is_not_loaded_as_ours(tmp_path):
    save_family("bert", tmp_path / "model", RTE.labels)
    (tmp_path / "saved").mkdir()
    load(tmp_path / "model").save(tmp_path / "saved")
    with pytest.raises(UserError, match="a task teacher with its own vocabulary"):
        load_task_model(tmp_path / "saved")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    save_family("electra", tmp_path, RTE.labels)
    stored = load_file(tmp_path / "model.safetensors")
    stored["classifier.dense.bias"][0] = float("nan")
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"classifier\.dense\.bias: has NaN or infinity"):
        load(tmp_path)


def test_code_of_a_folder_never_runs(tmp_path):
    save_family("roberta", tmp_path, RTE.labels)
    config = json.loads((tmp_path / "config.json").read_text())
    remote = {"AutoConfig": "remote.Config", "AutoModelForSequenceClassification": "remote.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": remote}))
    (tmp_path / "remote.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    assert type(load(tmp_path).model).__name__ == "RobertaForSequenceClassification"
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": remote, "model_type": "remote"}))
    with pytest.raises(UserError, match="cannot be loaded"):
        load(tmp_path)
    assert not (tmp_path / "run").exists() and "remote" not in sys.modules


def test_a_table_of_predictions_gives_rows_their_logits(tmp_path):
    logits = {"train": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "dev": torch.tensor([[5.0, 6.0]])}
    numbers = {"train": torch.tensor([7, 3]), "dev": torch.tensor([3])}
    PredictedTeacher(logits, numbers, task_with("no", "yes")).save(tmp_path)
    again = PredictedTeacher.load(tmp_path, task_with("no", "yes"))
    places = [again.places[key] for key in (("train", 3), ("dev", 3), ("train", 7))]
    ids = torch.tensor(places)[:, None]
    found = again(Batch(ids, ids >= 0, torch.zeros_like(ids))).logits
    assert found.tolist() == [[3.0, 4.0], [5.0, 6.0], [1.0, 2.0]]
