"""`tinybert push`: uploads the folder of a finished model to the Hub, in one commit."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from tinybert.pipeline.errors import UserError
from tinybert.pipeline.hub import hub_access

CARD = "README.md"
NEEDED = (CARD, "config.json", "model.safetensors")


def main(argv: Sequence[str]) -> None:
    """Uploads a model folder, such as one of models/final, to a repository of the Hub."""
    parser = argparse.ArgumentParser(prog="tinybert push", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="for example models/final/cola/tinybert4")
    parser.add_argument("repository", help="USER/NAME; created if there is none")
    parser.add_argument("--license", metavar="ID", help="of the model, if its card has none; for example mit")
    parser.add_argument("--public", action="store_true", help="make a new repository public; by default it is private")
    options = parser.parse_args(argv)
    print(push(options.folder, options.repository, license_id=options.license, public=options.public))


def push(folder: Path, repository: str, *, license_id: str | None = None, public: bool = False) -> str:
    """Uploads all files of a model folder; the folder itself does not change.

    Args:
        folder: Holds at least a model card, config.json and model.safetensors.
        repository: USER/NAME on the Hub; it is created if there is none.
        license_id: What the card's head names as license, if it has none.
        public: Whether a new repository is public.

    Returns:
        The URL of the repository and the revision of the commit.

    Raises:
        UserError: A file or the license is missing, or the Hub cannot be reached or refuses the upload.
    """
    card = licensed_card(folder, license_id)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    fix = "check the name, and set HF_TOKEN to a token that may write to it"
    with hub_access("REPOSITORY", repository, action="uploaded to", fix=fix):
        from huggingface_hub import CommitOperationAdd, HfApi

        api = HfApi()
        contents: dict[str, Path | bytes] = {**files, CARD: card.encode()}
        url = api.create_repo(repository, private=not public, exist_ok=True)
        added = [CommitOperationAdd(name, content) for name, content in contents.items()]
        commit = api.create_commit(repository, added, commit_message=f"Upload {folder.resolve().name}")
    return f"{url}, revision {commit.oid}"


def licensed_card(folder: Path, license_id: str | None) -> str:
    """The folder's model card with a license; UserError if the folder lacks a file, or no license is known."""
    for name in NEEDED:
        if not (folder / name).is_file():
            raise UserError(f"FOLDER: no {name} (got {folder}); fix: name a folder such as models/final/cola/tinybert4")
    if license_id and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license_id):
        raise UserError(f"--license: no license of the Hub (got {license_id}); allowed: such as apache-2.0, mit, other")
    from huggingface_hub import ModelCard
    from yaml import YAMLError

    try:
        text = (folder / CARD).read_text(encoding="utf-8")
        card = ModelCard(text)
    except (YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{folder / CARD}: no valid head ({reason:.100}); fix: correct the file") from None
    found = card.data.get("license")
    if not (found or license_id):
        fix = "give --license ID, which the licenses of its data and models must allow"
        raise UserError(f"{folder / CARD}: no license (got none); fix: {fix}")
    if found and license_id and found != license_id:
        raise UserError(f"--license: the card has another (got {license_id}); allowed: {found}; fix: leave it out")
    card.data["license"] = license_id
    return text if found else card.content
