"""Where the masked-LM teacher comes from."""

import torch

from tinybert import paths
from tinybert.errors import UserError
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.pretrained import hub_folder, load_pretrained

POSITIONS = 512  # of an embedded teacher, as BERT has


def start_teacher(teacher, *, vocab_size: int, seed: int) -> MaskedLM:
    """The teacher before its (further) pretraining, by the teacher section of params.

    New weights are drawn by `seed`. UserError when the checkpoint does not fit the tokenizer's `vocab_size`,
    or has no masked-LM head and gets no training either.
    """
    torch.manual_seed(seed)
    if teacher.source == "embedded":
        architecture = teacher.embedded.architecture
        return MaskedLM(BertConfig.of(architecture, vocab_size=vocab_size, max_position_embeddings=POSITIONS))
    if teacher.source == "hub":
        source = hub_folder(teacher.hub.model, teacher.hub.revision)
    else:
        source = paths.given(teacher.local.folder)
    model, has_head = load_pretrained(source)
    if model.config.vocab_size != vocab_size:
        raise UserError(
            f"teacher: its vocabulary has {model.config.vocab_size} pieces, its tokenizer {vocab_size}; "
            "put the tokenizer that belongs to the weights into the same folder"
        )
    if not has_head and teacher.pretraining.epochs == 0:
        raise UserError(
            f"teacher.pretraining.epochs: 0, but {source} has no masked-LM head; give it at least 1 epoch to learn one"
        )
    return model
