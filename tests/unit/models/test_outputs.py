"""Real tokens and batches."""

import torch

from tinybert.models.outputs import RealTokens


def test_real_tokens_are_unpadded_and_padded():
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    real, rows = RealTokens(mask), torch.arange(18.0).view(3, 3, 2)
    tokens = real.unpad(rows)
    assert tokens[:, 0].tolist() == [0, 2, 6, 12, 14, 16]
    assert torch.equal(real.pad(tokens), rows * mask[..., None])
    assert real.first(tokens)[:, 0].tolist() == [0, 6, 12]
    assert real.columns.tolist() == [0, 1, 0, 0, 1, 2]
    assert real.at(tokens, torch.tensor([7, 1, 3]))[:, 0].tolist() == [14, 2, 6]
