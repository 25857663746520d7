"""The stages of a task with a teacher of another family, or with its predictions alone."""

import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stages import (
    baselines,
    evaluate,
    finetune_student,
    finetune_teacher,
    prune,
    task_distill_intermediate,
    task_distill_prediction,
)
from tests.support.builders import STUDENT, TEACHER, masked_lm
from tests.support.fake_stage import FakeStage, enter_project, write_cola
from tests.support.families import WORDS, save_family
from tests.support.project import tiny_params, write_params
from tests.unit.distill.test_loop import OPTIMIZER
from tinybert.config.fields import ModelSource, Training
from tinybert.config.load import load_params
from tinybert.config.tasks import TASKS, FineTuning, PredictionFiles, ReadyTeacher
from tinybert.data.encoding import encode
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer
from tinybert.distill.batches import predict
from tinybert.distill.task_teacher import TaskTeacher, cut_classifier
from tinybert.models.bert import SequenceClassifier
from tinybert.models.model_folders import OBJECTIVE_FILE, load_bert, save_model
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_json, read_jsonl, write_json, write_jsonl

COLA = TASKS["cola"]
SHORT = Training(epochs=2, max_steps=None, batch_size=8, learning_rate=5e-3)
LONG = FineTuning(epochs=25, max_steps=None, batch_size=8, learning_rate=1e-2)
ROWS = {"train": 32, "dev": 12}


def tree() -> dict:
    found = tiny_params()
    found["students"]["tinybert4"] |= {"prediction": {"losses": {"prediction": 1.0, "hard": 0.5}, "temperature": 2.0}}
    found["students"]["tinybert4"]["intermediate"] = {"losses": {"pkd": 1.0}}
    found["tasks"]["students"] = found["quantization"]["models"] = ["tinybert4"]
    return found


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Tokenizer, encoder, general student and rows, whose label says whether the king is named."""
    write_params(tmp_path, tree())
    tokenizer = enter_project(tmp_path, monkeypatch, WORDS, vocabulary_size=60)
    for folder, shape in ((paths.TEACHER, TEACHER), (paths.general_student("tinybert4"), STUDENT)):
        folder.mkdir(parents=True)
        save_model(masked_lm(replace(shape, vocab_size=tokenizer.get_vocab_size())), folder)
        save_tokenizer(tokenizer, folder)
    rng, splits = random.Random(0), {}
    for split, count in ROWS.items():
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 8))) for _ in range(count)]
        splits[split] = [{"idx": idx, "sentence": text, "label": int("king" in text)} for idx, text in enumerate(texts)]
    write_cola(**splits)
    write_jsonl(paths.augmented("cola"), splits["train"])
    return tmp_path


def stage(name: str, items: dict[str, str] | None = None, **changes) -> FakeStage:
    """A stage for CoLA; `changes`: "ready" (finetuned_teacher), "encoder" (teacher_encoder), "vocabulary_tokens"."""
    settings = SimpleNamespace(
        max_length_tokens=16, finetuned_teacher=changes.get("ready"), teacher=LONG, intermediate=SHORT,
        prediction=SHORT, pruning=SHORT, train_fraction=0.5,
    )  # fmt: skip

    class Tasks(dict):
        teacher_encoder, heldout_fraction, teacher_cache_gb = changes.get("encoder", "pretrained"), 0.0, 0.1
        vocabulary_tokens = changes.get("vocabulary_tokens")
        cola = settings

    students = load_params().students
    params = SimpleNamespace(
        seed=1, seeds=(1,), tasks=Tasks(cola=settings), students=students, precision="float32", optimizer=OPTIMIZER,
        pruning=SimpleNamespace(ramp_fraction=0.5),
    )  # fmt: skip
    return FakeStage(name, {"task": "cola"} | (items or {}), params)


def run_students(until: str = "prune", **changes) -> dict[str, dict]:
    """The stages that read the teacher, up to one of them; the metrics of each."""
    item = {"student": "tinybert4"}
    stages = [
        (task_distill_intermediate, item | {"seed": "1"}),
        (task_distill_prediction, item | {"seed": "1"}),
        (evaluate, item),
        (baselines, {}),
        (finetune_student, item),
        (prune, item | {"sparsity": "20"}),
    ]
    write_json(paths.trainings("cola", "tinybert4"), [SHORT.model_dump()] * 2)
    found = {}
    for module, items in stages:
        name = module.__name__.rpartition(".")[2]
        run = stage(name, items, **changes)
        module.main(run)
        found[name] = run.metrics
        if name == until:
            return found
    raise ValueError(until)


def test_phase_2_keeps_what_phase_1_pruned(project):
    params = tree()
    params["students"]["tinybert4"]["intermediate"]["pruning"] = {
        "percent": 50, "ramp_fraction": 0.5, "increments": 3
    }  # fmt: skip
    params["pruning"]["sparsities_percent"] = [50]
    write_params(project, params)
    save_family("bert", project / "model", COLA.labels)
    finetune_teacher.main(stage("finetune_teacher", ready=ReadyTeacher(folder=str(project / "model"))))
    item = {"student": "tinybert4", "seed": "1"}
    for module in (task_distill_intermediate, task_distill_prediction):
        run = stage(module.__name__.rpartition(".")[2], item)
        module.main(run)
        assert run.metrics["sparsity"] == pytest.approx(0.5, abs=0.001)
    folders = paths.intermediate("cola", 1, "tinybert4"), paths.task_model("cola", 1, "tinybert4")
    inner, final = (load_file(folder / "model.safetensors") for folder in folders)
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    assert torch.equal(inner[name] == 0, final[name] == 0) and not torch.equal(inner[name], final[name])


def test_pruning_continues_the_learnable_map_of_phase_2(project, monkeypatch):
    params = tree()
    params["students"]["tinybert4"]["prediction"] = {
        "losses": {"prediction": 1.0, "hidden": 1.0}, "temperature": 2.0,
        "layer_map": {"learnable": {"learning_rate": 0.5, "init": "last"}},
    }  # fmt: skip
    write_params(project, params)
    finetune_teacher.main(stage("finetune_teacher"))
    run_students("task_distill_prediction")
    learned = load_file(paths.task_model("cola", 1, "tinybert4") / OBJECTIVE_FILE)["map.theta.0"]
    assert abs(learned[1].item() - 1.0) > 0.1  # it began at 1

    def stop(*arguments, **_):
        assert torch.equal(arguments[2].map.theta[0], learned)
        raise KeyboardInterrupt

    monkeypatch.setattr(prune, "StageTraining", stop)
    with pytest.raises(KeyboardInterrupt):
        prune.main(stage("prune", {"student": "tinybert4", "sparsity": "20"}))


def test_a_ready_teacher_of_another_family_teaches(project):
    source = save_family("electra", project / "model", COLA.labels)
    run = stage("finetune_teacher", ready=ReadyTeacher(folder=str(source)))
    finetune_teacher.main(run)
    folder = paths.task_model("cola", 1, "teacher")
    assert run.metrics["steps"] == 0 and run.metrics["curve"] == [] and run.metrics["layers"] == 2
    stored, given = (load_file(path / "model.safetensors") for path in (folder, source))
    assert all(torch.equal(part, given[name]) for name, part in stored.items())
    assert (folder / "tokenizer.json").read_text() != (paths.TOKENIZER / "tokenizer.json").read_text()
    found = run_students()
    costs = found["evaluate"]["cola-tinybert4/1"]["costs"]
    assert costs["teacher"] == {"parameters": sum(part.numel() for part in stored.values()), "flops": None}
    assert costs["student"]["flops"] > 0
    assert found["evaluate"]["cola-tinybert4/1"]["dev"]["teacher"] == run.metrics["dev"]
    assert found["finetune_student"]["cola-tinybert4/1"]["dev"]["teacher"] == run.metrics["dev"]
    assert {"pkd"} < set(found["task_distill_intermediate"]["curve"][-1])
    assert found["task_distill_prediction"]["curve"][-1]["prediction"] > 0
    assert found["prune"]["sparsity"] == pytest.approx(0.2, abs=0.01)
    assert found["prune"]["steps"] == 2 * math.ceil(0.5 * 32 / 8)  # of half the rows, the train_fraction


def test_the_dev_score_is_that_of_transformers(project):
    from transformers import pipeline

    source = save_family("electra", project / "model", COLA.labels)
    run = stage("finetune_teacher", ready=ReadyTeacher(folder=str(source)))
    finetune_teacher.main(run)
    dev = list(read_jsonl(paths.task_rows("cola") / "dev.jsonl"))
    published = pipeline("text-classification", str(source))([row["sentence"] for row in dev])
    hits = [COLA.labels[row["label"]] == one["label"] for row, one in zip(dev, published, strict=True)]
    assert run.metrics["dev"]["accuracy"] == pytest.approx(np.mean(hits))


def test_an_encoder_of_another_family_is_fine_tuned_here(project):
    source = save_family("distilbert", project / "model", head=False, initializer_range=0.1, dropout=0.0)
    runs = []
    for _ in range(2):
        run = stage("finetune_teacher", encoder=ModelSource(folder=str(source)))
        finetune_teacher.main(run)
        runs.append((run.metrics, (paths.task_model("cola", 1, "teacher") / "model.safetensors").read_bytes()))
    assert runs[0] == runs[1]  # the same bits again
    metrics, _ = runs[0]
    assert metrics["steps"] == 25 * 4
    assert metrics["curve"][-1]["total"] < 0.3 < metrics["curve"][0]["total"]
    assert metrics["dev"]["matthews"] > 0.5
    folder = paths.task_model("cola", 1, "teacher")
    stored, given = (load_file(path / "model.safetensors") for path in (folder, source))
    name = "distilbert.transformer.layer.1.ffn.lin2.weight"
    assert not torch.equal(stored[name], given[name])
    assert list(read_json(folder / "config.json")["id2label"].values()) == list(COLA.labels)
    found = run_students()
    assert found["evaluate"]["cola-tinybert4/1"]["dev"]["teacher"] == metrics["dev"]


@pytest.mark.parametrize("missing", ["gold", "drop"])
def test_predictions_in_files_teach(project, missing):
    for split, count in ROWS.items():
        lines = ["id,no,yes", *(f"{idx},{0.9 - idx / 100:.2f},{0.1 + idx / 100:.2f}" for idx in range(count))]
        lines = lines[:-2] if split == "train" else lines  # two rows without a prediction
        (project / f"{split}.csv").write_text("\n".join(lines))
    files = PredictionFiles(train="train.csv", dev="dev.csv", id="id", probabilities=("no", "yes"), missing=missing)
    run = stage("finetune_teacher", ready=ReadyTeacher(predictions=files))
    finetune_teacher.main(run)
    assert run.metrics["without_prediction"] == 2 and run.metrics["curve"] == []
    assert run.metrics["dev"]["matthews"] == 0.0  # it calls every dev row unacceptable
    changed = tree()
    changed["students"]["tinybert4"]["intermediate"] = None
    write_params(project, changed)
    found = run_students("prune" if missing == "gold" else "evaluate")
    measured = found["evaluate"]["cola-tinybert4/1"]
    assert measured["dev"]["teacher"] == run.metrics["dev"]
    assert measured["costs"]["teacher"] == {"parameters": None, "flops": None}
    rows = {"gold": 32, "drop": 30}[missing]
    assert found["task_distill_prediction"]["steps"] == 2 * math.ceil(rows / 8) == 8
    teacher = TaskTeacher.load(COLA, 1, load_tokenizer(paths.TOKENIZER), max_length_tokens=16)
    examples, asked = teacher.read_both(read_jsonl(paths.augmented("cola")))
    assert len(examples) == rows
    predicted = predict(teacher.model, asked, COLA)
    assert predicted[:30].tolist() == [0] * 30
    assert predicted[30:].tolist() == examples.gold[30:].tolist()


def test_losses_of_tokens_are_refused_before_training(project):
    changed = tree()
    changed["students"]["tinybert4"]["intermediate"] = {"losses": {"attention": 1.0}}
    write_params(project, changed)
    source = save_family("bert", project / "model", COLA.labels)  # by config.json alone it might be ours
    with pytest.raises(UserError, match=r"students\.tinybert4\.intermediate\.losses: no targets for attention"):
        finetune_teacher.main(stage("finetune_teacher", ready=ReadyTeacher(folder=str(source))))
    assert not Path(paths.task_model("cola", 1, "teacher")).exists()


def test_a_student_is_cut_out_of_its_tasks_teacher(project):
    finetune_teacher.main(stage("finetune_teacher"))
    changed = tree()
    of_student = changed["students"]["tinybert4"]
    of_student |= {"init": {"teacher": "uniform", "per_task": True}, "general": None, "intermediate": None}
    write_params(project, changed)
    task_distill_intermediate.main(stage("task_distill_intermediate", {"student": "tinybert4", "seed": "1"}))
    given = list(read_jsonl(paths.augmented("cola")))
    rows = encode(given, COLA, load_tokenizer(paths.TOKENIZER), max_length_tokens=16)
    teacher = load_bert(SequenceClassifier, paths.task_model("cola", 1, "teacher"))
    expected, projection = cut_classifier(teacher, STUDENT.shape, "uniform", rows)
    folder = paths.intermediate("cola", 1, "tinybert4")
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(part, stored[name]) for name, part in expected.state_dict().items())
    of_student["intermediate"] = {"losses": {"hidden": 1.0}}
    write_params(project, changed)
    found = run_students(vocabulary_tokens=47)
    cut = found["task_distill_intermediate"]["curve"]
    learned = load_file(folder / "objective.safetensors")["projections.hidden.weight"]
    assert (learned - projection).abs().max() < 0.2 * projection.abs().max()  # where it started
    of_student["init"] = {"teacher": "uniform"}
    write_params(project, changed)
    until = "task_distill_intermediate"
    general = run_students(until, vocabulary_tokens=47)[until]["curve"]
    assert cut[0]["hidden"] < 0.5 * general[0]["hidden"]
    assert general[-1]["hidden"] < general[0]["hidden"]


def test_a_trimmed_student_goes_through_all_stages(project):
    finetune_teacher.main(stage("finetune_teacher"))
    changed = tree()
    changed["students"]["tinybert4"]["intermediate"] = {"losses": {"hidden": 1.0, "attention": 1.0}}
    write_params(project, changed)
    found = run_students(vocabulary_tokens=47)
    tokens = load_tokenizer(paths.TOKENIZER).get_vocab_size()
    for folder in (paths.intermediate("cola", 1, "tinybert4"), paths.task_model("cola", 1, "tinybert4"),
                   paths.task_model("cola", 1, "tinybert4_pruned20")):  # fmt: skip
        config = read_json(folder / "config.json")
        assert config["vocab_size"] == load_tokenizer(folder).get_vocab_size() < tokens
        assert load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"].shape[0] < tokens
    measured = found["evaluate"]["cola-tinybert4/1"]
    assert 0 < measured["retokenized"] < 1
    assert measured["costs"]["student"]["parameters"] == found["task_distill_prediction"]["parameters"]
    assert found["task_distill_intermediate"]["curve"][-1]["hidden"] > 0
    full = run_students("evaluate")["evaluate"]["cola-tinybert4/1"]
    assert "retokenized" not in full
    assert full["dev"]["teacher"] == measured["dev"]["teacher"]
    assert full["costs"]["teacher"] == measured["costs"]["teacher"]
