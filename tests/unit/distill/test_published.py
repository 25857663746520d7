"""`reduction: published` against the formulas of the published code, in float64 NumPy, padding included."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.builders import STUDENT, TEACHER, classifier
from tinybert.distill.batches import micro_batches
from tinybert.distill.loop import Distiller, LiveTeacher, start_accelerator
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.outputs import Batch, OutputSpec

LENGTH, HEADS = 16, STUDENT.num_attention_heads
LOSSES = {"attention": 1.0, "attention_kl": 1.0, "hidden": 1.0, "embedding": 1.0, "prediction": 1.0}
LAYERS = {1: 2, 2: 4}  # student layer -> teacher layer of the uniform map


def padded_rows() -> Batch:
    """Rows of 11, 3 and 6 tokens, padded to the longest."""
    lengths, rng = [11, 3, 6], np.random.default_rng(0)
    mask = torch.arange(11)[None] < torch.tensor(lengths)[:, None]
    ids = torch.from_numpy(rng.integers(5, STUDENT.vocab_size, size=(3, 11))) * mask
    return Batch(ids, mask, torch.zeros_like(ids), labels=torch.tensor([0, 1, 1]))


def loss_of(losses=LOSSES, **settings) -> DistillationLoss:
    torch.manual_seed(3)
    config = DistillationConfig(losses, padded_tokens=LENGTH, temperature=2.0, **settings)
    return DistillationLoss(config, STUDENT, TEACHER).double()


def outputs(model, batch: Batch) -> dict[str, list[np.ndarray]]:
    """Hidden states (batch, LENGTH, width), scores (batch, heads, LENGTH, LENGTH) and logits, computed with padding.

    Written out from the weights: embeddings, then layer by layer, as Hugging Face's BERT does.
    """
    weights = {name: tensor.detach().numpy() for name, tensor in model.double().state_dict().items()}

    def linear(name, values):
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, values):
        centered = values - values.mean(-1, keepdims=True)
        scaled = centered / np.sqrt(values.var(-1, keepdims=True) + model.config.layer_norm_eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(values):
        return torch.nn.functional.gelu(torch.from_numpy(values)).numpy()

    further = (0, 0), (0, LENGTH - batch.input_ids.shape[1])
    mask = np.pad(batch.mask.numpy(), further)
    ids = np.where(mask, np.pad(batch.input_ids.numpy(), further), model.config.pad_token_id)
    embedded = weights["bert.embeddings.word_embeddings.weight"][ids]
    embedded = embedded + weights["bert.embeddings.position_embeddings.weight"][:LENGTH]
    embedded = embedded + weights["bert.embeddings.token_type_embeddings.weight"][0]
    states, scores = [norm("bert.embeddings.LayerNorm", embedded)], []
    for number in range(model.config.num_hidden_layers):
        layer, hidden = f"bert.encoder.layer.{number}", states[-1]
        split = [
            linear(f"{layer}.attention.self.{part}", hidden).reshape(len(ids), LENGTH, HEADS, -1).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        ]
        scores.append(split[0] @ split[1].transpose(0, 1, 3, 2) / np.sqrt(split[0].shape[-1]))
        exponents = np.exp(scores[-1]) * mask[:, None, None, :]
        context = exponents / exponents.sum(-1, keepdims=True) @ split[2]
        context = context.transpose(0, 2, 1, 3).reshape(len(ids), LENGTH, -1)
        projected = linear(f"{layer}.attention.output.dense", context)
        attended = norm(f"{layer}.attention.output.LayerNorm", projected + hidden)
        wide = gelu(linear(f"{layer}.intermediate.dense", attended))
        states.append(norm(f"{layer}.output.LayerNorm", linear(f"{layer}.output.dense", wide) + attended))
    logits = linear("classifier", np.tanh(linear("bert.pooler.dense", states[-1][:, 0])))
    return {"hidden": states, "scores": scores, "logits": [logits], "mask": [mask]}


def log_softmax(values: np.ndarray) -> np.ndarray:
    shifted = values - values.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def published_terms(student: dict, teacher: dict, loss: DistillationLoss) -> dict[str, float]:
    """The formulas of task_distill.py (TinyBERT) and of the study's attention KL."""
    mask = student["mask"][0]
    projections = {name: module.weight.detach().numpy() for name, module in loss.projections.items()}
    terms = dict.fromkeys(LOSSES, 0.0)
    embedded = student["hidden"][0] @ projections["embedding"].T
    terms["embedding"] = ((embedded - teacher["hidden"][0]) ** 2).mean()
    for ours, theirs in LAYERS.items():
        projected = student["hidden"][ours] @ projections["hidden"].T
        terms["hidden"] += ((projected - teacher["hidden"][theirs]) ** 2).mean()
        # torch.where(attention <= -1e2, 0, attention): the mask of -10,000 is part of the published scores
        pair = [
            np.where(mask[:, None, None, :], scores, 0.0)
            for scores in (student["scores"][ours - 1], teacher["scores"][theirs - 1])
        ]
        terms["attention"] += ((pair[0] - pair[1]) ** 2).mean()
        log_student, log_teacher = map(log_softmax, pair)
        terms["attention_kl"] += (np.exp(log_teacher) * (log_teacher - log_student)).sum() / len(mask)
    targets = np.exp(log_softmax(teacher["logits"][0] / 2.0))
    terms["prediction"] = -(targets * log_softmax(student["logits"][0] / 2.0)).mean()
    return terms


def test_all_terms_equal_the_published_formulas():
    student, teacher, batch, loss = classifier(seed=1).double(), classifier(TEACHER, seed=2), padded_rows(), loss_of()
    expected = published_terms(outputs(student, batch), outputs(teacher, batch), loss)
    live = LiveTeacher(teacher, loss)
    live.begin(start_accelerator("float32"))
    [part] = micro_batches(batch, processes=1, process=0, accumulation_steps=1)
    total, terms = Distiller(student.eval(), loss)(part, live(batch))
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=1e-9)
    assert total.item() == pytest.approx(sum(expected.values()), rel=1e-9)


def test_micro_batches_add_up_to_the_batch():
    student, teacher = classifier(seed=1).double(), classifier(TEACHER, seed=2).double()
    batch, loss = padded_rows(), loss_of()
    live = LiveTeacher(teacher, loss)
    live.begin(start_accelerator("float32"))
    sums = []
    for steps in (1, 3):
        parts = micro_batches(batch, processes=1, process=0, accumulation_steps=steps)
        assert len(parts) == steps
        sums.append(sum(Distiller(student.eval(), loss)(part, live(part.batch))[0].item() for part in parts))
    assert sums[0] == pytest.approx(sums[1], rel=1e-12)


def test_padding_is_the_models_own_padding_token():
    student, batch = classifier(replace(STUDENT, pad_token_id=4), seed=1).double().eval(), padded_rows()
    found = student(batch.padded_to(LENGTH), OutputSpec(hidden=frozenset({0}))).hidden[0].detach().numpy()
    np.testing.assert_allclose(found, outputs(student, batch)["hidden"][0].reshape(found.shape), rtol=1e-12, atol=1e-14)


def test_real_tokens_see_nothing_of_the_padding():
    student, batch = classifier(seed=1).double().eval(), padded_rows()
    wide = batch.padded_to(LENGTH)
    assert len(wide.real.index) == 3 * LENGTH
    torch.testing.assert_close(student(wide).logits, student(batch).logits, rtol=1e-12, atol=1e-14)
