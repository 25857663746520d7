"""Classifiers of BERT's relatives, read as BERTs with the same logits: RoBERTa, DistilBERT, ELECTRA and others."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tinybert.pipeline.errors import UserError

EMBEDDINGS = "bert.embeddings."


class Relative(NamedTuple):
    """How a family differs from BERT."""

    names: Mapping[str, str]  # parts of the names of its weights -> BERT's, replaced in this order
    activation: Callable[[Tensor], Tensor]  # of the pooler, which it calls the head's dense layer
    fields: Mapping[str, str] = {}  # BERT's fields of config.json -> its own
    has_segments: bool = False  # whether it tells the two texts of a pair apart by their segments
    numbers_from_padding: bool = False  # whether its positions are numbered from pad_token_id + 1


HEAD = {"classifier.dense.": "bert.pooler.dense.", "classifier.out_proj.": "classifier."}
ROBERTA = Relative({"roberta.": "bert."} | HEAD, torch.tanh, numbers_from_padding=True)
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
    "electra": Relative({"electra.": "bert."} | HEAD, F.gelu, has_segments=True),
}


def as_bert(
    family: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and weights of a BERT that computes the same, except for the pooler's activation.

    Args:
        family: One of RELATIVES.
        config: Its config.json.
        weights: By the family's names.
    """
    relative = RELATIVES[family]
    renamed = {}
    for name, tensor in weights.items():
        for theirs, ours in relative.names.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    if f"{EMBEDDINGS[:-1]}_project.weight" in renamed:
        raise UserError("embedding_size: differs from hidden_size; allowed: equal sizes; fix: choose another model")
    adapted = dict(config) | {ours: config[theirs] for ours, theirs in relative.fields.items() if theirs in config}
    if (name := f"{EMBEDDINGS}position_embeddings.weight") in renamed and relative.numbers_from_padding:
        renamed[name] = renamed[name][config.get("pad_token_id", 1) + 1 :]
        adapted["max_position_embeddings"] = len(renamed[name])
    if (name := f"{EMBEDDINGS}word_embeddings.weight") in renamed and not relative.has_segments:
        segments = f"{EMBEDDINGS}token_type_embeddings.weight"
        first = renamed.get(segments, torch.zeros(1, renamed[name].shape[1]))[:1]
        adapted["type_vocab_size"], renamed[segments] = 2, first.repeat(2, 1)
    return adapted, renamed
