"""The first check of a run: opens every local source that params.yaml names and the run reads, and lists all mistakes.

The rules are those of the stages' own readers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from tinybert.augment.substitution import stop_words
from tinybert.augment.word_vectors import from_file
from tinybert.config.fields import ModelSource, read_config, source_folder
from tinybert.config.schema import Params
from tinybert.config.students import check_students
from tinybert.config.tasks import TASKS, ReadyTeacher, Task, TrainingRows, teacher_source
from tinybert.data.corpus import file_articles, matching_files
from tinybert.data.own_tasks import read_task_rows, records
from tinybert.data.prediction_files import read_predicted_teacher
from tinybert.data.table_files import Table, tables_of
from tinybert.data.tokenizer import folder_tokenizer, teacher_tokenizer
from tinybert.distill.task_teacher import check_config, check_row_losses, check_teacher, start_task_teacher
from tinybert.evaluate.language_model import load_questions, read_quiz_file
from tinybert.models import outputs
from tinybert.models.initialization import given_teacher, initialize_student, start_teacher
from tinybert.models.model_folders import load_pretrained
from tinybert.pipeline import paths
from tinybert.pipeline.errors import Check, UserError, check_all


def check_sources(params: Params) -> dict[str, TrainingRows]:
    """Opens all local sources of a run; UserError with a line for each mistake.

    Of the Hub only small files are downloaded: config.json of task teachers; for a local BERT, the teacher's tokenizer.

    Returns:
        The training rows by task, without tasks whose rows are on the Hub.
    """
    rows: dict[str, TrainingRows] = {}
    check_all(_checks(params, rows))
    return rows


def _checks(params: Params, rows: dict[str, TrainingRows]) -> Iterator[Check]:
    """The checks of all sources; those of tasks add to `rows`."""

    def read(task: str) -> None:
        rows[task] = check_rows(params, task)

    if params.corpus.source == "local":
        yield from (partial(check_files, pattern) for pattern in params.corpus.local.files)
    for task in params.tasks.run:
        data = params.tasks[task].data
        if not (data.hub if data else params.tasks.source == "hub"):
            yield partial(read, task)
    if params.domain.students and params.domain_evaluation.quiz.source == "local":
        yield partial(check_quiz, params)
    if params.augments and params.augmentation.strategy == "substitution":
        yield partial(stop_words, params.augmentation.substitution.stop_words)
        if (vectors := params.augmentation.substitution.word_vectors).source == "file":
            yield partial(from_file, paths.resolve(vectors.file))
    if params.precision == "bfloat16":
        yield outputs.check_bfloat16
    if params.teacher.source == "local":
        yield partial(check_local_teacher, params)
    sources: dict[str, tuple[ModelSource, list[str]]] = {}  # tasks share an encoder
    for task in params.tasks.run:
        settings = params.tasks[task]
        if (ready := settings.finetuned_teacher) and ready.predictions:
            files, key = ready.predictions, f"tasks.{task}.finetuned_teacher.predictions"
            for split in ("train", "dev", "test"):
                if path := getattr(files, split):
                    yield partial(Table(path, f"{key}.{split}").check_columns, (files.id, *files.columns))
        if found := teacher_source(params.tasks, task):
            sources.setdefault(found[1], (found[0], []))[1].append(task)
    for key, (source, tasks) in sources.items():
        yield partial(check_task_teacher, params, tasks, source, key=key, rows=rows)
    for name, student in params.used_students.items():
        if student.init.folder:
            yield partial(check_init, params, name)


def check_files(pattern: str) -> None:
    """Reads the first document of each file that a path or glob of corpus.local.files matches."""
    for path in matching_files([pattern]):
        next(file_articles(path), None)


def check_rows(params: Params, name: str) -> TrainingRows:
    """Reads a task's rows as stage prepare_task does, and its predictions."""
    settings = params.tasks[name]
    if data := settings.data:
        needed = {"test": data.unlabeled_columns, "unlabeled": tuple(data.texts)}
        tables = tables_of(name, data).items()
        check_all(partial(table.check_columns, needed.get(split, data.columns)) for split, table in tables)
    task, splits = read_task_rows(name, params.tasks, seed=params.seed)
    train, lacking = splits["train"], 0
    if settings.finetuned_teacher and (files := settings.finetuned_teacher.predictions):
        of_splits = {split: list(records(splits[split])) for split in ("train", *task.dev_splits)}
        _, counts = read_predicted_teacher(task, files, of_splits, heldout_fraction=params.tasks.heldout_fraction)
        lacking = counts["without_prediction"]
    words = sum(len(text.split()) for column in task.columns for text in train[column])
    return TrainingRows(task, len(train), words / max(1, len(train)), lacking, len(splits.get("unlabeled", ())))


def check_quiz(params: Params) -> None:
    """Reads the quiz; if the tokenizer is here, an answer must be a single token."""
    quiz = params.domain_evaluation.quiz
    if params.teacher.source == "local" and (folder := paths.resolve(params.teacher.local.folder)).is_dir():
        load_questions(quiz, folder_tokenizer(folder))
    else:
        read_quiz_file(quiz.local.file)


def check_local_teacher(params: Params) -> None:
    """Loads the teacher of teacher.local.folder and compares it with its tokenizer and with each student."""
    folder = given_teacher(params.teacher)
    tokenizer = check_all([partial(folder_tokenizer, folder), partial(load_pretrained, folder)])[0]
    teacher = start_teacher(params.teacher, vocab_size=tokenizer.get_vocab_size(), seed=params.seed)
    students = params.used_students.items()
    check_all([
        partial(check_lengths, params, params.tasks.run, teacher.config.check_length),
        partial(teacher.config.check_length, params.tokenize.sequence_tokens, "tokenize.sequence_tokens"),
        *(partial(check_students, {name: student}, teacher.config.shape) for name, student in students),
    ])  # fmt: skip


def check_lengths(params: Params, tasks: Iterable[str], check_length: Callable[[int, str], None]) -> None:
    """Compares the greatest length of the tasks' rows with a model's positions."""
    lengths = {f"tasks.{task}.max_length_tokens": params.tasks[task].max_length_tokens for task in tasks}
    check_all(partial(check_length, tokens, key) for key, tokens in lengths.items())


def check_task_teacher(
    params: Params, tasks: list[str], source: ModelSource, *, key: str, rows: Mapping[str, TrainingRows]
) -> None:
    """Loads the model with this key as stage finetune_teacher does; one on the Hub is judged by its config.json."""
    name = tasks[0]
    folder = source_folder(source, key=key, files=("config.json",))
    config = read_config(folder)
    is_bert, size = config.get("model_type", "bert") == "bert", config.get("vocab_size")
    has_other_tokens = isinstance(size, int) and size > params.teacher.synthetic.vocabulary_size
    if not is_bert or (params.teacher.source == "synthetic" and has_other_tokens):
        check_row_losses(config, key, params)
    task = rows[name].task if name in rows else _unread_task(params, name, config)
    if not source.folder:
        check_config(folder, task if isinstance(source, ReadyTeacher) else None, key, params)
        return
    teacher = start_task_teacher(task, teacher_tokenizer(params.teacher) if is_bert else None, source, key=key)
    check_teacher(teacher, key, params)
    check_lengths(params, tasks, teacher.config.check_length)


def _unread_task(params: Params, name: str, config: Mapping[str, Any]) -> Task:
    """A task without its rows; the classes that params.yaml does not list are those of its teacher's config.json."""
    if not (data := params.tasks[name].data):
        return TASKS[name]
    names = config.get("id2label")
    theirs = tuple(map(str, names.values())) if isinstance(names, dict) and names else ("LABEL_0", "LABEL_1")
    labels = () if data.kind == "regression" else data.labels or theirs
    return Task(name, data.texts, labels, name, kind=data.kind, is_own=True)


def check_init(params: Params, name: str) -> None:
    """Loads the model that a student starts from; its shape is compared with params if the teacher's is known."""
    student = params.students[name]
    stored, _ = load_pretrained(source_folder(student.init, key=f"students.{name}.init"))
    if params.teacher.source == "hub":
        return
    if params.teacher.source == "local":
        teacher, _ = load_pretrained(given_teacher(params.teacher))
    else:
        teacher = start_teacher(params.teacher, vocab_size=stored.config.vocab_size, seed=params.seed)
    try:
        initialize_student(student, teacher, sample=list)
    except UserError as error:
        raise UserError(f"students.{name}.{error}") from None
