"""The BiLSTM student against NumPy float64, PyTorch's packed sequences, padding, and counts by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig, embeddings_from
from tinybert.models.outputs import Batch, pad

CLS, SEP = 2, 3
CONFIG = BiLstmConfig(50, embedding_size=6, hidden_size=5, num_hidden_layers=2, intermediate_size=7)
# Neither sorted by length nor all first sentences longer than the second ones; the last second sentence is empty.
FIRST = [[10, 11, 12], [20], [30, 31, 32, 33, 34], [40, 41]]
SECOND = [[13], [21, 22, 23, 24, 25, 26], [35, 36], []]


def classifier(*, pair, config=CONFIG, labels=("no", "yes", "maybe"), seed=0) -> BiLstmClassifier:
    torch.manual_seed(seed)
    return BiLstmClassifier(config, labels, pair=pair).eval()


def batch(first=FIRST, second=None, *, width=None) -> Batch:
    """Rows [CLS] a [SEP], and b [SEP] where `second` is given, padded to `width`."""
    heads = [[CLS, *a, SEP] for a in first]
    tails = [[]] * len(first) if second is None else [[*b, SEP] for b in second]
    input_ids, mask = pad([np.array(head + tail) for head, tail in zip(heads, tails, strict=True)])
    types, _ = pad([np.array([0] * len(head) + [1] * len(tail)) for head, tail in zip(heads, tails, strict=True)])
    extra = (0, 0 if width is None else width - input_ids.shape[1])
    return Batch(*(nn.functional.pad(part, extra) for part in (input_ids, mask, types)))


def rows(pair):
    return (FIRST, SECOND if pair else None)


def features(model, example) -> np.ndarray:
    """What the head reads."""
    read = []
    handle = model.classifier.dense.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    model(example)
    handle.remove()
    return read[0].detach().numpy()


def numpy_lstm(weights, prefix, inputs) -> np.ndarray:
    """Hochreiter and Schmidhuber's cell with a forget gate, gates in the order i, f, g, o: (length, hidden)."""
    input_weight, state_weight, input_bias, state_bias = (
        weights[f"{prefix}.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    state = cell = np.zeros(state_weight.shape[1])
    outputs = []
    for step in inputs:
        gates = input_weight @ step + input_bias + state_weight @ state + state_bias
        i, f, g, o = np.split(gates, 4)
        cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        state = np.tanh(cell) / (1 + np.exp(-o))
        outputs.append(state)
    return np.array(outputs)


def numpy_vector(weights, tokens) -> np.ndarray:
    """The sentence vector of unpadded tokens under two layers."""
    states = weights["encoder.word_embeddings.weight"][tokens]
    for layer in range(2):
        ahead = numpy_lstm(weights, f"encoder.layer.{layer}.forward_lstm", states)
        back = numpy_lstm(weights, f"encoder.layer.{layer}.backward_lstm", states[::-1])[::-1]
        states = np.concatenate([ahead, back], 1)
    return np.concatenate([ahead[-1], back[0]])


def numpy_logits(weights, features) -> np.ndarray:
    hidden = np.maximum(features @ weights["classifier.dense.weight"].T + weights["classifier.dense.bias"], 0)
    return hidden @ weights["classifier.output.weight"].T + weights["classifier.output.bias"]


@pytest.mark.parametrize("pair", [False, True], ids=["single", "pair"])
def test_logits_equal_numpy_row_by_row(pair):
    model = classifier(pair=pair).double()
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = []
    for first, second in zip(FIRST, SECOND, strict=True):
        a = numpy_vector(weights, [*first, SEP])
        b = numpy_vector(weights, [*second, SEP])
        expected.append(np.concatenate([a, b, a * b, np.abs(a - b)]) if pair else a)
    found = model(batch(*rows(pair))).logits.detach().numpy()
    assert found.shape == (4, 3)
    assert found == pytest.approx(numpy_logits(weights, np.array(expected)), abs=1e-12)


def test_flops_by_hand():
    """Four gates of width 5 in both directions, over inputs of 6, then of 10; each token but [CLS] is a step."""
    step = 2 * (2 * 4 * 5 * (6 + 5) + 2 * 4 * 5 * (10 + 5))
    assert step == 2080
    assert classifier(pair=False).flops(9) == 8 * step + 2 * (10 * 7 + 7 * 3) == 16_822
    assert classifier(pair=True).flops(12) == 11 * step + 2 * (4 * 10 * 7 + 7 * 3) == 23_482


def test_vectors_equal_a_packed_bidirectional_lstm():
    config = BiLstmConfig(50, embedding_size=6, hidden_size=5, num_hidden_layers=3, intermediate_size=7)
    encoder = classifier(pair=False, config=config).double().encoder
    theirs = nn.LSTM(6, 5, num_layers=3, bidirectional=True, batch_first=True).double()
    for number, layer in enumerate(encoder.layer):
        for suffix, ours in (("", layer.forward_lstm), ("_reverse", layer.backward_lstm)):
            for name, weight in ours.named_parameters():
                getattr(theirs, name.replace("_l0", f"_l{number}{suffix}")).data.copy_(weight.data)
    lengths = torch.tensor([4, 9, 1, 6])
    ids = torch.randint(5, 50, (4, 9), generator=torch.Generator().manual_seed(1))
    packed = nn.utils.rnn.pack_padded_sequence(
        encoder.word_embeddings(ids), lengths, batch_first=True, enforce_sorted=False
    )
    _, (final, _) = theirs(packed)
    expected = torch.cat([final[-2], final[-1]], 1)  # forward and backward state of the top layer
    assert torch.allclose(encoder(ids, lengths), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("pair", [False, True], ids=["single", "pair"])
def test_twice_the_padded_width_changes_nothing(pair, dtype, tolerance):
    model = classifier(pair=pair).to(dtype)
    narrow = batch(*rows(pair))
    wide = batch(*rows(pair), width=2 * narrow.input_ids.shape[1])
    assert torch.allclose(model(narrow).logits, model(wide).logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize("pair", [False, True], ids=["single", "pair"])
def test_what_padding_holds_is_never_read(pair):
    model, example = classifier(pair=pair), batch(*rows(pair), width=14)
    other = Batch(
        example.input_ids.masked_fill(~example.mask, 44), example.mask, example.token_type_ids | ~example.mask
    )
    assert torch.equal(model(example).logits, model(other).logits)


@pytest.mark.parametrize("pair", [False, True], ids=["single", "pair"])
def test_each_row_answers_as_it_does_alone_and_in_its_place(pair):
    model = classifier(pair=pair).double()
    together = model(batch(*rows(pair))).logits
    for row in range(4):
        first, second = rows(pair)
        alone = batch(first[row : row + 1], second and second[row : row + 1])
        assert torch.allclose(together[row], model(alone).logits[0], rtol=0, atol=1e-12)
    assert not torch.allclose(together[0], together[1], atol=1e-4)


def test_equal_sentences_have_equal_vectors_whatever_their_place():
    found = features(classifier(pair=True), batch(FIRST, FIRST))
    a, b, product, difference = np.split(found, 4, axis=1)
    assert np.abs(a).min() > 0
    assert b == pytest.approx(a, abs=1e-7)
    assert product == pytest.approx(a**2, abs=1e-7)
    assert difference == pytest.approx(np.zeros_like(a), abs=1e-7)


def test_a_missing_second_sentence_is_a_vector_of_zeros():
    model = classifier(pair=True)
    found = features(model, batch(FIRST))  # rows [CLS] a [SEP] alone
    assert (found[:, 10:30] == 0).all()  # b and a⊙b; the vectors have 10 dimensions
    assert (found[:, 30:] == np.abs(found[:, :10])).all()
    assert model(batch(FIRST)).logits.isfinite().all()


def test_parameter_counts_by_hand():
    # Words 50·6. First layer: two directions of four gates, each 5·(6 + 5) weights and two biases of 5; second
    # layer: the same with 10 inputs. Head: 10 or 40 features to 7, 7 to 3, with biases.
    layers = 2 * 4 * (5 * (6 + 5) + 10) + 2 * 4 * (5 * (10 + 5) + 10)
    assert classifier(pair=False).parameter_count == 300 + layers + (10 * 7 + 7) + (7 * 3 + 3)
    assert classifier(pair=True).parameter_count == 300 + layers + (40 * 7 + 7) + (7 * 3 + 3)


def test_weights_are_named_after_encoder_and_head():
    lstm = [f"{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    encoder = [
        f"encoder.layer.{layer}.{direction}_lstm.{name}"
        for layer in range(2)
        for direction in ("forward", "backward")
        for name in lstm
    ]
    head = [f"classifier.{part}.{name}" for part in ("dense", "output") for name in ("weight", "bias")]
    assert list(classifier(pair=True).state_dict()) == ["encoder.word_embeddings.weight", *encoder, *head]


@pytest.mark.parametrize("pair", [False, True], ids=["single", "pair"])
def test_gradients_reach_all_weights_and_just_the_words_read(pair):
    model, example = classifier(pair=pair).train(), batch(*rows(pair))
    model(example).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    touched = model.encoder.word_embeddings.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert touched == sorted(set(example.input_ids[example.mask].tolist()) - {CLS})


def test_dropout_acts_in_training_only():
    model, example = classifier(pair=True), batch(FIRST, SECOND)
    assert torch.equal(model(example).logits, model(example).logits)
    model.train()
    assert not torch.equal(model(example).logits, model(example).logits)


def test_the_same_seed_draws_the_same_weights():
    model, same, other = (classifier(pair=True, seed=seed) for seed in (7, 7, 1))
    assert all(torch.equal(tensor, same.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert not any(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert (model.encoder.word_embeddings.weight[0] == 0).all()


def test_random_words_have_the_configured_standard_deviation():
    config = BiLstmConfig(5000, 20, 2, 1, 2, initializer_range=0.3)
    words = classifier(pair=False, config=config).encoder.word_embeddings.weight[1:]
    assert words.std().item() == pytest.approx(0.3, rel=0.02)


def test_rows_may_have_any_length():
    CONFIG.check_length(10_000, "corpus.max_length_tokens")
    assert classifier(pair=True)(batch([[7] * 700], [[8] * 900])).logits.isfinite().all()


def test_embeddings_of_the_teachers_width_are_a_copy():
    teacher = nn.Parameter(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)))
    found = embeddings_from(teacher, 4)
    assert torch.equal(found, teacher) and not found.requires_grad
    found.zero_()
    assert teacher.abs().sum() > 0


def test_narrower_embeddings_are_principal_components():
    teacher = np.random.default_rng(0).normal(size=(30, 8)) * np.arange(8, 0, -1)
    left, values, right = np.linalg.svd(teacher, full_matrices=False)
    signs = np.sign([row[np.abs(row).argmax()] for row in right[:3]])
    found = embeddings_from(torch.tensor(teacher), 3)
    assert found.dtype == torch.float32
    assert found.numpy() == pytest.approx((left * values)[:, :3] * signs, abs=1e-5)


def test_embeddings_by_hand_keep_size_and_sign():
    # The second dimension is the longest, the first the next: each is a component, with its own sign and scale.
    teacher = torch.tensor([[2.0, 0.0, 0.0], [0.0, -3.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    expected = np.array([[0, 2], [-3, 0], [0, 0], [0, 0]])
    assert embeddings_from(teacher, 2).numpy() == pytest.approx(expected, abs=1e-7)
    assert embeddings_from(-teacher, 2).numpy() == pytest.approx(-expected, abs=1e-7)
