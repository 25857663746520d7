"""The real `dvc repro` on a tiny params.yaml, twice, and what it leaves."""

import shutil
import sqlite3

import pytest
import yaml

from tests.support.project import copy_project, run
from tests.support.root import ROOT
from tinybert.compress.onnx_files import write_portable
from tinybert.config.load import load_params
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Masker, spread_batches
from tinybert.evaluate.language_model import agreement, masked_lm_scores
from tinybert.evaluate.scoring import choose_variant
from tinybert.models.bert import MaskedLM
from tinybert.models.model_folders import load_bert
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_json
from tinybert.stage import declared

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
ITEMS = {
    "corpus": "domain",
    "student": "tinybert4",
    "task": "cola",
    "seed": "42",
    "model": "tinybert4",
    "sparsity": "20",
}
DOMAIN = ["domain_distill@little_professor-42", "domain_distill@little_professor-43", "evaluate_domain"]


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = copy_project(tmp_path_factory.mktemp("project"))
    first = run(folder, "dvc", "repro")
    assert first.returncode == 0, first.stderr[-3000:]
    return folder


def test_a_second_run_has_nothing_to_do(project):
    second = run(project, "dvc", "repro")
    assert second.returncode == 0
    assert "Running stage" not in second.stdout
    assert "up to date" in second.stdout


def test_every_stage_leaves_its_metrics_and_only_plain_numbers(project):
    files = sorted(str(path.relative_to(project / "metrics")) for path in (project / "metrics").rglob("*.json"))
    assert files == [
        "augment/cola.json",
        "baselines/cola-static.json",
        "baselines/cola-tfidf.json",
        "domain_distill/little_professor-42.json",
        "domain_distill/little_professor-43.json",
        "evaluate/cola-bilstm/42.json",
        "evaluate/cola-bilstm/43.json",
        "evaluate/cola-tinybert4/42.json",
        "evaluate/cola-tinybert4/43.json",
        "evaluate_domain/little_professor-42.json",
        "evaluate_domain/little_professor-43.json",
        "filter_corpus.json",
        "finetune_student/cola-bilstm/42.json",
        "finetune_student/cola-bilstm/43.json",
        "finetune_student/cola-tinybert4/42.json",
        "finetune_student/cola-tinybert4/43.json",
        "finetune_teacher/cola.json",
        "general_distill/bilstm.json",
        "general_distill/little_professor.json",
        "general_distill/tinybert4.json",
        "prepare_corpus.json",
        "prepare_task/cola.json",
        "prepare_teacher.json",
        "prepare_tokenizer.json",
        "prune/cola-bilstm-20.json",
        "prune/cola-tinybert4-20.json",
        "quantize/cola-tinybert4.json",
        "task_distill_intermediate/cola-bilstm-42.json",
        "task_distill_intermediate/cola-bilstm-43.json",
        "task_distill_intermediate/cola-tinybert4-42.json",
        "task_distill_intermediate/cola-tinybert4-43.json",
        "task_distill_prediction/cola-bilstm-42.json",
        "task_distill_prediction/cola-bilstm-43.json",
        "task_distill_prediction/cola-tinybert4-42.json",
        "task_distill_prediction/cola-tinybert4-43.json",
        "tokenize/domain.json",
        "tokenize/general.json",
    ]
    assert not any("seconds" in (project / "metrics" / name).read_text() for name in files)
    pruned = read_json(project / "metrics/prune/cola-tinybert4-20.json")
    assert pruned["sparsity"] == pytest.approx(0.2, abs=0.001)
    assert pruned["steps"] == 4
    assert read_json(project / "metrics/augment/cola.json")["original"] == 36  # train_fraction: 0.9 of 40


@pytest.mark.parametrize("name", sorted(STAGES.keys() - {"check_params", "code"}))
def test_a_stage_needs_its_declared_inputs_only(project, tmp_path, monkeypatch, name):
    monkeypatch.chdir(project)
    items = {item: ITEMS[item] for item in STAGES[name].get("matrix", {})}
    if name == "domain_distill":
        items["student"] = "little_professor"
    names = {f"item.{item}": value for item, value in items.items()} | {"seed": "42"}
    shutil.copy(project / "mlflow.db", tmp_path)
    for path in ("params.yaml", "dvc.yaml", "stages", "src", *declared("deps", name, names)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if not (tmp_path / path).exists():
            (tmp_path / path).symlink_to(project / path)
    options = [part for item, value in items.items() for part in (f"--{item}", value)]
    done = run(tmp_path, f"stages.{name}", *options)
    assert done.returncode == 0, done.stderr


def test_domain_metrics_are_those_of_the_models(project, monkeypatch):
    monkeypatch.chdir(project)
    params = load_params()
    masker, heldout = Masker.of(params.masking, load_tokenizer(paths.TOKENIZER)), paths.sequences("domain", "heldout")
    limit = params.domain_evaluation.heldout_sequences
    texts = spread_batches(Sequences.open(heldout), masker, limit=limit, seed=params.seed)
    folders = {"student": paths.domain_student("little_professor", 43), "teacher": paths.TEACHER}
    models = {name: load_bert(MaskedLM, folder) for name, folder in folders.items()}
    found = read_json(paths.metrics("evaluate_domain", "little_professor-43"))
    for name, model in models.items():
        assert found[name]["domain"] == pytest.approx(masked_lm_scores(model, texts)[0], rel=1e-4)
    assert found["agreement"]["domain"] == pytest.approx(agreement(**models, batches=texts), rel=1e-4)
    assert found["untrained"]["domain"] != found["student"]["domain"]


def test_the_packaged_int8_file_is_the_chosen_one(project, tmp_path):
    folder = project / "models/final/cola/tinybert4"
    found = read_json(project / "metrics/quantize/cola-tinybert4.json")
    write_portable(folder / f"{choose_variant(found, 'matthews', 1.0)}.onnx", tmp_path / "expected.onnx")
    assert (folder / "onnx/model_quantized.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()


def test_the_report_is_there_and_self_contained(project):
    page = (project / "reports/index.html").read_text()
    assert "little_professor" in page
    assert "tinybert4" in page
    assert "<script src" not in page
    assert "little_professor" in (project / "reports/summary.md").read_text()
    assert max(map(len, (project / "reports/summary.txt").read_text().splitlines())) <= 100


def test_mlflow_has_a_run_for_each_stage_under_one_parent(project):
    with sqlite3.connect(project / "mlflow.db") as database:
        tags = database.execute("select run_uuid, key, value from tags").fetchall()
        unfinished = database.execute("select count(*) from runs where status != 'FINISHED'").fetchone()[0]
        curve = database.execute("select count(*) from metrics where key = 'curve/total'").fetchone()[0]
    stages = [value for _, key, value in tags if key == "stage"]
    assert len(stages) == 33
    assert "report" in stages
    assert len({value for _, key, value in tags if key == "mlflow.parentRunId"}) == 1
    assert unfinished == 0
    # An entry for each of 4 steps; the bilstm has no general and no intermediate training.
    students = {"general": 2, "domain": 2, "intermediate": 2, "prediction": 4, "pruned": 2}
    assert curve == 4 * (len(["pretraining", "fine-tuning"]) + sum(students.values()))


def test_the_student_folder_serves_itself(project):
    folder = project / "models/task/cola/tinybert4/seed42"
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"} <= {
        path.name for path in folder.iterdir()
    }
    served = {path.name for path in (project / "models/final/cola/tinybert4").iterdir()}
    assert {"fp32.onnx", "int8-dynamic.onnx", "int8-qdq.onnx", "int8-qoperator.onnx", "tokenizer.json"} <= served
    assert {"model.safetensors", "README.md", "training.json"} <= served
    assert "objective.safetensors" not in served
    portable = {path.name for path in (project / "models/final/cola/tinybert4/onnx").iterdir()}
    assert portable == {"model.onnx", "model_quantized.onnx"}


def test_teacher_outputs_are_cached_for_both_phases(project):
    kept = sorted(path.name.split("-")[0] for path in (project / ".teacher_cache").glob("*.rows"))
    assert "logits_0" in kept and "hidden_1" in kept
    # Both students share them. Inner layers are read by the tokens of a trimmed vocabulary, predictions by all tokens.
    assert len(kept) - len(set(kept)) == kept.count("logits_0") - 1 == 1


def test_models_answer_questions(project):
    asked = run(project, "tinybert.cli", "ask", "The capital of France is [MASK].", PYTHONPATH="src")
    assert asked.returncode == 0, asked.stderr
    assert [line.split()[0] for line in asked.stdout.splitlines()] == ["teacher", "little_professor"]
    probabilities = [float(part) for part in asked.stdout.splitlines()[0].split()[2::2]]
    assert len(probabilities) == 5
    assert probabilities == sorted(probabilities, reverse=True)


def test_changing_a_domain_loss_reruns_its_stages_only(project):
    before = (project / "params.yaml").read_bytes()
    changed = run(project, "dvc", "exp", "run", "-S", "students.little_professor.domain.losses.attention=2.0")
    assert changed.returncode == 0, changed.stderr
    assert sorted(stages_run(changed.stdout)) == sorted(["check_params", *DOMAIN, "package", "report"])
    (project / "params.yaml").write_bytes(before)
    back = run(project, "dvc", "repro")
    found = [line.split("'")[1] for line in back.stdout.splitlines() if "is cached - skipping run" in line]
    assert set(found) >= {"check_params", *DOMAIN}


def test_changing_a_task_loss_does_not_rerun_the_control(project):
    before = (project / "params.yaml").read_bytes()
    override, target = "students.tinybert4.prediction.temperature=3.0", "finetune_student@cola-tinybert4"
    changed = run(project, "dvc", "exp", "run", "-S", override, target)
    assert changed.returncode == 0, changed.stderr
    assert stages_run(changed.stdout) == ["check_params"]
    (project / "params.yaml").write_bytes(before)
    assert run(project, "dvc", "repro").returncode == 0


@pytest.mark.long
def test_push_and_pull_restore_results_without_running(project, tmp_path):
    for command in (["remote", "add", "--default", "storage", str(tmp_path / "storage")], ["push", "--quiet"]):
        done = run(project, "dvc", *command)
        assert done.returncode == 0, done.stderr
    weights = project / "models/task/cola/tinybert4/seed42/model.safetensors"
    before = weights.read_bytes()
    for folder in ("models", "data", ".dvc/cache"):
        shutil.rmtree(project / folder)
    done = run(project, "dvc", "pull", "--quiet")
    assert done.returncode == 0, done.stderr
    assert weights.read_bytes() == before
    assert "Running stage" not in run(project, "dvc", "repro").stdout
