"""`tinybert push` through the library's own client against a Hub on loopback: what arrives, and what is refused."""

import pytest

from tests.support.hub_client import use_hub
from tests.support.hub_server import Fault, serve_hub
from tinybert import cli
from tinybert.pipeline import hub as hub_module

NAME = "someone/small-model"
CARD = "---\nlicense: mit\nlanguage: en\n---\n\n# A model\n\nScore: 0.5 – fine.\n"
UNLICENSED = CARD.replace("license: mit\n", "")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tinybert4"
    (folder / "onnx").mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    (folder / "config.json").write_text('{"model_type": "bert"}\n')
    for name, content in (("model.safetensors", b"\x08\0weights"), ("onnx/model.onnx", bytes(range(256)) * 10)):
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with serve_hub() as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path / "cache")
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", hub.token)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield hub


def refusal(*arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["push", *map(str, arguments)])
    line = str(ended.value.code)
    assert "\n" not in line and len(line) < 500
    return line


def test_all_files_arrive_byte_for_byte_in_one_private_commit(hub, folder, capsys):
    cli.main(["push", str(folder), NAME])
    found = hub.repositories["models", NAME]
    assert found.files == {path.relative_to(folder).as_posix(): path.read_bytes()
                           for path in folder.rglob("*") if path.is_file()}  # fmt: skip
    assert found.private and found.summaries == ("Upload tinybert4",)
    assert capsys.readouterr().out == f"{hub.endpoint}/{NAME}, revision {found.sha}\n"


def test_hidden_files_and_local_paths_stay_here(hub, folder):
    (folder / "training.json").write_text('[{"params": {"teacher.local": {"folder": "/home/me/teacher"}}}]')
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("[core]")
    (folder / ".DS_Store").write_text("")
    cli.main(["push", str(folder), NAME])
    uploaded = hub.repositories["models", NAME].files
    assert not [name for name in uploaded if name.startswith((".git/", ".DS_Store", "training.json"))]


def test_a_second_push_is_a_second_commit_to_the_same_repository(hub, folder):
    cli.main(["push", str(folder), NAME, "--public"])
    (folder / "model.safetensors").write_bytes(b"other weights")
    cli.main(["push", str(folder), NAME])
    found = hub.repositories["models", NAME]
    assert not found.private and len(found.summaries) == 2
    assert found.files["model.safetensors"] == b"other weights"


def test_a_license_is_added_to_a_card_that_has_none(hub, folder):
    from huggingface_hub import ModelCard

    (folder / "README.md").write_text(UNLICENSED)
    line = refusal(folder, NAME)
    assert line.startswith(f"{folder}/README.md: no license (got none); fix: give --license ID")
    assert not hub.repositories
    cli.main(["push", str(folder), NAME, "--license", "apache-2.0"])
    card = ModelCard(hub.repositories["models", NAME].files["README.md"].decode())
    assert card.data.to_dict() == {"language": "en", "license": "apache-2.0"}
    assert card.text == "\n# A model\n\nScore: 0.5 – fine.\n"
    assert (folder / "README.md").read_text() == UNLICENSED


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
def test_a_folder_without_a_needed_file_is_refused(hub, folder, name):
    (folder / name).unlink()
    assert refusal(folder, NAME).startswith(f"FOLDER: no {name} (got {folder}); fix: ")
    assert not hub.requests


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--license", "Apache 2"], "--license: no license of the Hub (got Apache 2); allowed: such as apache-2.0"),
        (["--license", "gpl-3.0"], "--license: the card has another (got gpl-3.0); allowed: mit; fix: leave it out"),
    ],
)
def test_wrong_licenses_are_refused(hub, folder, options, line):
    assert refusal(folder, NAME, *options).startswith(line)


def test_a_damaged_card_is_refused(hub, folder):
    (folder / "README.md").write_text("---\nlicense: [\n---\n")
    assert refusal(folder, NAME).startswith(f"{folder}/README.md: no valid head (")


def test_a_wrong_token_is_one_line(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    line = refusal(folder, NAME)
    assert line.startswith(f"REPOSITORY: {NAME} cannot be uploaded to the Hub (access refused (401): HF_TOKEN holds no")
    assert line.endswith("set HF_TOKEN to a token that may write to it")


def test_a_wrong_name_is_one_line(hub, folder):
    assert refusal(folder, "a/b/c").startswith("REPOSITORY: a/b/c cannot be uploaded to the Hub (Repo id must")


def test_no_network_is_one_line(hub, folder, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(hub_module, "_is_reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # restored afterwards
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    line = refusal(folder, NAME)
    assert line.startswith(f"REPOSITORY: {NAME} cannot be uploaded to the Hub (no connection to {hub.endpoint}: ")


def test_a_commit_that_the_hub_rejects_is_one_line(hub, folder):
    hub.faults.append(Fault("POST .*/commit/", status=403))
    assert "(access refused (403)" in refusal(folder, NAME)
    assert hub.repositories["models", NAME].files == {}
