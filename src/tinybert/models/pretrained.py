"""Pretrained BERT checkpoints of others, from the Hub or a folder, as a masked LM of ours."""

from pathlib import Path

from tinybert.errors import UserError
from tinybert.hub import hub_access
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.folder import model_config, read_config, read_weights, refuse_other_shapes

HEAD = "cls.predictions.transform.dense.weight"


def hub_folder(model: str, revision: str) -> Path:
    """Downloads configuration and safetensors weights of a Hub model; the folder in the Hub's cache."""
    fix = "check teacher.hub.model and teacher.hub.revision, or set teacher.source to local with teacher.local.folder"
    with hub_access("teacher.hub.model", f"{model} ({revision})", fix=fix):
        from huggingface_hub import snapshot_download

        patterns = ["config.json", "model.safetensors"]
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))


def load_pretrained(folder: str | Path) -> tuple[MaskedLM, bool]:
    """The masked LM in a folder of any BERT checkpoint, and whether the checkpoint had a masked-LM head.

    Parts that the checkpoint lacks (head, pooler) start from the global generator. UserError when the
    folder holds no BERT encoder in safetensors.
    """
    folder = Path(folder)
    model = MaskedLM(model_config(BertConfig, read_config(folder), folder))
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UserError(
            f"{path}: absent; only safetensors are read: load the model once with transformers "
            "and write it with save_pretrained(folder, safe_serialization=True)"
        )
    stored = {_our_name(name): tensor.float() for name, tensor in read_weights(path).items()}
    wanted = model.state_dict()
    optional = {name for name in wanted if name.startswith(("cls.", "bert.pooler."))}
    if missing := sorted(wanted.keys() - stored.keys() - optional):
        raise UserError(f"{path}: lacks {missing[0]} and {len(missing) - 1} more weights; it is no whole BERT encoder")
    refuse_other_shapes(path, stored, wanted)
    model.load_state_dict(wanted | {name: stored[name] for name in wanted.keys() & stored.keys()})
    return model, HEAD in stored


def _our_name(name: str) -> str:
    """Checkpoints of the encoder alone lack the prefix; the oldest call a layer norm's weights gamma and beta."""
    name = name if name.startswith(("bert.", "cls.")) else f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
