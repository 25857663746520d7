"""Half precision, where the hardware has it."""

import torch

from tinybert.pipeline.errors import UserError


def check_missing_bfloat16() -> None:
    """UserError where this machine computes no bfloat16 in hardware."""
    if torch.cuda.is_available():
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        supported = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not supported:
        raise UserError("precision: bfloat16 is not supported by this machine; set it to float32")
