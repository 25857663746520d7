"""Students cut out of a wider teacher."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.builders import TEACHER, batch, classifier, masked_lm
from tinybert.config.fields import Architecture
from tinybert.data.encoding import Encoded
from tinybert.distill import losses, task_teacher
from tinybert.distill.task_teacher import cut_classifier
from tinybert.models.bert import MaskedLM, SequenceClassifier
from tinybert.models.outputs import OutputSpec
from tinybert.models.subcloning import _fit_classifier, _fit_norm, _kept_directions, subclone
from tinybert.pipeline.errors import UserError

KEPT = [1, 3, 4, 8, 9, 11, 12, 15, 17, 18, 20, 22]  # planted: the teacher dimensions that hold something
NARROW = replace(TEACHER, hidden_size=12, intermediate_size=24, num_hidden_layers=2)


def text(count=6, *, width=16, first_seed=100):
    lengths = (16, 16, 13, 16, 9, 16, 16, 12)
    return [batch(lengths, width, seed=first_seed + number) for number in range(count)]


def strong_teacher() -> MaskedLM:
    """Random weights large enough that attention and feed-forward matter."""
    teacher = masked_lm(TEACHER)
    with torch.no_grad():
        for name, weight in teacher.named_parameters():
            if name.endswith("LayerNorm.bias"):
                weight.normal_(std=0.3)
            elif weight.dim() == 2 and "embeddings" not in name:
                weight.mul_(12.0)
    return teacher


def planted_teacher(kept=KEPT) -> MaskedLM:
    """States are 0 outside of `kept`, and the embeddings' mean is 0: what a student of that width can copy exactly."""
    teacher = strong_teacher()
    dropped = [index for index in range(TEACHER.hidden_size) if index not in kept]
    embeddings = teacher.bert.embeddings
    with torch.no_grad():
        words = embeddings.word_embeddings.weight
        words[:, dropped] = 0.0
        words[:, kept] -= words[:, kept].mean(dim=1, keepdim=True)
        embeddings.position_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()
        for name, weight in teacher.named_parameters():
            if name.startswith("bert.") and "LayerNorm" in name:
                weight[dropped] = 0.0
    return teacher


def scores_by_hand(teacher: MaskedLM, sample, dimensions) -> np.ndarray:
    """(heads, tokens, tokens) float64: q·k/√(teacher's head width) in layer 1, over `dimensions` of each head."""
    attention = teacher.bert.encoder.layer[0].attention.self
    states = teacher(sample, OutputSpec(hidden=frozenset({0}), logits=False)).hidden[0]
    query, key = (
        (states.double() @ part.weight.double().T + part.bias.double()).detach().numpy().reshape(-1, 3, 8)
        for part in (attention.query, attention.key)
    )
    return np.einsum("qhd,khd->hqk", query[:, :, dimensions], key[:, :, dimensions]) / np.sqrt(8)


def scores_of(student: MaskedLM, sample) -> np.ndarray:
    """(heads, tokens, tokens) in layer 1 of a batch of one row."""
    return student.eval()(sample, OutputSpec(scores=frozenset({1}), logits=False)).scores[1][0].detach().numpy()


def test_of_equal_shape_it_is_the_teachers_layers_bit_for_bit():
    teacher = masked_lm(TEACHER)
    cut = subclone(teacher, replace(TEACHER, num_hidden_layers=2), (2, 4), batches=())
    ours, theirs = cut.model.state_dict(), teacher.state_dict()
    for name, weight in ours.items():
        source = name.replace("layer.1.", "layer.3.").replace("layer.0.", "layer.1.")
        assert torch.equal(weight, theirs[source]), name
    assert torch.equal(cut.projection, torch.eye(24))


def test_fields_that_no_architecture_sets_are_the_teachers():
    published = replace(TEACHER, type_vocab_size=3, layer_norm_eps=1e-2, initializer_range=0.1)
    teacher, sample = masked_lm(published), batch(positions=torch.tensor([1, 2]))
    for shape in (TEACHER.shape, NARROW.shape):
        student = subclone(teacher, published.resized(shape), "bottom", batches=text()).model.eval()
        assert student.config.resized(TEACHER.shape) == published
        if shape == TEACHER.shape:
            assert torch.equal(student(sample).logits, teacher(sample).logits)


def test_the_energetic_dimensions_are_kept():
    cut = subclone(planted_teacher(), NARROW, (2, 4), batches=text())
    selection = np.zeros((24, 12))
    selection[KEPT, range(12)] = 1.0
    dropped = np.flatnonzero(selection.sum(axis=1) == 0)
    np.testing.assert_allclose(cut.projection.numpy()[dropped], 0.0, atol=1e-5)
    synthetic = cut.model.bert.embeddings.word_embeddings.weight.detach().numpy()
    expected = planted_teacher().bert.embeddings.word_embeddings.weight.detach().numpy() @ selection
    np.testing.assert_allclose(synthetic, expected, atol=1e-5)


def test_basis_and_projection_against_numpy():
    teacher, batches = strong_teacher(), text()
    cut = subclone(teacher, NARROW, (2, 4), batches=batches)

    @torch.no_grad()
    def states(model, layers):
        spec = OutputSpec(hidden=frozenset(layers), logits=False)
        found = [model.eval()(one, spec).hidden for one in batches]
        return [torch.cat([hidden[layer] for hidden in found]) for layer in layers]

    ours, theirs = states(cut.model, (0, 1, 2)), states(teacher, (0, 2, 4))
    kept, basis = _kept_directions(theirs, 12)
    basis, moments = basis.double().numpy(), sum(one.double().T @ one.double() / len(one) for one in theirs)
    principal = np.linalg.eigh(moments.numpy())[1][:, -12:]
    np.testing.assert_allclose(basis @ basis.T, principal @ principal.T, atol=1e-4)
    turned = basis[kept.numpy()]  # as close as possible to the kept dimensions: symmetric and positive
    np.testing.assert_allclose(turned, turned.T, atol=1e-5)
    assert np.linalg.eigvalsh(turned).min() > 0
    inputs, target = (torch.cat(side).double().numpy() for side in (ours, theirs))
    system = inputs.T @ inputs + 4 * np.square(inputs).sum() / len(inputs) * np.eye(12)
    expected = basis + np.linalg.solve(system, inputs.T @ (target - inputs @ basis.T)).T
    np.testing.assert_allclose(cut.projection, expected, atol=1e-4)


def test_scores_of_kept_head_dimensions_keep_their_size():
    """Four of eight query and key dimensions hold everything: q·k over them is still divided by √8, not by √4."""
    teacher = planted_teacher()
    attention = teacher.bert.encoder.layer[0].attention.self
    with torch.no_grad():
        for part in (attention.query, attention.key):
            rows = part.weight.view(3, 8, 24)
            rows[:, [0, 3, 5, 6]] = 0.0
    student = subclone(teacher, replace(NARROW, num_hidden_layers=1), (1,), batches=text()).model
    sample = batch((14,), 14, seed=7)
    expected = scores_by_hand(teacher, sample, [1, 2, 4, 7])
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(scores_of(student, sample), expected, atol=1e-3)


def test_scores_are_the_best_of_their_rank():
    """Against NumPy's truncated singular values of the whole matrix of scores between the tokens of the text."""
    teacher, sample = planted_teacher(), batch((24,), 24, seed=7)
    student = subclone(teacher, replace(NARROW, num_hidden_layers=1), (1,), batches=[sample]).model
    left, sizes, right = np.linalg.svd(scores_by_hand(teacher, sample, list(range(8))))
    expected = np.einsum("hqr,hr,hrk->hqk", left[:, :, :4], sizes[:, :4], right[:, :4])
    assert sizes[:, 4].min() > 0.01
    np.testing.assert_allclose(scores_of(student, sample), expected, atol=1e-3)


def test_of_fewer_heads_the_ones_that_add_most_are_kept():
    kept = sorted([*KEPT, 0, 2, 5, 6])
    teacher = planted_teacher(kept)
    with torch.no_grad():
        teacher.bert.encoder.layer[0].attention.self.value.weight.view(3, 8, 24)[1] = 0.0
    config = replace(NARROW, hidden_size=16, num_attention_heads=2, num_hidden_layers=1)
    student = subclone(teacher, config, (1,), batches=text()).model
    sample = batch((14,), 14, seed=7)
    expected = scores_by_hand(teacher, sample, list(range(8)))[[0, 2]]
    np.testing.assert_allclose(scores_of(student, sample), expected, atol=1e-3)


def planted_classifier() -> SequenceClassifier:
    """The planted encoder with a head of three classes, whose pooler has units in KEPT only."""
    teacher = classifier(TEACHER, ("a", "b", "c"))
    teacher.bert.load_state_dict(planted_teacher().bert.state_dict())
    with torch.no_grad():
        dropped = [index for index in range(TEACHER.hidden_size) if index not in KEPT]
        teacher.bert.pooler.dense.weight[dropped] = 0.0
        teacher.bert.pooler.dense.bias[dropped] = 0.0
        teacher.classifier.weight.mul_(50.0)
    return teacher


def rows_of(batches) -> Encoded:
    ids = [
        row[:n].numpy() for one in batches for row, n in zip(one.input_ids, one.mask.sum(dim=1).tolist(), strict=True)
    ]
    return Encoded(ids, [np.zeros_like(row) for row in ids], None)


def test_a_classifier_is_cut_with_its_head():
    """It explains most of what the teacher's logits vary by, on rows that the cut has not read."""
    teacher, rows = planted_classifier(), rows_of(text(30))
    shape = Architecture(layers=4, width=12, heads=3, feed_forward=48, dropout=0.0)
    student, projection = cut_classifier(teacher, shape, "uniform", rows)
    assert student.training and student.labels == teacher.labels and projection.shape == (24, 12)
    errors, spread = [], []
    for sample in text(10, first_seed=7):
        with torch.inference_mode():
            expected, found = teacher(sample).logits, student.eval()(sample).logits
        errors.append((found - expected).square().mean().item())
        spread.append((expected - expected.mean(dim=0)).square().mean().item())
    assert np.mean(errors) < 0.3 * np.mean(spread)


def test_the_classifier_is_the_ridge_regression_of_the_logits():
    """Against NumPy's least squares with a row of the prior for each input, in float64."""
    teacher, student = classifier(TEACHER, ("a", "b", "c")), classifier(NARROW, ("a", "b", "c"), seed=1)
    full = torch.randn(200, 24, generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(torch.randn(24, 12, generator=torch.Generator().manual_seed(1))).Q
    kept = torch.tensor(KEPT)
    with torch.no_grad():
        _fit_classifier(student, teacher, kept, basis=basis, states=(full @ basis, full))
    wide, narrow = (
        np.tanh(states.numpy() @ model.bert.pooler.dense.weight.detach().numpy().T.astype(np.float64)
                + model.bert.pooler.dense.bias.detach().numpy())
        for model, states in ((teacher, full), (student, full @ basis))
    )  # fmt: skip
    weight, bias = (part.detach().double().numpy() for part in (teacher.classifier.weight, teacher.classifier.bias))
    errors = wide @ weight.T - narrow @ weight[:, KEPT].T
    inputs = narrow - narrow.mean(axis=0)
    prior = np.sqrt(4.0 * np.sum(inputs**2) / len(inputs)) * np.eye(12)  # 4 tokens for each input
    system = np.vstack([inputs, prior]), np.vstack([errors - errors.mean(axis=0), np.zeros((12, 3))])
    correction = np.linalg.lstsq(*system, rcond=None)[0].T
    assert np.abs(correction).max() > 1e-3
    np.testing.assert_allclose(student.classifier.weight.detach(), weight[:, KEPT] + correction, atol=1e-5)
    expected = bias + errors.mean(axis=0) - correction @ narrow.mean(axis=0)
    np.testing.assert_allclose(student.classifier.bias.detach(), expected, atol=1e-5)


def test_a_single_row_is_enough_to_cut_a_classifier():
    teacher, row = planted_classifier(), batch((7,), 7)
    student, _ = cut_classifier(teacher, NARROW.shape, (2, 4), rows_of([row]))
    with torch.inference_mode():
        torch.testing.assert_close(student.eval()(row).logits, teacher(row).logits, atol=1e-4, rtol=0)


def test_a_constant_dimension_gets_no_gain():
    norm = torch.nn.LayerNorm(2)
    normalized = torch.tensor([[1.0, -1.0], [1.0, 3.0]])
    with torch.no_grad():
        found = _fit_norm(norm, normalized, target=torch.tensor([[4.0, 0.0], [4.0, 8.0]]))
    assert norm.weight.tolist() == [0.0, 2.0]
    assert found.tolist() == [[4.0, 0.0], [4.0, 8.0]]


def test_layers_that_are_left_out_are_made_good():
    """A plain copy of the same two layers is further from the teacher's logits."""
    teacher = classifier(TEACHER, ("a", "b", "c"))
    teacher.bert.load_state_dict(strong_teacher().bert.state_dict())
    shape = Architecture(layers=2, width=24, heads=3, feed_forward=48, dropout=0.0)
    student, projection = cut_classifier(teacher, shape, (2, 4), rows_of(text(30)))
    torch.testing.assert_close(projection, torch.eye(24), atol=0.5, rtol=0)
    copied = SequenceClassifier(student.config, teacher.labels)
    copied.load_state_dict(teacher.state_dict(), strict=False)
    for layer, source in zip(copied.bert.encoder.layer, (1, 3), strict=True):
        layer.load_state_dict(teacher.bert.encoder.layer[source].state_dict())
    sample = batch((14, 9, 5, 16, 16, 12), 16, seed=7)
    with torch.inference_mode():
        expected = teacher(sample).logits
        cut, copy = ((model.eval()(sample).logits - expected).square().mean() for model in (student, copied))
    assert cut < 0.5 * copy


def test_the_rows_that_are_read_are_bounded(monkeypatch):
    seen = []
    monkeypatch.setattr(task_teacher, "CUT_TOKENS", 100)
    monkeypatch.setattr(
        task_teacher, "subclone", lambda *found, batches: seen.extend(batches) or subclone(*found, batches=batches)
    )
    cut_classifier(planted_classifier(), NARROW.shape, (2, 4), rows_of(text(30)))
    assert 60 < sum(int(one.mask.sum()) for one in seen) <= 100


def hidden_loss(student: MaskedLM, projection, teacher: MaskedLM, sample) -> float:
    ours = student.eval()(sample, OutputSpec(hidden=frozenset({0, 1, 2}), logits=False)).hidden
    theirs = teacher(sample, OutputSpec(hidden=frozenset({0, 2, 4}), logits=False)).hidden
    pairs = ((0, 0), (1, 2), (2, 4))
    return sum(losses.hidden(ours[a] @ projection.T, theirs[b]).item() for a, b in pairs)


def random_start(teacher: MaskedLM) -> tuple[MaskedLM, torch.Tensor]:
    """Random weights with the best projection there is for them."""
    student = masked_lm(NARROW, seed=3)
    ours, theirs = [], []
    for sample in text():
        found = student(sample, OutputSpec(hidden=frozenset({0, 1, 2}), logits=False)).hidden
        target = teacher(sample, OutputSpec(hidden=frozenset({0, 2, 4}), logits=False)).hidden
        ours += [found[index].detach() for index in (0, 1, 2)]
        theirs += [target[index].detach() for index in (0, 2, 4)]
    return student, torch.linalg.lstsq(torch.cat(ours), torch.cat(theirs)).solution.T


def test_it_is_much_nearer_to_the_teacher_than_a_random_start():
    teacher, unseen = planted_teacher(), text(1, first_seed=5)[0]
    cut = subclone(teacher, NARROW, (2, 4), batches=text())
    near = hidden_loss(cut.model, cut.projection, teacher, unseen)
    far = hidden_loss(*random_start(teacher), teacher, unseen)
    assert near < 0.5 * far


def test_mean_logits_are_the_teachers():
    teacher, sample = strong_teacher(), batch((16, 12), 16, seed=9)
    sample = replace(sample, positions=sample.mask.flatten().nonzero().flatten())
    student = subclone(teacher, NARROW, (2, 4), batches=[sample]).model.eval()
    ours, theirs = (model(sample).logits.mean(dim=0).detach().numpy() for model in (student, teacher))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_neither_dropout_nor_generator_changes_the_student():
    first = subclone(strong_teacher(), NARROW, (2, 4), batches=text())
    torch.manual_seed(99)
    second = subclone(strong_teacher().train(), NARROW, (2, 4), batches=text())
    ours, theirs = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(first.projection, second.projection)
    assert first.model.training


def test_padding_does_not_matter():
    plain, padded = (subclone(strong_teacher(), NARROW, (2, 4), batches=text(width=width)) for width in (16, 32))
    ours, theirs = plain.model.state_dict(), padded.model.state_dict()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-3) for name in ours)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 36}, r"width: .* \(got 36\); allowed: 24 or less"),
        ({"intermediate_size": 60}, r"feed_forward: .* \(got 60\); allowed: 48 or less"),
        ({"num_attention_heads": 4}, r"heads: width 12 .* 3 heads of 8 \(got 4 heads\); allowed: 2, 3; fix: change"),
        ({"num_attention_heads": 1}, r"heads: width 12 .* \(got 1 heads\); allowed: 2, 3; fix: change heads or width"),
        (
            {"hidden_size": 22, "num_attention_heads": 2},
            r"heads: width 22 .* \(got 2 heads\); allowed: none for this width",
        ),
    ],
)
def test_students_that_cannot_be_cut_are_rejected(changes, message):
    with pytest.raises(UserError, match=r"^architecture\." + message):
        subclone(masked_lm(TEACHER), replace(NARROW, **changes), (2, 4), batches=())
