"""Text of others in Markdown, and the YAML in front of a card."""

import io
import re

from ruamel.yaml import YAML

# What opens or closes a construct of Markdown, HTML or a formula within a line.
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&#!$])")
NO_LINE_BREAKS = 2**20  # characters


def plain(text: str) -> str:
    """The text in one line: each run of blanks and control characters becomes a blank."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def escape(text: str) -> str:
    """The text in one line of Markdown that shows it as it is."""
    return SPECIAL.sub(r"\\\1", plain(text))


def front_matter(entries: dict) -> str:
    """The entries as YAML between two lines of dashes; those that are empty are left out."""
    yaml = YAML()
    yaml.width = NO_LINE_BREAKS
    text = io.StringIO()
    yaml.dump({key: _plain_texts(value) for key, value in entries.items() if value}, text)
    return f"---\n{text.getvalue()}---\n"


def _plain_texts(value):
    if isinstance(value, dict):
        return {key: _plain_texts(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain_texts(part) for part in value]
    return plain(value) if isinstance(value, str) else value
