"""What the cards of task models and of domain students share: a file README.md in the form of the Hub's model cards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinybert.pipeline.files import atomic_file
from tinybert.pipeline.tracking import code_revision, package_versions
from tinybert.report.markdown import front_matter
from tinybert.report.table import markdown_body
from tinybert.report.training_table import start, training_table

INHERITED = "It imitates a teacher, and with its answers it took over that teacher's mistakes and biases, unexamined."


def write_card(folder: Path, *, title: str, entries: dict[str, Any], sections: dict[str, str]) -> None:
    """Writes README.md into the existing `folder`.

    entries: the YAML in front; sections: heading -> Markdown, in which texts of others are escaped.
    """
    parts = [front_matter(entries), f"# {title}", *(f"## {name}\n\n{text}" for name, text in sections.items())]
    with atomic_file(folder / "README.md") as handle:
        handle.write("\n\n".join(map(str.strip, parts)) + "\n")


def bullets(lines: Sequence[str]) -> str:
    """A list, without its empty lines."""
    return "\n".join(f"- {line}" for line in lines if line)


def recipe_section(history: Sequence[dict[str, Any]], *, architecture: str) -> str:
    """Architecture, start and training; what the names of losses mean is said in params.yaml."""
    words = f"{architecture} {start(history)}".strip()
    return f"{words}\n\n{markdown_body(training_table(history))}" if history else words


def architecture(model) -> str:
    """The shape of a BERT or a BiLSTM, and how many weights it has, in a sentence."""
    config = model.config
    if model.model_type == "bert":
        shape = (
            f"A BERT of {config.num_hidden_layers} layers, width {config.hidden_size}, {config.num_attention_heads} "
            f"heads and feed-forward width {config.intermediate_size}"
        )
    else:
        shape = (
            f"A BiLSTM of {config.num_hidden_layers} layers, {config.hidden_size} wide in each direction, over "
            f"embeddings of width {config.embedding_size}"
        )
    return f"{shape}: {model.parameter_count:,} parameters over {config.vocab_size:,} word pieces."


def revision_section(seed: int) -> str:
    """The state of project and packages that made the folder."""
    versions = ", ".join(f"{package} {version}" for package, version in package_versions().items())
    return bullets([f"Project: git revision {code_revision()}", f"Seed: {seed}", f"Packages: {versions}"])
