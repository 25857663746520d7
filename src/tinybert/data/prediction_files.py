"""Predictions of a teacher in tables of the user: probabilities, logits or classes, found by row ids."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tinybert.config.tasks import PredictionFiles, TableData, Task
from tinybert.data.own_tasks import Labels, row_id
from tinybert.data.table_files import Table
from tinybert.models.foreign import PredictedTeacher
from tinybert.pipeline.errors import UserError

# The least probability: a class that was not predicted has this one, so that its logarithm stays finite.
FLOOR = 1e-12
SUM_TOLERANCE = 0.01  # of probabilities, which files round
Predicted = dict[str, tuple[str, np.ndarray]]  # by row id: where it stands in a table, and its logits


class PredictionReader:
    """Turns the cells of a prediction, or a gold label, into logits: (classes,) float32.

    Probabilities become their logarithms, of a multilabel task log(p / (1 - p)); classes count as certain.
    """

    def __init__(self, task: Task, settings: PredictionFiles) -> None:
        self.task, self.settings, self.outputs = task, settings, len(task.outputs)

    def read(self, table: Table) -> Predicted:
        """Where each id stands in a table and its logits; UserError for the first mistake. Empty cells are none."""
        found: Predicted = {}
        data = TableData.model_construct(kind=self.task.kind, separator=self.settings.separator)
        self.classes = Labels(data, self.task.labels)
        # With a separator an empty text predicts no class.
        empty = (None,) if self.task.is_multilabel and self.settings.separator else (None, "")
        for where, cells in table.rows((self.settings.id, *self.settings.columns)):
            name = row_id(cells.pop(self.settings.id))
            if name in found:
                raise table.error(f"{where}: id {name!r:.40} stands at {found[name][0]} too; fix: remove one of them")
            if any(cell not in empty for cell in cells.values()):
                found[name] = where, self._logits(table, where, cells)
        return found

    def of_label(self, label: Any) -> np.ndarray:
        """The logits of a class id, score or list of class ids."""
        if self.task.is_regression:
            return np.array([label], dtype=np.float32)
        probabilities = np.zeros(self.outputs)
        probabilities[label] = 1.0
        return self._of_probabilities(probabilities)

    def _logits(self, table: Table, where: str, cells: dict[str, Any]) -> np.ndarray:
        try:
            if self.settings.label:
                return self.of_label(self.classes.parse(cells[self.settings.label]))
            parts = list(cells.values())
            parts = parts[0] if len(parts) == 1 and isinstance(parts[0], list) else parts
            if len(parts) != self.outputs:
                allowed = f"{self.outputs}, one for each of {', '.join(self.task.labels) or 'the score':.80}"
                raise ValueError(f"wrong number of values (got {len(parts)}); allowed: {allowed}")
            values = np.array([Labels.score(part) for part in parts])
            return self._of_probabilities(values) if self.settings.probabilities else values.astype(np.float32)
        except ValueError as error:
            columns = ", ".join(self.settings.columns)
            raise table.error(f"{where}, column {columns:.80}: {error}; fix: correct the row") from None

    def _of_probabilities(self, values: np.ndarray) -> np.ndarray:
        if values.min() < 0 or values.max() > 1:
            raise ValueError(f"no probability (got {values.min():g} to {values.max():g}); allowed: 0 to 1")
        if self.task.is_multilabel:
            clipped = values.clip(FLOOR, 1 - FLOOR)
            return np.log(clipped / (1 - clipped)).astype(np.float32)
        if abs(values.sum() - 1) > SUM_TOLERANCE:
            raise ValueError(f"probabilities do not sum to 1 (got {values.sum():g}); allowed: 1 ± {SUM_TOLERANCE}")
        return np.log(values.clip(FLOOR)).astype(np.float32)


def read_predicted_teacher(
    task: Task, settings: PredictionFiles, rows: Mapping[str, Sequence[dict]], *, heldout_fraction: float
) -> tuple[PredictedTeacher, dict[str, int]]:
    """Finds the predictions of all rows of train and the scored splits.

    Args:
        rows: The task's rows of train and the scored splits, as stage prepare_task writes them.
        heldout_fraction: Above 0, and without a dev file, scored rows are a share of train.

    Returns:
        The teacher, and how many rows of train had no prediction, "without_prediction". UserError for a mistake in
        the files, an id that no row has, and a scored row without a prediction: they give the teacher's score.
    """
    if task.is_regression and settings.probabilities:
        key = f"tasks.{task.name}.finetuned_teacher.predictions.probabilities"
        raise UserError(f"{key}: a score has none; allowed: logits or label; fix: name the column as logits")
    reader, logits, numbers, lacking = PredictionReader(task, settings), {}, {}, 0
    for table, splits in _tables(task, settings, heldout_fraction):
        of_table = {split: rows[split] for split in splits}
        found = reader.read(table)
        _check_ids(table, found, of_table, is_part=heldout_fraction > 0)
        for split, of_split in of_table.items():
            names = [_id(row) for row in of_split]
            unknown = [name for name in names if name not in found]
            if split != "train" and unknown:
                problem = f"no prediction of {split}'s row with id {unknown[0]!r:.40}"
                raise table.error(f"{problem}; allowed: one for each row of {split}, which is scored; fix: add it")
            if len(unknown) == len(of_split):
                raise table.error(f"no predictions of {split}; fix: add some")
            lacking += len(unknown)
            is_gold = settings.missing == "gold"
            kept = [(row, name) for row, name in zip(of_split, names, strict=True) if is_gold or name in found]
            values = [found[name][1] if name in found else reader.of_label(row["label"]) for row, name in kept]
            logits[split] = torch.from_numpy(np.stack(values))
            numbers[split] = torch.tensor([row["idx"] for row, _ in kept])
    return PredictedTeacher(logits, numbers, task), {"without_prediction": lacking}


def _tables(task: Task, settings: PredictionFiles, heldout_fraction: float) -> list[tuple[Table, list[str]]]:
    """Each file, and the splits whose rows have their predictions there."""
    files: dict[str, list[str]] = {"train": ["train"], "dev": [], "test": []}
    for split in task.dev_splits:
        key = "test" if split.endswith("test") else "dev"
        is_share = heldout_fraction > 0 or (task.is_own and key == "dev" and not settings.dev)
        files["train" if is_share else key].append(split)
    section = f"tasks.{task.name}.finetuned_teacher.predictions"
    for key, splits in files.items():
        if splits and not getattr(settings, key):
            raise UserError(f"{section}.{key}: missing; the {key} split has labels and is scored; fix: name its file")
    return [(Table(getattr(settings, key), f"{section}.{key}"), splits) for key, splits in files.items() if splits]


def _check_ids(table: Table, found: Predicted, rows: Mapping[str, Sequence[dict]], *, is_part: bool) -> None:
    """UserError if two rows share an id, or a prediction's id is unknown; `is_part`: the table has other rows."""
    counts = Counter({row["idx"]: _id(row) for of_split in rows.values() for row in of_split}.values())
    if repeated := [name for name, count in counts.items() if count > 1]:
        problem = f"rows of {' and '.join(rows)} share the id {repeated[0]!r:.40}"
        raise table.error(f"{problem}; fix: name another column in data.id")
    for name, (where, _) in found.items():
        if name not in counts and not is_part:
            allowed = f"{', '.join(sorted(counts)[:3]):.60}, ..."
            raise table.error(f"{where}: no row has this id (got {name!r:.40}); allowed: {allowed}; fix: correct it")


def _id(row: dict) -> str:
    return row_id(row.get("id", row["idx"]))
