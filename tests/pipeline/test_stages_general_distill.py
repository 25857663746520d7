"""The stage general_distill: a released general student replaces it; what stops it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.general_distill import main
from tests.support.builders import STUDENT, TEACHER, classifier, masked_lm
from tests.support.fake_stage import FakeStage, enter_project
from tests.support.project import tiny_params, write_params
from tinybert.config.fields import Training
from tinybert.config.schema import Masking, Optimizer
from tinybert.config.students import Init, StageLosses
from tinybert.data.sequences import sequences_writer
from tinybert.models.model_folders import load_model, save_model
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError

ARCHITECTURE = SimpleNamespace(kind="bert", layers=2, width=12, heads=3, feed_forward=24, dropout=0.1)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project with tokenizer, blocks, a teacher, and in `released` an encoder with its projection."""
    enter_project(tmp_path, monkeypatch)
    write_params(tmp_path, tiny_params(heads=TEACHER.num_attention_heads))
    for folder in (paths.TEACHER, tmp_path / "released", paths.sequences("general", "train")):
        folder.mkdir(parents=True)
    with sequences_writer(paths.sequences("general", "train"), np.dtype(np.uint16)) as append:
        append(np.array([2, 5, 6, 3]), np.array([4]))
    save_model(masked_lm(TEACHER), paths.TEACHER)
    save_model(classifier(STUDENT, seed=5), "released")
    weights = tmp_path / "released/model.safetensors"
    save_file(load_file(weights) | {"fit_dense.weight": torch.arange(288.0).reshape(24, 12)}, weights)
    return tmp_path


def take_over(folder: str) -> FakeStage:
    """Runs the stage for tinybert4 with the weights in `folder` and without general distillation."""
    config = SimpleNamespace(architecture=ARCHITECTURE, init=Init(folder=folder), layer_map="uniform", general=None)
    training = Training(epochs=3, max_steps=None, batch_size=1, learning_rate=1e-3)
    params = SimpleNamespace(
        seed=1,
        precision="float32",
        optimizer=None,
        masking=None,
        students={"tinybert4": config},
        general=SimpleNamespace(training=training),
        tokenize=SimpleNamespace(sequence_tokens=8),
        tasks=SimpleNamespace(teacher_encoder="pretrained"),
    )
    stage = FakeStage("general_distill", {"student": "tinybert4"}, params)
    main(stage)
    return stage


def test_a_published_student_keeps_its_projection(project):
    stage = take_over("released")
    assert stage.metrics["steps"] == 0 and stage.metrics["curve"] == []
    folder = paths.general_student("tinybert4")
    ours, released = load_model(folder).bert.state_dict(), load_file("released/model.safetensors")
    assert all(torch.equal(tensor, released[f"bert.{key}"]) for key, tensor in ours.items())
    learned = load_file(folder / "objective.safetensors")
    assert torch.equal(learned["projections.hidden.weight"], released["fit_dense.weight"])
    assert torch.equal(learned["projections.embedding.weight"], released["fit_dense.weight"])


def test_a_task_student_keeps_its_projections(project):
    (project / "ours").mkdir()
    save_model(classifier(STUDENT, seed=6), "ours")
    save_file({"projections.hidden.weight": torch.full((24, 12), 7.0)}, "ours/objective.safetensors")
    take_over("ours")
    learned = load_file(paths.general_student("tinybert4") / "objective.safetensors")
    assert (learned["projections.hidden.weight"] == 7.0).all()


def test_an_experiments_copy_finds_the_projections_of_the_project(project, monkeypatch):
    test_a_task_student_keeps_its_projections(project)
    (project / "copy").mkdir()
    monkeypatch.setenv("DVC_ROOT", str(project))
    for name in ("data", "models", "params.yaml", "dvc.yaml"):
        if (project / name).exists():
            (project / "copy" / name).symlink_to(project / name)
    monkeypatch.chdir(project / "copy")
    take_over("ours")
    learned = load_file(paths.general_student("tinybert4") / "objective.safetensors")
    assert (learned["projections.hidden.weight"] == 7.0).all()


def training_stage(learning_rate: float) -> FakeStage:
    """The stage for a student that learns from the masked text."""
    config = SimpleNamespace(architecture=ARCHITECTURE, init=Init(), layer_map="uniform", projection="shared",
                             general=StageLosses(losses={"hard": 1.0}))  # fmt: skip
    training = Training(epochs=9, max_steps=None, batch_size=1, learning_rate=1.0)
    training = training.model_copy(update={"learning_rate": learning_rate})  # beyond what params.yaml may say
    params = SimpleNamespace(
        seed=1,
        precision="float32",
        optimizer=Optimizer(weight_decay=0.0, max_gradient_norm=1.0, warmup_fraction=0.0),
        masking=Masking(rate=0.5, mask_fraction=1.0, random_fraction=0.0),
        students={"tiny": config},
        general=SimpleNamespace(training=training),
        tokenize=SimpleNamespace(sequence_tokens=8),
        tasks=SimpleNamespace(teacher_encoder="pretrained"),
    )
    return FakeStage("general_distill", {"student": "tiny"}, params, digest=f"rate{learning_rate}")


def test_a_student_imitates_the_encoder_of_the_task_teachers(project):
    """Only if its losses read no logits: those need the masked-LM head, which pretraining trains."""
    save_model(masked_lm(TEACHER, seed=9), "given")
    for losses, imitated in ({"hidden": 1.0}, "given"), ({"hidden": 1.0, "hard": 1.0}, paths.TEACHER):
        stage = training_stage(1e-3)
        stage.params.tasks.teacher_encoder = "given"
        stage.params.teacher = SimpleNamespace(source="local", local=SimpleNamespace(folder="given"))
        shape = ARCHITECTURE.__dict__ | {"width": 24, "feed_forward": 48, "layers": 1}
        stage.params.students["tiny"] = SimpleNamespace(
            architecture=SimpleNamespace(**shape), init=Init(teacher="bottom"), layer_map="uniform",
            projection="shared", general=StageLosses(losses=losses))  # fmt: skip
        stage.params.general.training = stage.params.general.training.model_copy(update={"epochs": 0})
        main(stage)
        words = load_model(paths.general_student("tiny")).bert.embeddings.word_embeddings.weight
        assert torch.equal(words, load_model(imitated).bert.embeddings.word_embeddings.weight)


def test_a_fault_leaves_no_output_and_a_lower_rate_starts_again(project, monkeypatch):
    monkeypatch.setenv("TINYBERT_CHECKPOINT_SECONDS", "0")
    with pytest.raises(
        UserError, match=r"^step 2 of 9: the .* is (nan|inf); fix: lower learning_rate .* step 1, \.check"
    ):
        main(training_stage(1e30))
    assert not Path("models/general").exists()
    left = Path(".checkpoints/general_distill/tiny")
    saved = torch.load(left / "rate1e+30.pt", weights_only=True)["module"]
    assert saved and all(tensor.isfinite().all() for tensor in saved.values())
    main(training_stage(1e-3))
    assert (paths.general_student("tiny") / "model.safetensors").is_file()
    assert [path.name for path in sorted(left.iterdir())] == ["rate1e+30.lock", "rate1e+30.pt"]


def test_a_teacher_must_fit_every_student(project):
    write_params(project, tiny_params(heads=2))
    with pytest.raises(UserError, match=r"students\.little_professor\.general\.losses\.attention: .* 2 he"):
        main(training_stage(1e-3))
    assert not Path("models/general").exists()
