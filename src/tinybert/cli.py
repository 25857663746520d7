"""The `tinybert` command. Each subcommand imports what it needs when it runs, so that --help appears immediately."""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from tinybert.pipeline.errors import UserError

CARD = "README.md"  # of a model folder
LOCK_FILE = Path("dvc.lock")
READERS_AND_WRITERS = Path(".dvc/tmp/rwlock")


def profile(argv: Sequence[str]) -> None:
    """Merges a profile of profiles/ into params.yaml, and prints what it is and needs."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from tinybert.config.load import apply_profile

    parser = argparse.ArgumentParser(prog="tinybert profile", description=profile.__doc__)
    parser.add_argument("name", help="a file of profiles/, without .yaml")
    parser.add_argument("--force", action="store_true", help="merge it into uncommitted changes of params.yaml")
    options = parser.parse_args(argv)
    apply_profile(options.name, force=options.force)
    lines = Path("profiles", f"{options.name}.yaml").read_text(encoding="utf-8").splitlines()
    print(*takewhile(lambda line: line.startswith("#"), lines), sep="\n")
    # In a fresh clone DVC has none of the outputs that dvc.lock names. Its experiments fail on that (DVC 3.67).
    with suppress(DvcException):  # a lock that DVC cannot read stays, for `make repair`
        repo = Repo()
        if LOCK_FILE.is_file() and not repo.config["remote"] and all(out.changed_cache() for out in repo.index.outs):
            LOCK_FILE.unlink()
            print(f"{LOCK_FILE}: removed, because DVC's cache has none of its outputs; undo: git checkout {LOCK_FILE}")
    print("next: make repro; for your own table, make init first")


def convert(argv: Sequence[str]) -> None:
    """Writes the weights of a folder's pytorch_model.bin, a pickle, as model.safetensors."""
    from tinybert.models.model_folders import convert_pickle

    parser = argparse.ArgumentParser(prog="tinybert convert", description=convert.__doc__)
    parser.add_argument("folder", type=Path, help="a model folder with pytorch_model.bin")
    print(convert_pickle(parser.parse_args(argv).folder))


def record(argv: Sequence[str]) -> None:
    """Copies a finished run's settings and numbers to results/NAME, with its code, machine and timings."""
    from tinybert.pipeline.files import atomic_folder, write_json

    parser = argparse.ArgumentParser(prog="tinybert record", description=record.__doc__)
    parser.add_argument("name", help="a folder of results/, for example minilm; an older record there is replaced")
    name = parser.parse_args(argv).name
    if not re.fullmatch("[a-z0-9_-]+", name):
        raise UserError(f"NAME: no folder name (got {name}); allowed: a-z, 0-9, _ and -; fix: NAME=minilm")
    run = describe_run()
    with atomic_folder(Path("results", name)) as folder:
        shutil.copytree("metrics", folder / "metrics")
        for path in ("params.yaml", "dvc.lock", "reports/summary.md", "reports/summary_metrics.json"):
            shutil.copy(path, folder)
        for stage, _, model in (name.partition("@") for name in run["seconds"]):
            if stage == "quantize":
                (folder / "latency").mkdir(exist_ok=True)
                shutil.copy(Path("reports/latency", f"{model}.json"), folder / "latency")
        write_json(folder / "run.json", run)


def describe_run() -> dict[str, Any]:
    """Returns code, machine, versions and seconds; UserError for uncommitted code, a stale run or a missing timing."""
    import torch
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    from tinybert.pipeline import files, paths, process

    try:
        repo = Repo()
        changed, seconds = list(repo.status()), {}
    except DvcException as error:
        reason = files.one_line(error)
        raise UserError(f"dvc status: failed ({reason}); fix: end other DVC commands, make repair") from None
    if changed:
        raise UserError(f"dvc status: not up to date (got {len(changed)} stages, first {changed[0]}); fix: dvc repro")
    names = {stage.name for stage in repo.index.stages if hasattr(stage, "name")}  # files of `dvc add` have none
    for name in sorted(names - {"check_params", "code"}):  # these are not timed
        if not (path := paths.timing(*name.split("@"))).is_file():
            raise UserError(f"{path}: missing, DVC's cache has no timings; fix: dvc repro --force --single-item {name}")
        seconds[name] = files.read_json(path)["seconds"]
    generated = [f":!{path}" for path in ("params.yaml", "dvc.lock", "metrics", "reports", "results")]
    # With --branch git prints one line more, so that a git that fails does not count as clean.
    lines = process.git("status", "--porcelain", "--branch", "--", ".", *generated).splitlines()
    if len(lines) != 1:
        got = f"{len(lines) - 1}, first {lines[1]}" if lines else "no git"
        raise UserError(f"git status: uncommitted files (got {got}); fix: commit them")
    code = {"revision": process.git("rev-parse", "HEAD"), "date": date.today().isoformat()}
    machine = {"processor": torch.cpu.get_capabilities()["cpu_name"], "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    versions = {"python": sys.version.split()[0]} | process.package_versions()
    return code | machine | {"versions": versions, "total_seconds": round(sum(seconds.values()), 1), "seconds": seconds}


def push(argv: Sequence[str]) -> None:
    """Uploads a model folder to the Hub in one commit, without hidden files and training.json."""
    from tinybert.pipeline.hub import hub_access

    parser = argparse.ArgumentParser(prog="tinybert push", description=push.__doc__)
    parser.add_argument("folder", type=Path, help="for example models/final/cola/tinybert4")
    parser.add_argument("repository", help="USER/NAME; created if there is none")
    parser.add_argument("--license", metavar="ID", help="of the model, if its card has none; for example mit")
    parser.add_argument("--public", action="store_true", help="make a new repository public; by default it is private")
    options = parser.parse_args(argv)
    folder, card = options.folder, licensed_card(options.folder, options.license)
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    # training.json names local folders.
    local = {name for name in found if any(part[0] == "." for part in name.parts)} | {Path("training.json")}
    files = {name.as_posix(): path for name, path in found.items() if name not in local}
    fix = "check the name, and set HF_TOKEN to a token that may write to it"
    with hub_access("REPOSITORY", options.repository, action="uploaded to", fix=fix):
        from huggingface_hub import CommitOperationAdd, HfApi

        api = HfApi()
        contents: dict[str, Path | bytes] = {**files, CARD: card.encode()}
        url = api.create_repo(options.repository, private=not options.public, exist_ok=True)
        added = [CommitOperationAdd(name, content) for name, content in contents.items()]
        commit = api.create_commit(options.repository, added, commit_message=f"Upload {folder.resolve().name}")
    print(f"{url}, revision {commit.oid}")


def licensed_card(folder: Path, license_id: str | None) -> str:
    """The folder's model card with a license; UserError if the folder lacks a file, or no license is known."""
    for name in (CARD, "config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise UserError(f"FOLDER: no {name} (got {folder}); fix: name a folder such as models/final/cola/tinybert4")
    if license_id and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license_id):
        raise UserError(f"--license: no license of the Hub (got {license_id}); allowed: such as apache-2.0, mit, other")
    from huggingface_hub import ModelCard
    from yaml import YAMLError

    from tinybert.pipeline.files import one_line

    try:
        text = (folder / CARD).read_text(encoding="utf-8")
        card = ModelCard(text)
    except (YAMLError, ValueError) as error:
        raise UserError(f"{folder / CARD}: no valid head ({one_line(error):.100}); fix: correct the file") from None
    found = card.data.get("license")
    if not (found or license_id):
        fix = "give --license ID, which the licenses of its data and models must allow"
        raise UserError(f"{folder / CARD}: no license (got none); fix: {fix}")
    if found and license_id and found != license_id:
        raise UserError(f"--license: the card has another (got {license_id}); allowed: {found}; fix: leave it out")
    card.data["license"] = license_id
    return text if found else card.content


def repair(argv: Sequence[str]) -> None:
    """Removes DVC files that a kill cut short; DVC does not start if it cannot read them."""
    argparse.ArgumentParser(prog="tinybert repair", description=repair.__doc__).parse_args(argv)
    from dvc.dvcfile import Lockfile
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.utils.serialize import ParseError
    from dvc.utils.strictyaml import YAMLValidationError

    if not LOCK_FILE.with_name("dvc.yaml").is_file():
        raise UserError("repair: no dvc.yaml in this folder; fix: run it in the repository's root")
    # Nothing is lost: DVC restores finished stages from its run cache, and the list of readers and writers matters to
    # live processes only. While DVC is running, nothing is removed.
    repo, cut = Repo(), []
    with suppress(LockError), repo.lock:
        try:
            Lockfile(repo, str(LOCK_FILE)).load()
        except (ParseError, YAMLValidationError):
            if b"<<<<<<<" not in LOCK_FILE.read_bytes():  # the user resolves git conflicts
                cut.append(LOCK_FILE)
        try:
            json.loads(READERS_AND_WRITERS.read_text() if READERS_AND_WRITERS.exists() else "{}")
        except ValueError:
            cut.append(READERS_AND_WRITERS)
        for path in cut:
            path.unlink()
            print(f"{path}: removed, because a kill cut it short; DVC restores finished stages from its cache")


COMMANDS = {command.__name__: command for command in (profile, convert, record, push, repair)}
# Commands that are the `main` of a module, and what they do.
MODULES = {
    "cut": ("cut", "Cuts a smaller BERT out of a fine-tuned one, with or without training."),
    "ask": ("evaluate.language_model", "Asks the teacher and the domain students a question with one [MASK]."),
    "init": ("data.new_task", "Writes a task for your own table into params.yaml."),
    "study": ("report.studies", "Runs a published comparison of studies/ and tests its claims."),
    "quantize": ("compress.variants", "Writes ONNX and INT8 files of a classifier, and measures what they lose."),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a subcommand; a UserError or Ctrl-C ends it with one line."""
    parser = argparse.ArgumentParser(prog="tinybert", description="Distill, compress and compare BERT models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (_, about) in MODULES.items():
        commands.add_parser(name, help=about, add_help=False)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.__doc__, add_help=False)
    options, rest = parser.parse_known_args(argv)
    from tinybert.pipeline.files import report_disk_error

    try:
        with report_disk_error(Path.cwd()):
            if options.command in COMMANDS:
                COMMANDS[options.command](rest)
            else:
                import_module(f"tinybert.{MODULES[options.command][0]}").main(rest)
    except UserError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted" + "; run the command again to resume" * (options.command == "study"))


if __name__ == "__main__":
    main()
