"""Classifiers of BERT's relatives, read as BERTs with the same logits: RoBERTa, DistilBERT, ELECTRA and others."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tinybert.pipeline.errors import UserError

WORDS = "bert.embeddings.word_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
HEAD = {"classifier.dense.": "bert.pooler.dense.", "classifier.out_proj.": "classifier."}


class Relative(NamedTuple):
    """How a family differs from BERT."""

    names: Mapping[str, str]  # parts of the names of its weights -> BERT's, replaced in this order
    activation: Callable[[Tensor], Tensor]  # of the pooler; the family calls it the head's dense layer
    fields: Mapping[str, str] = {}  # BERT's fields of config.json -> its own
    numbers_from_padding: bool = False  # whether its positions are numbered from pad_token_id + 1


# Older files of RoBERTa hold a pooler that its head does not read.
ROBERTA = Relative({"roberta.pooler.": "unused.", "roberta.": "bert."} | HEAD, torch.tanh, numbers_from_padding=True)
DISTILBERT = Relative(
    {
        "distilbert.transformer.": "bert.encoder.",
        "distilbert.": "bert.",
        "pre_classifier.": "bert.pooler.dense.",
        ".q_lin.": ".self.query.",
        ".k_lin.": ".self.key.",
        ".v_lin.": ".self.value.",
        ".out_lin.": ".output.dense.",
        ".sa_layer_norm.": ".attention.output.LayerNorm.",
        ".ffn.lin1.": ".intermediate.dense.",
        ".ffn.lin2.": ".output.dense.",
        ".output_layer_norm.": ".output.LayerNorm.",
    },
    F.relu,
    {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
     "intermediate_size": "hidden_dim"},
)  # fmt: skip
RELATIVES = {
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": Relative({"electra.": "bert."} | HEAD, F.gelu),
}


def as_bert(
    relative: Relative, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Renames and completes a relative's files.

    Args:
        config: Its config.json.
        weights: By the family's names.

    Returns:
        The config and weights of a BERT that computes the same, except for the pooler's activation.

    Raises:
        UserError: Its embeddings are narrower than its layers.
    """
    renamed = {}
    for name, tensor in weights.items():
        for theirs, ours in relative.names.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    if "bert.embeddings_project.weight" in renamed:
        raise UserError("embedding_size: differs from hidden_size; allowed: equal sizes; fix: choose another model")
    adapted = dict(config) | {ours: config[theirs] for ours, theirs in relative.fields.items() if theirs in config}
    if WORDS in renamed and SEGMENTS not in renamed:  # DistilBERT has none
        renamed[SEGMENTS] = torch.zeros_like(renamed[WORDS][:1])
    if SEGMENTS in renamed and len(renamed[SEGMENTS]) == 1:  # the same for both texts of a pair
        renamed[SEGMENTS] = torch.cat([renamed[SEGMENTS]] * 2)
    adapted["type_vocab_size"] = len(renamed.get(SEGMENTS, "12"))
    if POSITIONS in renamed and relative.numbers_from_padding and isinstance(config.get("pad_token_id", 1), int):
        renamed[POSITIONS] = renamed[POSITIONS][config.get("pad_token_id", 1) + 1 :]
        adapted["max_position_embeddings"] = len(renamed[POSITIONS])
    return adapted, renamed
