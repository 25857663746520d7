"""The first check of a run: opens every local source that params.yaml names and the run reads, and lists all mistakes.

The rules are those of the stages' own readers. Their modules are imported when they are needed: a run without local
sources must not wait for them.
"""

from collections.abc import Collection, Iterator
from functools import partial

from tinybert.config.fields import Architecture
from tinybert.config.schema import Params, PredictionFiles, TableData
from tinybert.config.sources import check_teachers, checkpoint_folder, read_config
from tinybert.config.students import ROW_LOSSES, STAGES, check_students
from tinybert.pipeline import paths
from tinybert.pipeline.errors import Check, UserError, check_all

SEEN_VECTORS = 100  # lines of a file of word vectors
SPLITS = ("train", "dev", "test")


def check_sources(params: Params) -> None:
    """Opens all local sources of a run; UserError with a line for each mistake. Only config.json is downloaded."""
    check_all([*_data_checks(params), *_model_checks(params)])


def _data_checks(params: Params) -> Iterator[Check]:
    """Text, rows of tasks, quiz, and what augmentation reads."""
    if params.corpus.source == "local":
        yield from (partial(check_files, pattern) for pattern in params.corpus.local.files)
    for task, data in params.tasks.own.items():
        if not data.hub:
            yield partial(check_own_task, params, task, data)
    glue = [task for task in params.tasks.run if task not in params.tasks.own]
    if params.tasks.source == "local":
        yield from (partial(check_glue, params, task) for task in glue)
    if params.domain_evaluation.quiz.source == "local":
        yield partial(check_quiz, params)
    if any(getattr(params.tasks, task).augmented_copies for task in params.tasks.run):
        yield partial(check_augmentation, params)


def _model_checks(params: Params) -> Iterator[Check]:
    """Precision, teachers, and the models that students start from."""
    if params.precision == "bfloat16":
        from tinybert.models.outputs import check_bfloat16

        yield check_bfloat16
    if params.teacher.source == "local":
        yield partial(check_teacher, params)
    yield partial(check_teachers, params)
    for task in params.tasks.run:
        source = getattr(params.tasks, task).finetuned_teacher
        if source and source.folder:
            yield partial(check_task_teacher, params, task)
        if source and source.predictions:
            yield partial(check_predictions, task, source.predictions)
    for name, student in params.used_students.items():
        if student.init.folder:
            yield partial(check_init, params, name)


def check_files(pattern: str) -> None:
    """Reads the first document of each file that a path or glob of corpus.local.files matches."""
    from tinybert.data.corpus import file_articles, matching_files

    for path in matching_files([pattern]):
        next(file_articles(path), None)


def check_glue(params: Params, task: str) -> None:
    """Reads the beginning of a GLUE task's files."""
    from tinybert.data.task_sources import check_local
    from tinybert.data.tasks import TASKS

    check_local(TASKS[task], params.tasks)


def check_own_task(params: Params, task: str, data: TableData) -> None:
    """Reads all rows of a task's local tables; INT8 calibration needs enough of them."""
    from tinybert.data.own_tasks import hold_out_rows, read_own
    from tinybert.data.table_files import tables_of

    tables = tables_of(task, data).items()
    check_all(
        partial(table.check_columns, data.unlabeled_columns if split == "test" else data.columns)
        for split, table in tables
    )
    of_task, splits = read_own(task, data)
    asked, train = params.quantization.calibration.examples, splits["train"]
    if fraction := params.tasks.heldout_fraction:
        train, _ = hold_out_rows(train, of_task, fraction, key="tasks.heldout_fraction")
    if params.quantization.models and asked > (rows := len(train)):
        key, problem = "quantization.calibration.examples", f"more than the training rows of {task} (got {asked})"
        raise UserError(f"{key}: {problem}; allowed: at most {rows}; fix: lower it")


def check_quiz(params: Params) -> None:
    """Reads the quiz; if the tokenizer is here, an answer must be a single token."""
    from tinybert.data.tokenizer import folder_tokenizer
    from tinybert.evaluate.language_model import load_questions, read_quiz_file

    quiz = params.domain_evaluation.quiz
    if params.teacher.source == "local" and (folder := paths.resolve(params.teacher.local.folder)).is_dir():
        load_questions(quiz, folder_tokenizer(folder))
    else:
        read_quiz_file(paths.resolve(quiz.local.file))


def check_augmentation(params: Params) -> None:
    """Reads stop words and the first word vectors, or tags a word with NLTK, whichever the strategy uses."""
    settings = params.augmentation
    if settings.strategy == "sampling" and settings.sampling.pos_tagger == "nltk":
        from tinybert.augment.sampling import tag_with_nltk

        tag_with_nltk([["word"]])
    if settings.strategy == "substitution":
        from tinybert.augment.substitution import stop_words
        from tinybert.augment.word_vectors import from_file

        stop_words(settings.substitution.stop_words)
        if (vectors := settings.substitution.word_vectors).source == "file":
            from_file(paths.resolve(vectors.file), max_lines=SEEN_VECTORS)


def check_teacher(params: Params) -> None:
    """Loads the teacher of teacher.local.folder and compares it with its tokenizer and with each student."""
    from tinybert.data.tokenizer import folder_tokenizer
    from tinybert.models.checkpoints import load_pretrained
    from tinybert.models.initialization import given_teacher, start_teacher

    folder = given_teacher(params.teacher)
    check_all([partial(folder_tokenizer, folder), partial(load_pretrained, folder)])
    vocab_size = folder_tokenizer(folder).get_vocab_size()
    teacher = start_teacher(params.teacher, vocab_size=vocab_size, seed=params.seed)
    check_shapes(params, teacher.config.shape)


def check_shapes(params: Params, teacher: Architecture, stages: Collection[str] = STAGES) -> None:
    """Compares a teacher's shape with each student."""
    check_all(partial(check_students, {name: of}, teacher, stages) for name, of in params.used_students.items())


def check_task_teacher(params: Params, task: str) -> None:
    """Loads a fine-tuned BERT and compares its shape with the task students, and its classes if params.yaml has them.

    Other models are loaded by stage finetune_teacher.
    """
    from tinybert.data.tasks import TASKS
    from tinybert.data.tokenizer import folder_tokenizer
    from tinybert.distill.task_teacher import has_tokens_of
    from tinybert.models.bert import SequenceClassifier
    from tinybert.models.checkpoints import load_bert
    from tinybert.models.initialization import finetuned_teacher

    settings, key = getattr(params.tasks, task), f"tasks.{task}.finetuned_teacher"
    folder = checkpoint_folder(settings.finetuned_teacher, key=key)
    if read_config(folder).get("model_type", "bert") != "bert":
        return
    local = paths.resolve(params.teacher.local.folder)
    if params.teacher.source == "local" and not has_tokens_of(folder_tokenizer(local), folder):
        params.check_row_teacher(key, "a BERT with another vocabulary", ROW_LOSSES)
        return
    teacher = load_bert(SequenceClassifier, folder)
    data, vocab_size = settings.data, teacher.config.vocab_size
    is_known = data is None or data.kind == "regression" or data.labels is not None
    labels = (TASKS[task].labels if data is None else data.labels or ()) if is_known else teacher.labels
    multilabel = data is not None and data.kind == "multilabel"
    finetuned_teacher(folder, labels, key=key, vocab_size=vocab_size, multilabel=multilabel)
    students = {name: params.students[name] for name in params.tasks.students}
    check_students(students, teacher.config.shape, ("intermediate", "prediction"))


def check_predictions(task: str, files: PredictionFiles) -> None:
    """Looks for the columns of the files of a task teacher's predictions."""
    from tinybert.data.table_files import Table

    key = f"tasks.{task}.finetuned_teacher.predictions"
    tables = (Table(name, f"{key}.{split}") for split in SPLITS if (name := getattr(files, split)))
    check_all(partial(table.check_columns, (files.id, *files.columns)) for table in tables)


def check_init(params: Params, name: str) -> None:
    """Loads the model that a student starts from; its shape is compared with params if the teacher's is known."""
    from tinybert.models.checkpoints import load_pretrained
    from tinybert.models.initialization import given_teacher, initialize_student, start_teacher

    student = params.students[name]
    stored, _ = load_pretrained(checkpoint_folder(student.init, key=f"students.{name}.init"))
    if params.teacher.source == "hub":
        return
    if params.teacher.source == "local":
        teacher, _ = load_pretrained(given_teacher(params.teacher))
    else:
        teacher = start_teacher(params.teacher, vocab_size=stored.config.vocab_size, seed=params.seed)
    try:
        initialize_student(student, teacher, sample=tuple)
    except UserError as error:
        raise UserError(f"students.{name}.{error}") from None
