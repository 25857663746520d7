"""Tiny random classifiers of transformers' families with tokenizers of their own, as others save them."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel

WORDS = ("fish", "swim", "the", "a", "old", "king", "river", "city", "war", "of")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SHAPE |= {"max_position_embeddings": 40, "initializer_range": 0.3}
DEBERTA = {"type_vocab_size": 0, "relative_attention": True, "position_biased_input": False, "position_buckets": 8}
DEBERTA |= {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"}
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 40}
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "initializer_range": 0.3}
GPT2 |= {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2}
BART = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 40, "init_std": 0.3}
BART |= {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
# Family -> config class, its settings, tokenizer class.
FAMILIES = {
    "bert": ("BertConfig", SHAPE, "BertTokenizer"),
    "roberta": ("RobertaConfig", SHAPE | {"type_vocab_size": 1}, "RobertaTokenizer"),
    "xlm-roberta": ("XLMRobertaConfig", SHAPE | {"type_vocab_size": 1}, "XLMRobertaTokenizer"),
    "distilbert": ("DistilBertConfig", DISTILBERT | {"initializer_range": 0.3}, "DistilBertTokenizer"),
    "electra": ("ElectraConfig", SHAPE | {"embedding_size": 8}, "ElectraTokenizer"),
    "deberta-v2": ("DebertaV2Config", SHAPE | DEBERTA, "DebertaV2Tokenizer"),
    "modernbert": ("ModernBertConfig", SHAPE | {"local_attention": 8, "pad_token_id": 0}, ""),
}
# Families whose first token does not stand for the row.
DECODERS = {
    "gpt2": ("GPT2Config", GPT2, "GPT2Tokenizer"),
    "bart": ("BartConfig", BART, "RobertaTokenizer"),
    "t5": ("T5Config", T5, "T5Tokenizer"),
}


def save_family(family: str, folder: Path, labels: tuple[str, ...] = ("no", "yes"), *, head: bool = True, **changes):
    """A model folder with `changes` of its config: a classifier of `labels`, or without `head` an encoder only."""
    config_class, settings, tokenizer_class = (FAMILIES | DECODERS)[family]
    tokenizer = _tokenizer(tokenizer_class)
    names = dict(enumerate(labels))
    config = getattr(transformers, config_class)(
        vocab_size=len(tokenizer), id2label=names, label2id={name: id for id, name in names.items()},
        **settings | changes,
    )  # fmt: skip
    torch.manual_seed(0)
    kind = transformers.AutoModelForSequenceClassification if head else transformers.AutoModelForMaskedLM
    kind.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(tokenizer_class: str):
    if tokenizer_class in ("RobertaTokenizer", "GPT2Tokenizer"):
        letters = sorted({letter for word in WORDS for letter in word} | {"Ġ"})
        names = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "</s>", "unk_token": "<unk>"}
        names = names if tokenizer_class == "GPT2Tokenizer" else {}
        return getattr(transformers, tokenizer_class)(vocab=_ids(ROBERTA_TOKENS, letters), merges=[], **names)
    if tokenizer_class == "T5Tokenizer":
        first = ("<pad>", "</s>", "<unk>")
        return transformers.T5Tokenizer(vocab=[(word, -2.0) for word in (*first, *_marked())], extra_ids=0)
    if tokenizer_class == "XLMRobertaTokenizer":
        first = ("<s>", "<pad>", "</s>", "<unk>")
        return transformers.XLMRobertaTokenizer(vocab=[(word, -2.0) for word in (*first, *_marked(), "<mask>")])
    if tokenizer_class == "DebertaV2Tokenizer":
        return transformers.DebertaV2Tokenizer(vocab=[(word, -2.0) for word in (*BERT_TOKENS, *_marked())], unk_id=1)
    if tokenizer_class:
        return getattr(transformers, tokenizer_class)(vocab=_ids(BERT_TOKENS, WORDS))
    backend = Tokenizer(WordLevel(_ids(BERT_TOKENS, WORDS), unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ends)
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), BERT_TOKENS, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
    )  # fmt: skip


def _ids(*groups) -> dict[str, int]:
    return {token: id for id, token in enumerate(token for group in groups for token in group)}


def _marked() -> list[str]:
    return [f"▁{word}" for word in WORDS] + sorted({letter for word in WORDS for letter in word}) + ["▁"]
