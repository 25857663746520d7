"""The benchmarks of task distillation: that both contestants do the same work, what is counted, what is printed."""

import argparse
import itertools
import re

import numpy as np
import pytest
import torch

from benchmarks import reference, task_distill
from benchmarks.task_distill import (
    INTERMEDIATE,
    PREDICTION,
    SIZES,
    Measurement,
    TaskSetup,
    chosen_work,
    measure,
    padded_batches,
    run_ours,
)
from tests.support.builders import STUDENT, TEACHER, batch, classifier
from tests.unit.benchmarks.test_timing import renamed, shape_of
from tinybert.data.encoding import Encoded
from tinybert.distill.batches import micro_batches
from tinybert.distill.loop import Distiller
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.outputs import Batch
from tinybert.pipeline.errors import UserError

TINY_ROWS = "gj04\t1\t\tA king ruled.\ngj04\t0\t*\tKing a ruled the old land.\ngj04\t1\t\tA queen sang.\n"


def copy_of(model) -> reference.Classifier:
    """The reference's classifier with the weights of ours."""
    config = model.config
    copy = reference.Classifier(shape_of(config), config.vocab_size, len(model.labels), dropout=0.0)
    copy.embeddings.position = torch.nn.Embedding(config.max_position_embeddings, config.hidden_size)
    copy.load_state_dict(renamed(model.state_dict()))
    return copy


def pair_batch(lengths=(7, 7, 7), width=7) -> Batch:
    found = batch(lengths, width, labels=torch.zeros(len(lengths), dtype=torch.int64))
    segments = (torch.arange(width) > 3).long().expand_as(found.input_ids)
    return Batch(found.input_ids, found.mask, segments * found.mask, found.labels)


def both_systems(phase) -> tuple:
    """Our teacher and distiller, and the reference with the same weights; all in float64."""
    teacher, student = classifier(TEACHER, seed=1), classifier(STUDENT, seed=2)
    for model in (teacher, student):  # logits of some size, so that the soft labels are no halves
        torch.nn.init.normal_(model.classifier.weight)
    ours = Distiller(student, DistillationLoss(DistillationConfig(dict.fromkeys(phase.losses, 1.0)), STUDENT, TEACHER))
    plain = reference.TaskDistillation(copy_of(teacher), copy_of(student), layers=phase == INTERMEDIATE)
    for name, projection in ours.loss.projections.items():
        getattr(plain, f"{name}_projection").load_state_dict(projection.state_dict())
    for module in (teacher, ours, plain):
        module.double()
    return teacher, ours, plain


@torch.no_grad()
def our_losses(teacher, ours, example) -> dict[str, torch.Tensor]:
    answer = teacher(example, ours.loss.teacher_spec())
    _, found = ours(micro_batches(example, processes=1, process=0, accumulation_steps=1)[0], answer)
    return found


@torch.no_grad()
def test_the_reference_computes_the_same_layer_losses():
    teacher, ours, plain = both_systems(INTERMEDIATE)
    example = pair_batch()
    found = our_losses(teacher, ours, example)
    expected = plain.losses(example.input_ids, example.mask, example.token_type_ids)
    assert set(found) == set(expected) == set(INTERMEDIATE.losses)
    for name in INTERMEDIATE.losses:
        assert found[name].item() == pytest.approx(expected[name].item(), rel=1e-10)


@torch.no_grad()
def test_reference_prediction_loss_is_ours_plus_teacher_entropy():
    teacher, ours, plain = both_systems(PREDICTION)
    example, wider = pair_batch((7, 4, 5), 7), pair_batch((7, 4, 5), 12)
    found = our_losses(teacher, ours, example)["prediction"].item()
    expected = plain.losses(wider.input_ids, wider.mask, wider.token_type_ids)["prediction"].item()
    answers = teacher(example).logits.softmax(-1).numpy()
    entropy = -(answers * np.log(answers)).sum(-1).mean()
    assert found > 1e-3
    assert expected == pytest.approx(found + entropy, rel=1e-10)


@torch.no_grad()
def test_scores_of_padded_keys_are_zero_and_others_as_they_were():
    _, _, plain = both_systems(INTERMEDIATE)
    example, wider = pair_batch((7, 4, 5), 7), pair_batch((7, 4, 5), 9)
    outputs, padded_outputs = (
        reference.without_padded_keys(plain.student(each.input_ids, each.mask, each.token_type_ids), each.mask)
        for each in (example, wider)
    )
    for scores, padded_scores in zip(outputs.scores, padded_outputs.scores, strict=True):
        assert padded_scores[..., 7:].abs().max() == 0
        assert padded_scores[1, :, :4, 4:].abs().max() == 0
        torch.testing.assert_close(padded_scores[1, :, :4, :4], scores[1, :, :4, :4])
        assert scores[1, :, :4, :4].abs().min() > 0


@pytest.mark.parametrize(
    ("phase", "trained"),
    [
        (INTERMEDIATE, {"student", "embedding_projection", "hidden_projection"}),
        (PREDICTION, {"student"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_reference_step_trains_the_student_not_the_teacher(phase, trained):
    _, _, plain = both_systems(phase)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    example = pair_batch()
    plain.step(example.input_ids, example.mask, example.token_type_ids)
    changed = {name for name, value in plain.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in changed} == trained
    assert not plain.teacher.training
    assert plain.student.training


def test_the_references_batches_are_padded_to_one_length():
    ids = [np.array([2, 9, 8, 3]), np.array([2, 7, 3]), np.array([2, 3])]
    segments = [np.array([0, 0, 1, 1]), np.array([0, 0, 1]), np.array([0, 0])]
    batches = padded_batches(Encoded(ids, segments, None), batch_rows=2, length_tokens=5)
    expected = {
        (2, 9, 8, 3, 0): ([0, 0, 1, 1, 0], [True, True, True, True, False]),
        (2, 7, 3, 0, 0): ([0, 0, 1, 0, 0], [True, True, True, False, False]),
        (2, 3, 0, 0, 0): ([0, 0, 0, 0, 0], [True, True, False, False, False]),
    }
    seen = set()
    for found in itertools.islice(batches, 20):
        rows = [tuple(row) for row in found.input_ids.tolist()]
        assert len(set(rows)) == 2
        assert [expected[row] for row in rows] == list(
            zip(found.token_type_ids.tolist(), found.mask.tolist(), strict=True)
        )
        seen |= set(rows)
    assert seen == expected.keys()


def test_totals_count_preparation_and_first_epoch():
    found = Measurement(5.0, 7.0, reference_steps_s=[2.0, 9.0, 1.0], our_steps_s=[0.1, 0.5])
    # Of the reference a median, for its steps are alike: 12·2; of ours a mean, for they are not: 5 + 7 + 8·0.3.
    assert found.totals_s(epochs=3, epoch_steps=4) == pytest.approx((24.0, 14.4), rel=1e-12)


class Recorded:
    """A contestant whose steps take 1, 2, 3 ... seconds."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> float:
        self.steps += 1
        return float(self.steps)


def test_first_epoch_runs_alone_then_twenty_steps_to_one():
    found = measure(Recorded(), Recorded(), epoch_steps=3, blocks=2)
    assert (found.our_start_s, found.our_first_epoch_s) == (1.0, 2.0 + 3.0 + 4.0)
    assert found.reference_steps_s == [2.0, 3.0]  # the first was to warm up
    assert found.our_steps_s == [float(step) for step in range(5, 45)]


def options(**chosen) -> argparse.Namespace:
    default = {"task": "cola", "data": None, "vocabulary": None, "rows": None, "sizes": "small"}
    return argparse.Namespace(**default | chosen)


def test_rows_and_vocabulary_from_files(tmp_path):
    (tmp_path / "CoLA").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "CoLA" / f"{split}.tsv").write_text(TINY_ROWS)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD] [UNK] [CLS] [SEP] [MASK] a king queen ruled sang the old land .".replace(" ", "\n"))
    work = chosen_work(options(data=str(tmp_path), vocabulary=str(vocabulary)))
    assert sorted(work.examples.lengths) == [6, 6, 9]
    assert not any((ids == 1).any() for ids in work.examples.input_ids)  # nothing is unknown
    assert "3 training rows of 7.0 pieces in the mean; vocabulary of 14 pieces" in work.described
    assert (work.epoch_steps, work.padded_length_tokens) == (1, 64)
    assert len(chosen_work(options(data=str(tmp_path), rows=2)).examples) == 2


def test_embedded_pairs_where_no_data_is_given():
    work = chosen_work(options(task="mrpc"))
    assert (len(work.examples), work.epoch_steps, work.padded_length_tokens) == (40, 10, 128)
    assert all(set(ids) == {0, 1} for ids in work.examples.token_type_ids)
    assert "synthetic" in work.described


def test_a_missing_vocabulary_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"^--vocabulary: .*vocab\.txt is no file; give"):
        chosen_work(options(vocabulary=str(tmp_path / "vocab.txt")))


class Starts:
    """A start gun that notes at each start which files of the folder are there."""

    def __init__(self, folder, count: int) -> None:
        self.folder, self.count, self.seen = folder, count, []

    def __iter__(self):
        for _ in range(self.count):
            files = self.folder.glob("*.rows")
            self.seen.append({path.name: path.stat().st_size for path in files})
            yield
        raise SystemExit


def small_work() -> TaskSetup:
    assert SIZES["small"].rows == 40
    return chosen_work(options())


@pytest.mark.parametrize(("phase", "at_first"), [(INTERMEDIATE, set()), (PREDICTION, {"hidden", "scores", "logits"})])
def test_teacher_outputs_are_cached_in_the_intermediate_phase(phase, at_first, tmp_path):
    starts = Starts(tmp_path, count=4)
    with pytest.raises(SystemExit):
        run_ours(small_work(), phase, "float32", tmp_path, starts)
    first, *later = starts.seen
    assert {name.split("_")[0] for name in first} == at_first
    assert [{name.split("_")[0] for name in files} for files in later] == [{"hidden", "scores", "logits"}] * 3


@pytest.mark.parametrize(
    ("phase", "losses"), [("intermediate", "embedding, hidden, attention"), ("prediction", "prediction")]
)
def test_prints_both_and_ends_with_the_ratio_of_the_totals(run_main, phase, losses):
    lines = run_main(task_distill, "--phase", phase, "--sizes", "small", "--blocks", "2")
    assert lines[1].endswith(f"losses: {losses}")
    pattern = r"(\w+) +([\d.]+) s a step \((\d+) steps .* total ([\d.]+) s .* peak memory \d+ MiB"
    rows = [re.fullmatch(pattern, line).groups() for line in lines[4:6]]
    assert [(name, count) for name, _, count, _ in rows] == [("reference", "2"), ("ours", "40")]
    (theirs, ours), (their_total, our_total) = ([float(row[place]) for row in rows] for place in (1, 3))
    epochs, epoch_steps = (int(lines[2].split()[place]) for place in (0, 3))
    before = re.match(r"ours: ([\d.]+) s before the first step, ([\d.]+) s for the first epoch", lines[6]).groups()
    assert their_total == pytest.approx(epochs * epoch_steps * theirs, abs=0.1)
    assert our_total == pytest.approx(sum(map(float, before)) + (epochs - 1) * epoch_steps * ours, abs=0.2)
    ratio = float(re.fullmatch(r"ratio (\d+\.\d\d)", lines[-1])[1])
    assert ratio == pytest.approx(their_total / our_total, abs=0.5 * (0.1 + ratio) / our_total + 0.01)
