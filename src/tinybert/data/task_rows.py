"""The rows of a task that one stage left to another, checked as they are read."""

from pathlib import Path

from tinybert.data.tasks import Task
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import read_jsonl
from tinybert.pipeline.text_lines import NO_TEXT


def read_rows(path: str | Path, task: Task) -> list[dict]:
    """The rows of a JSON-lines file that prepare_task or augment wrote; all of them have labels, or none has.

    UserError for a file without rows, and for a row whose texts, "idx" or "label" are not as the task needs them.
    """
    rows = list(read_jsonl(path))
    if not rows:
        raise UserError(f"{path}: holds no rows; run the stage that writes it again")
    is_labelled = "label" in rows[0]
    for number, row in enumerate(rows, start=1):
        wrong = [column for column in task.columns if not _is_text(row.get(column))]
        wrong += ["idx"] if type(row.get("idx")) is not int else []
        wrong += ["label"] if ("label" in row) != is_labelled or (is_labelled and not _fits(task, row["label"])) else []
        if wrong:
            found = f"{wrong[0]} is {row[wrong[0]]!r:.40}" if wrong[0] in row else f"has no {wrong[0]}"
            raise UserError(f"{path}, line {number}: {found}, unfit for {task.name}; run the stage that wrote it")
    return rows


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not NO_TEXT.search(value)


def _fits(task: Task, label: object) -> bool:
    if task.score_range:
        least, greatest = task.score_range
        return isinstance(label, (int, float)) and type(label) is not bool and least <= label <= greatest
    return type(label) is int and 0 <= label < len(task.labels)
