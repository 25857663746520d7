"""What training stages share: the checkpoint stays until metrics are written, the model folder has all it needs."""

from types import SimpleNamespace

import pytest

from tests.support.builders import STUDENT, classifier
from tests.support.fake_stage import FakeStage, enter_project
from tests.unit.distill.test_loop import OPTIMIZER, examples, settings
from tinybert.distill.batches import Batches
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.model_folders import load_model, read_provenance
from tinybert.pipeline.files import write_json
from tinybert.training import StageTraining


@pytest.fixture
def training(tmp_path, monkeypatch) -> StageTraining:
    enter_project(tmp_path, monkeypatch)
    monkeypatch.setenv("TINYBERT_CHECKPOINT_SECONDS", "0")
    stage = FakeStage("stage", {"task": "cola"}, SimpleNamespace(seed=1, optimizer=OPTIMIZER, precision="float32"))
    loss = DistillationLoss(DistillationConfig({"hard": 1.0}), STUDENT)
    return StageTraining(stage, classifier(seed=1), loss, tmp_path / "model")


def test_the_checkpoint_is_kept_until_the_metrics_are_written(training):
    training.run(Batches(examples(), batch_size=8, seed=7), settings(epochs=1).training, 7)
    checkpoint = training.checkpoint.path

    def measure() -> dict:
        assert checkpoint.is_file() and (training.target / "model.safetensors").is_file()
        assert training.stage.metrics == {"curve": training.curve}
        return {"dev": 0.5}

    training.checkpoint.earlier_seconds = 100.0  # as if it went on after a kill
    training.finish(measure)
    assert training.stage.earlier_seconds == 100.0
    assert not checkpoint.exists()
    assert training.stage.metrics["steps"] == 3 and training.stage.metrics["dev"] == 0.5


def test_the_model_folder_has_weights_and_tokenizer(training):
    training.finish()
    assert load_model(training.target).parameter_count == training.model.parameter_count
    assert {"config.json", "model.safetensors", "training.json", "vocab.txt"} <= {
        path.name for path in training.target.iterdir()
    }
    assert training.curve == []


def test_the_provenance_of_the_source_is_passed_on(training, tmp_path):
    training.source, history = tmp_path / "source", [{"stage": "general_distill", "steps": 7}]
    training.finish()
    (ours,) = read_provenance(training.target)  # the source has none
    assert (ours["stage"], ours["steps"]) == (training.stage.name, 0)
    write_json(training.source / "training.json", history)
    training.finish()
    assert read_provenance(training.target) == [*history, ours]
