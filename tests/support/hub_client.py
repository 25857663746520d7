"""Our code that asks the Hub, in a process whose libraries know the tests' endpoint and cache alone.

They read both as they are imported, which takes seconds: one process imports them, and forks for each question.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from tests.support.root import ROOT

SHORT_TIMES = {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
VOCABULARY_SIZE = 83  # of hub_content


def environment(endpoint: str, home: Path) -> dict[str, str]:
    """Of a process that knows the Hub at `endpoint` and keeps its files in `home`."""
    others = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and name[:3] != "HF_"}
    ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return others | ours | SHORT_TIMES


def use_hub(monkeypatch, endpoint: str, cache: Path) -> None:
    """Lets `huggingface_hub` in this process, imported or not, know the Hub at `endpoint` alone; not `datasets`."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(hf_api.api, "endpoint", endpoint)  # else that of an earlier test, retried for 24 s
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


class Client:
    """Asks the functions of QUESTIONS, each in a fresh process."""

    def __init__(self, endpoint: str, home: Path) -> None:
        self.home = home
        command = [sys.executable, "-m", "tests.support.hub_client"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(endpoint, home) | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, question: str, *arguments, **variables: str):
        """The answer, or the line of the UserError; another exception is raised as RuntimeError."""
        self._process.stdin.write(json.dumps([question, arguments, variables]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "traceback" in answer:
            raise RuntimeError(answer["traceback"])
        return answer["value"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


def main() -> None:
    """Answers the questions on standard input, one JSON line each."""
    import datasets  # noqa: F401
    import safetensors.torch  # noqa: F401

    from tinybert.pipeline import hub

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))  # nobody waits for what a test has put right
    hub.PROBE_TIMEOUT_S = 1
    questions = _questions()
    for line in iter(sys.stdin.readline, ""):
        if (child := os.fork()) == 0:
            print(json.dumps(_answer(questions, *json.loads(line))), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


def _answer(questions: dict, question: str, arguments: list, variables: dict[str, str]) -> dict:
    import traceback

    from tinybert.pipeline.errors import UserError

    os.environ.update(variables)
    try:
        return {"value": questions[question](*arguments)}
    except UserError as error:
        return {"value": str(error)}
    except BaseException:
        return {"traceback": traceback.format_exc()}


def _questions() -> dict:
    """What the sources of profiles/bert-base.yaml give; a model and a revision may be others than the profile's."""
    from tinybert.config.fields import HubModel, ModelSource, source_folder
    from tinybert.config.load import check_params, merged_profile
    from tinybert.config.students import Init
    from tinybert.config.tasks import TASKS, HubTable, TableData
    from tinybert.data.corpus import documents
    from tinybert.data.own_tasks import read_own, records
    from tinybert.data.task_sources import read_splits
    from tinybert.data.tokenizer import teacher_tokenizer
    from tinybert.models.initialization import finetuned_teacher, initialize_student, start_teacher

    params = check_params(merged_profile("bert-base", ROOT))

    def changed(section, **changes):
        hub = section.hub.model_copy(update={key: value for key, value in changes.items() if value})
        return section.model_copy(update={"hub": hub})

    def corpus(revision=None):
        return list(documents(changed(params.corpus, revision=revision), seed=params.seed))

    def task_rows(task, revision=None):
        return read_splits(TASKS[task], "hub", settings=changed(params.tasks, revision=revision), seed=params.seed)

    def own_rows(revision):
        """GLUE's MRPC as if it were a dataset of somebody's own."""
        hub = HubTable(dataset=params.tasks.hub.dataset, revision=revision, config="mrpc")
        splits = {"train": "train", "dev": "validation", "test": "test"}
        data = TableData(**splits, hub=hub, texts=("sentence1", "sentence2"), label="label", kind="classification")
        task, frames = read_own("mine", data)
        return task.labels, {split: list(records(frame)) for split, frame in frames.items()}

    def tokenizer(revision=None, model=None):
        return teacher_tokenizer(changed(params.teacher, model=model, revision=revision)).encode("Paris: a city").tokens

    def teacher(revision=None, model=None):
        section = changed(params.teacher, model=model, revision=revision)
        started = start_teacher(section, vocab_size=VOCABULARY_SIZE, seed=0)
        return {name: tensor.double().sum().item() for name, tensor in started.state_dict().items()}

    def finetuned(task, model, revision):
        key = f"tasks.{task}.finetuned_teacher"
        folder = source_folder(ModelSource(hub=HubModel(model=model, revision=revision)), key=key)
        return finetuned_teacher(folder, TASKS[task], key=key).labels

    def start(model, revision):
        shape = SimpleNamespace(kind="bert", layers=2, width=24, heads=3, feed_forward=48, dropout=0.1)
        recipe = SimpleNamespace(architecture=shape, init=Init(hub=HubModel(model=model, revision=revision)))
        given = start_teacher(params.teacher, vocab_size=VOCABULARY_SIZE, seed=0)
        student = initialize_student(recipe, given, sample=lambda: []).model
        return {name: tensor.double().sum().item() for name, tensor in student.state_dict().items()}

    def transformers(revision, model):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model, revision=revision).tokenize("Paris: a city")

    found = (corpus, task_rows, own_rows, tokenizer, teacher, finetuned, start, transformers)
    return {function.__name__: function for function in found}


if __name__ == "__main__":
    main()
