"""What a finished model ships: it answers as our own model does, by the very lines that card and README show."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from tests.support.builders import STUDENT, classifier, masked_lm
from tests.support.project import default_tree
from tests.support.root import ROOT
from tests.support.runtimes import run_node
from tinybert.compress.onnx_files import export_onnx, feeds_of, random_feeds, session_of, write_portable
from tinybert.compress.quantization import plan_int8, write_int8
from tinybert.config.load import StageParams, check_params
from tinybert.config.tasks import MULTILABEL, TASKS, Task
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from tinybert.evaluate.language_model import best_answers, prompt_batch
from tinybert.models.bilstm import BiLstmClassifier, BiLstmConfig
from tinybert.models.model_folders import load_model, save_model
from tinybert.pipeline import paths
from tinybert.pipeline.paths import VARIANTS
from tinybert.report.model_card import Finished, write_domain_card, write_task_card
from tinybert.stage import Stage, declared, declared_values
from tinybert.synthetic.examples import examples

CHOSEN = "int8-qoperator"
LIMIT_TOKENS = 12  # shorter than many of the rows
# page -> what its block of Python that loads a final model has
DOCUMENTED = {"README.md": "from transformers import pipeline", "docs/compress_and_deploy.md": "InferenceSession"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ship(task: str, name: str = "tinybert4", *, kind: str = "bert"):
    """The final folder of a small model with random weights, its rows, and our own logits of them."""
    rows, about = examples("mrpc" if task == "stsb" else task, "dev", 12, seed=0), TASKS[task]
    texts = [row[column] for row in rows for column in about.columns] + ["the shop was closed . it was shut ."]
    tokenizer = train_tokenizer(texts, vocabulary_size=300)
    vocabulary, labels = tokenizer.get_vocab_size(), about.outputs
    if kind == "bert":
        model = classifier(replace(STUDENT, vocab_size=vocabulary, initializer_range=0.3), labels)
    else:
        torch.manual_seed(0)
        model = BiLstmClassifier(BiLstmConfig(vocabulary, 8, 8, 1, 8), labels, pair=about.is_pair).eval()
    folder = paths.final(task, name)
    folder.mkdir(parents=True)
    save_model(model, folder)
    save_tokenizer(tokenizer, folder, max_length_tokens=LIMIT_TOKENS)
    export_onnx(model, folder / "fp32.onnx")
    shutil.copy(folder / "fp32.onnx", folder / f"{CHOSEN}.onnx")
    write_portable(folder / "fp32.onnx", folder / "onnx/model_quantized.onnx")
    return folder, rows, logits(folder, rows, task)


def logits(folder, rows: list[dict], task: str) -> np.ndarray:
    encoded = encode(rows, TASKS[task], load_tokenizer(folder), max_length_tokens=LIMIT_TOKENS)
    with torch.inference_mode():
        return load_model(folder)(encoded.batch(range(len(rows)))).logits.numpy()


def blocks(markdown: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", markdown, flags=re.S)


def printed(code: str):
    """What the last line of the code prints, as a value."""
    *lines, last = code.strip().splitlines()
    last = last.split("  #")[0]
    assert last.startswith("print(") and last.endswith(")")
    names: dict = {}
    exec("\n".join(lines), names)
    return eval(last[len("print(") : -1], names)


@pytest.mark.parametrize("task", ["cola", "mrpc", "stsb"])
def test_transformers_pipeline_gives_our_logits_and_labels(project, task):
    from transformers import pipeline

    folder, rows, ours = ship(task)
    about = TASKS[task]
    texts = [
        {key: row[column] for key, column in zip(("text", "text_pair"), about.columns, strict=False)} for row in rows
    ]
    loaded = pipeline("text-classification", str(folder), truncation=True, batch_size=5)
    found = loaded(texts, top_k=None, function_to_apply="none")
    labels = about.outputs
    theirs = [[{answer["label"]: answer["score"] for answer in row}[label] for label in labels] for row in found]
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    plain = loaded(texts)
    if about.is_regression:
        np.testing.assert_allclose([answer["score"] for answer in plain], ours[:, 0], atol=1e-5)
    else:
        assert [answer["label"] for answer in plain] == [labels[best] for best in ours.argmax(-1)]


@pytest.mark.parametrize(("task", "kind"), [("cola", "bert"), ("mrpc", "bert"), ("mrpc", "bilstm")])
def test_onnx_runtime_gives_our_logits_from_the_folder_alone(project, card_of, task, kind):
    _, rows, ours = ship(task, kind=kind)
    (*_, code) = blocks(card_of(task, kind))
    texts = [tuple(row[column] for column in TASKS[task].columns) for row in rows]
    texts = texts if TASKS[task].is_pair else [text for (text,) in texts]
    asked = re.sub(r"encode_batch\(\[.*\]\)", f"encode_batch({texts!r})", code)
    assert asked != code
    np.testing.assert_allclose(printed(asked), ours, atol=1e-4)


def asking_mrpc(block: str) -> str:
    """A page's block with the task and the input of this test."""
    block = re.sub(r"models/final/\w+/", "models/final/mrpc/", block)
    text, pair = ("The shop was closed.", "It was shut.")
    block = re.sub(r"classify\(.*\)\)", f"classify([{{'text': '{text}', 'text_pair': '{pair}'}}]))", block)
    return re.sub(r"encode_batch\(.*\)", f"encode_batch([('{text}', '{pair}')])", block)


@pytest.mark.long
@pytest.mark.parametrize("task", ["cola", "mrpc"])
def test_transformers_js_gives_our_logits_by_the_cards_lines(project, card_of, task):
    folder, _, _ = ship(task)
    shutil.copy(folder / "onnx/model_quantized.onnx", folder / "onnx/model.onnx")
    plan = plan_int8(folder / "fp32.onnx", [random_feeds(8, 12, 100)], smoothing=0.9)
    write_int8(plan, folder / f"{CHOSEN}.onnx", CHOSEN)
    write_portable(folder / f"{CHOSEN}.onnx", folder / "onnx/model_quantized.onnx")
    (code,) = re.findall(r"```js\n(.*?)```", card_of(task, "bert"), flags=re.S)
    row = dict(zip(TASKS[task].columns, ("The shop was closed.", "It was shut."), strict=False))
    encoded = encode([row], TASKS[task], load_tokenizer(folder), max_length_tokens=LIMIT_TOKENS).batch([0])
    (int8,) = session_of(str(folder / "onnx/model_quantized.onnx")).run(["logits"], feeds_of(encoded))
    fp32 = logits(folder, [row], task)
    assert 1e-4 < np.abs(int8 - fp32).max() < 0.3
    for text, expected in ((code, int8), (code.replace('"q8"', '"fp32"'), fp32)):
        np.testing.assert_allclose(json.loads(run_node(text, project)), expected, atol=1e-4)


@pytest.mark.parametrize("where", ["card", "docs"])
def test_the_lines_that_are_shown_run_and_agree(project, card_of, where):
    folder, _, _ = ship("mrpc")
    if where == "card":
        with_transformers, with_onnx = blocks(card_of("mrpc", "bert"))
    else:
        pages = {page: map(asking_mrpc, blocks((ROOT / page).read_text())) for page in DOCUMENTED}
        with_transformers, with_onnx = (b for page, found in pages.items() for b in found if DOCUMENTED[page] in b)
    (answer,), ((no, yes),) = printed(with_transformers), printed(with_onnx)
    row = {"sentence1": "The shop was closed.", "sentence2": "It was shut."}
    np.testing.assert_allclose([[no, yes]], logits(folder, [row], "mrpc"), atol=1e-4)
    assert answer["label"] == TASKS["mrpc"].labels[int(yes > no)]
    assert answer["score"] == pytest.approx(1 / (1 + np.exp(-abs(yes - no))), abs=1e-4)
    for block in (with_transformers, with_onnx):
        code = [line for line in block.splitlines() if line and not line.startswith("#")]
        assert len(code) <= 6


# --- cards ---


def params_with(**changes):
    """The default's params with other values at dotted keys, written with __ between the parts."""
    return check_params(default_tree({key.replace("__", "."): value for key, value in changes.items()}))


def packaged(params, stage: str, **items: str) -> StageParams:
    """The params as a package stage sees them; the current folder holds dvc.yaml."""
    names = {f"item.{key}": value for key, value in items.items()}
    return StageParams(params, declared("params", stage, names))


def provenance(params, *stages: tuple[str, dict], steps=7):
    entries = []
    for name, items in stages:
        names = {f"item.{key}": value for key, value in items.items()} | {"seed": "42"}
        stage = type("Stage", (), {"name": name, "items": items})
        stage.values = declared_values(params, declared("params", name, names))
        entries += Stage.provenance(stage, [{"step": steps}])
    return entries


def task_model(params, monkeypatch, *, task="cola", name="tinybert4", model=None) -> Finished:
    item = {"task": task, "student": "tinybert4"}
    stages = [
        ("general_distill", {"student": "tinybert4"}),
        ("task_distill_intermediate", item | {"seed": "42"}),
        ("task_distill_prediction", item | {"seed": "42"}),
    ]
    stages += [("prune", item | {"sparsity": "20"})] if "pruned" in name else []
    with monkeypatch.context() as there:
        there.chdir(ROOT)  # where dvc.yaml is
        entries = provenance(params, *stages)
        declared_params = packaged(params, "package", task=task, model=name)
    model = model or classifier(labels=TASKS[task].outputs)
    return Finished(name, model, entries, declared_params)


def card(folder, finished: Finished, *, task="cola", collapsed=False) -> tuple[dict, str]:
    """The YAML and the Markdown of the card, runs of blanks as one."""
    dev = dict.fromkeys(TASKS[task].metrics, 0.5)
    variant = {"dev": dev, "collapsed": collapsed, "agreement": 0.998, "size_mb": {"raw": 1.5, "compressed": 1.0}}
    variant["difference_95"] = {"low": -0.01, "high": 0.002}
    metrics = {
        "prepare_task": {"examples": {"train": 1500, "dev": 500}, "majority": dict.fromkeys(dev, 0.25)},
        "finetune_teacher": {"dev": dict.fromkeys(dev, 0.75), "without_prediction": 7},
        "quantize": dict.fromkeys(VARIANTS, variant) | {CHOSEN: variant | {"dev": dict.fromkeys(dev, 0.49488)}},
    }
    write_task_card(folder, finished, TASKS[task], metrics, CHOSEN)
    return parts((folder / "README.md").read_text())


@pytest.fixture
def card_of(tmp_path_factory, monkeypatch):
    """A function that gives the text of a card."""

    def text(task: str, kind: str) -> str:
        config = BiLstmConfig(50, 8, 8, 1, 8)
        labels = TASKS[task].labels
        model = None if kind == "bert" else BiLstmClassifier(config, labels, pair=TASKS[task].is_pair)
        folder = tmp_path_factory.mktemp("card")
        card(folder, task_model(params_with(), monkeypatch, task=task, model=model), task=task)
        return (folder / "README.md").read_text()

    return text


def parts(text: str) -> tuple[dict, str]:
    start, front, body = re.split(r"^---\n", text, maxsplit=2, flags=re.M)
    assert start == ""
    return yaml.safe_load(front), "\n".join(" ".join(line.split()) for line in body.splitlines())


def test_a_card_has_data_teacher_training_scores_and_limits(tmp_path, monkeypatch):
    text, train = {"epochs": 4, "max_steps": None, "batch_size": 64, "learning_rate": 2e-3}, [(3, 5e-4), (2, 3e-4)]
    phases = [{"epochs": n, "max_steps": None, "batch_size": 32, "learning_rate": rate} for n, rate in train]
    params = params_with(
        general__training=text, tasks__cola__intermediate=phases[0], tasks__cola__prediction=phases[1],
        tasks__cola__pruning=phases[1], tasks__cola__augmented_copies=2, students__tinybert4__init="random",
        students__tinybert4__layer_map="uniform",
        students__tinybert4__general={"losses": {"attention": 1.0, "hidden": 1.0, "embedding": 1.0}},
        students__tinybert4__intermediate={"losses": {"attention": 1.0, "hidden": 1.0, "embedding": 1.0}},
        students__tinybert4__prediction={"losses": {"prediction": 1.0}, "temperature": 1.0},
    )  # fmt: skip
    front, body = card(tmp_path, task_model(params, monkeypatch))
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "text-classification")
    assert "model-index" not in front and "base_model" not in front and front["license"] == "apache-2.0"
    for line in (
        "- Rows: 1,500 train, 500 dev",
        "- Training rows used: 100.0 %, each with 2 augmented copies drawn (substitution)",
        "| general distillation | attention 1, hidden 1, embedding 1 | uniform | 4 | 7 | 64 | 0.002 |",
        "| task, phase 1 | attention 1, hidden 1, embedding 1 | uniform | 3 | 7 | 32 | 0.0005 |",
        "| task, phase 2 | prediction 1, T 1 | | 2 | 7 | 32 | 0.0003 |",
        "| majority class | 0.250 | 0.250 | – | – | – |",
        "| teacher | 0.750 | 0.750 | – | – | – |",
        "| int8-qdq | 0.500 | 0.500 | 99.8 % | -0.010 to +0.002 | 1.50 |",
        "- Seed: 42",
    ):
        assert line in body.splitlines()
    assert "It started from random weights." in body
    assert "## Intended use\n\nTo try and compare compression methods on synthetic rows." in body
    assert "synthetic" in body and "Collapsed" not in body and "Pruned" not in body
    chosen = "Chosen: `int8-qoperator.onnx`, the smallest INT8 file whose matthews is at most 0.02 below FP32's"
    similar = "(of similar sizes the one with the highest score)"
    assert f"{chosen} {similar}. Its matthews minus FP32's: -0.005." in body.splitlines()
    assert "tinybert4/int8-qoperator.onnx" in body and "`onnx/model_quantized.onnx` (int8-qoperator)" in body


def test_a_card_of_real_data_lists_data_and_scores_for_the_hub(tmp_path, monkeypatch):
    params = params_with(teacher__source="hub", tasks__source="hub", corpus__source="hub",
                         students__tinybert4__init={"teacher": "bottom"})  # fmt: skip
    front, body = card(tmp_path, task_model(params, monkeypatch))
    assert front["datasets"] == ["nyu-mll/glue", "Salesforce/wikitext"]
    assert front["base_model"] == ["google-bert/bert-base-uncased"]
    (result,) = front["model-index"][0]["results"]
    assert result["dataset"]["config"] == "cola" and result["dataset"]["split"] == "validation"
    assert {"type": "matthews_correlation", "value": 0.5} in result["metrics"]
    assert params.teacher.hub.revision in body
    assert "layers of the teacher (bottom)" in body
    assert "## Intended use\n\nTo classify texts like those it was trained on" in body
    assert "synthetic" not in body


def test_a_card_says_which_rows_gave_its_scores(tmp_path, monkeypatch):
    _, body = card(tmp_path, task_model(params_with(), monkeypatch))
    assert "On dev. The variants" in body
    assert "those of the labeled dev split, not of GLUE's test server." in body
    params = params_with(tasks__heldout_fraction=0.1, tasks__source="hub")
    front, body = card(tmp_path, task_model(params, monkeypatch))
    assert "- Rows: 1,500 train, 500 held-out training rows" in body.splitlines()
    assert "On held-out training rows. The variants" in body
    assert "those of held-out training rows, not of GLUE's dev split or test server. The weights" in body
    assert body.count("dev") == 1
    assert front["model-index"][0]["results"][0]["dataset"]["split"] == "train"


FILES = {"train": "llm.csv", "dev": "dev.csv", "id": "id", "label": "answer", "missing": "drop"}
ANOTHER = {"hub": {"model": "some/roberta", "revision": "abc"}}


@pytest.mark.parametrize(
    ("changes", "text", "base_model"),
    [
        ({}, "The task's teacher was fine-tuned here on the task's gold labels from a small BERT, pretrained by", None),
        (
            {"tasks__cola__finetuned_teacher": ANOTHER},
            "The task's teacher was fine-tuned by a third party: some/roberta (revision abc) of the Hub.",
            ["some/roberta"],
        ),
        (
            {"tasks__teacher_encoder": ANOTHER},
            "The task's teacher was fine-tuned here on the task's gold labels from some/roberta (revision abc) of the",
            ["some/roberta"],
        ),
        (
            {"tasks__cola__teacher__encoder": ANOTHER},
            "The task's teacher was fine-tuned here on the task's gold labels from some/roberta (revision abc) of the",
            ["some/roberta"],
        ),
        (
            {"tasks__teacher_encoder": {"folder": "local/electra"}},
            "The task's teacher was fine-tuned here on the task's gold labels from a local folder (electra).",
            None,
        ),
        (
            {"tasks__cola__finetuned_teacher": {"predictions": FILES}},
            "The task's teacher was not run here: its classes came in files (llm.csv), for 7 training rows none, which "
            "were left out.",
            None,
        ),
    ],
)
def test_a_card_says_where_the_teacher_came_from(tmp_path, monkeypatch, changes, text, base_model):
    changes = changes | {"tasks__cola__augmented_copies": 0, "quantization__models": ["tinybert4"]}
    changes |= {"students__tinybert4__intermediate": None}
    front, body = card(tmp_path, task_model(params_with(**changes), monkeypatch))
    assert text in body
    assert front.get("base_model") == base_model
    assert (front.get("license") == "apache-2.0") == ("a small BERT" in text)


def test_a_teacher_by_a_third_party_is_based_on_that_alone(tmp_path, monkeypatch):
    params = params_with(tasks__cola__finetuned_teacher=ANOTHER, teacher__source="hub")
    front, _ = card(tmp_path, task_model(params, monkeypatch, name="teacher"))
    assert front["base_model"] == ["some/roberta"]


def test_collapse_and_sparsity_are_reported(tmp_path, monkeypatch):
    model = classifier(labels=TASKS["cola"].labels)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight[: len(module.weight) // 2] = 0  # every Linear here has an even number of rows
    finished = task_model(params_with(), monkeypatch, name="tinybert4_pruned20", model=model)
    _, body = card(tmp_path, finished, collapsed=True)
    assert "**Collapsed: fp32, int8-dynamic, int8-qdq, int8-qoperator gives one answer" in body
    assert "Pruned: 50.0 % of the weights" in body
    assert "| pruning | prediction 1, T 1 | |" in body


def test_a_bilstm_card_does_not_use_transformers(tmp_path, monkeypatch):
    model = BiLstmClassifier(BiLstmConfig(50, 8, 8, 1, 8), ("no", "yes"), pair=False)
    front, body = card(tmp_path, task_model(params_with(), monkeypatch, name="bilstm", model=model))
    assert front["library_name"] == "onnx"
    assert "from transformers" not in body and "onnxruntime" in body
    assert "A BiLSTM of 1 layers" in body and "huggingface/transformers" not in body


def test_a_card_without_a_limit_names_the_smallest_variant(tmp_path, monkeypatch):
    _, body = card(tmp_path, task_model(params_with(quantization__max_score_drop=None), monkeypatch))
    assert "Chosen: `int8-qoperator.onnx`, the smallest INT8 file (of similar" in body


def test_third_party_names_stay_text(tmp_path, monkeypatch):
    evil = "a --- license: mit # <script>alert(1)<\\script> ```x``` [l](http:e) **b** |"  # what params.yaml takes
    params = params_with(tasks__source="local", tasks__local__folder=evil, teacher__source="hub",
                         teacher__hub={"model": evil, "revision": evil},
                         students__tinybert4__init={"folder": evil})  # fmt: skip
    front, body = card(tmp_path, task_model(params, monkeypatch))
    (base_model,) = front["base_model"]
    assert base_model.startswith("a --- license: mit # <script>") and "license" not in front
    shown = [line for line in body.splitlines() if "script" in line]
    assert len(shown) == 3  # task rows, teacher, start
    for line in shown:
        assert not re.search(r"(?<!\\)[<>`\[\]|*]", line.replace("`unacceptable`, `acceptable`", ""))
    assert body.count("\n# ") == 1


def test_the_same_project_gives_the_same_bytes(tmp_path, monkeypatch):
    finished = task_model(params_with(), monkeypatch)
    card(tmp_path, finished)
    first = (tmp_path / "README.md").read_bytes()
    card(tmp_path, finished)
    assert (tmp_path / "README.md").read_bytes() == first
    assert b"second" not in first and b"latency" not in first


def test_a_domain_student_fills_masks_as_our_model_does(project, monkeypatch):
    tokenizer = train_tokenizer(["the capital of france is paris", "paris france capital"], vocabulary_size=80)
    model = masked_lm(replace(STUDENT, vocab_size=tokenizer.get_vocab_size(), initializer_range=0.3))
    folder = paths.final("domain", "lazy")
    folder.mkdir(parents=True)
    save_model(model, folder)
    save_tokenizer(tokenizer, folder)
    monkeypatch.chdir(ROOT)
    params = params_with()
    past = provenance(
        params, ("general_distill", {"student": "lazy"}), ("domain_distill", {"student": "lazy", "seed": "42"})
    )
    declared_params = packaged(params, "package")
    monkeypatch.chdir(project)
    found = {"perplexity": 8.0}
    role = {"general": found, "domain": found, "cloze": {"all": {"questions": 9, "top1": 0.1, "top5": 0.2}}}
    alike = {"top1": 0.3, "kl": 2.5}
    metrics = dict.fromkeys(("teacher", "student", "untrained"), role)
    metrics["agreement"] = {"general": alike, "domain": alike}
    finished = Finished("lazy", model, past, declared_params)
    write_domain_card(folder, finished, metrics)
    text = (folder / "README.md").read_text()
    front, body = parts(text)
    assert (front["pipeline_tag"], front["license"]) == ("fill-mask", "apache-2.0")
    assert "| student | 0.100 | 0.200 | 8.00 | 8.00 | 0.300 | 2.500 |" in body
    assert "domain distillation | hard 1, prediction 1, T 2 |" in body and "## Intended use\n\nTo fill masks" in body
    (code,) = blocks(text)
    (ours,) = best_answers(
        load_model(folder), tokenizer, [prompt_batch(["The capital of France is [MASK]."], tokenizer)]
    )
    theirs = printed(code)
    assert [answer["token_str"] for answer in theirs] == [answer["token"] for answer in ours]
    np.testing.assert_allclose(
        [answer["score"] for answer in theirs], [answer["probability"] for answer in ours], atol=1e-5
    )


TAGS = Task("tags", ("text",), ("a*", "b"), "tags", ("micro_f1", "macro_f1"), kind="multilabel", is_own=True)
TABLE = {"train": "local/tags.jsonl", "texts": ["body"], "label": "tags", "kind": "multilabel"}


@pytest.mark.parametrize("hub", [None, {"dataset": "someone/tags", "revision": "abc", "config": None}])
def test_a_card_of_an_own_task(tmp_path, monkeypatch, hub):
    monkeypatch.setitem(TASKS, "tags", TAGS)
    tree = default_tree()
    tree["tasks"] |= {"run": ["tags"], "tags": tree["tasks"]["cola"] | {"data": TABLE | {"hub": hub}}}
    front, body = card(tmp_path, task_model(check_params(tree), monkeypatch, task="tags"), task="tags")
    assert front.get("datasets") == (["someone/tags"] if hub else None)
    assert front["language"] == "en" and "license" not in front and "model-index" not in front
    source = r"someone/tags (revision abc) of the Hub" if hub else "local tables (tags.jsonl)"
    assert f"- Task: tags (any of the classes a\\*, b), {source}, their column tags as label" in body.replace(
        "its c", "their c"
    )
    assert "GLUE" not in body and "synthetic rows" not in body
    assert "The scores are those of a share of train that no model was trained on." in body
    assert "truncation=True, top_k=None)" in body and "a row has the labels whose logit is above 0" in body


def test_a_pipeline_scores_each_of_several_labels(tmp_path):
    from transformers import pipeline

    tokenizer = train_tokenizer(["the shop was closed"], vocabulary_size=100)
    config = replace(STUDENT, vocab_size=tokenizer.get_vocab_size(), problem_type=MULTILABEL, initializer_range=0.3)
    model = classifier(config, TAGS.labels)
    save_model(model, tmp_path)
    save_tokenizer(tokenizer, tmp_path, max_length_tokens=LIMIT_TOKENS)
    rows = encode([{"text": "the shop"}], TAGS, tokenizer, max_length_tokens=LIMIT_TOKENS)
    with torch.inference_mode():
        ours = model(rows.batch([0])).required_logits.sigmoid()[0].tolist()
    (found,) = pipeline("text-classification", str(tmp_path), truncation=True, top_k=None)(["the shop"])
    scores = {answer["label"]: answer["score"] for answer in found}
    assert [scores[label] for label in TAGS.labels] == pytest.approx(ours, abs=1e-5)
