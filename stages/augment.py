"""A task's training rows, variations by substitution (Jiao et al.) or sampling (Tang et al.), and unlabeled rows."""

from itertools import chain

from tinybert.augment.sampling import sample
from tinybert.augment.substitution import WordPredictor, read_sentences, replacement_candidates, stop_words, substitute
from tinybert.augment.word_vectors import word_vectors
from tinybert.config.load import StageParams
from tinybert.config.tasks import Task, read_task
from tinybert.data.encoding import fraction_of, read_rows
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.resume import Checkpoint
from tinybert.models.bert import MaskedLM
from tinybert.models.model_folders import load_bert
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_jsonl, write_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Writes the rows, each followed by its variations (with 0 copies only the rows), then the unlabeled rows."""
    params, task = stage.params, read_task(stage.items["task"])
    settings = params.tasks[task.name]
    checkpoint = Checkpoint(paths.checkpoints(stage.name, stage.items), stage.fingerprint())
    rows = fraction_of(read_rows(task, "train"), settings.train_fraction, seed=params.seed)
    augmented = rows
    if settings.augmented_copies and params.augmentation.strategy == "sampling":
        augmented = sample(rows, task, params.augmentation.sampling, copies=settings.augmented_copies, seed=params.seed)
    elif settings.augmented_copies:
        augmented = substituted(rows, task, params, checkpoint)
    # A placeholder label: the teacher labels these rows, as it labels augmented ones.
    marks = {"label": rows[0]["label"], "augmented": True}
    unlabeled = (row | marks for row in read_jsonl(paths.unlabeled(task.name)))
    write_jsonl(paths.augmented(task.name), chain(augmented, unlabeled))
    stage.write_metrics({"original": len(rows), "augmented": len(augmented)})
    stage.earlier_seconds = checkpoint.earlier_seconds
    checkpoint.remove()


def substituted(rows: list[dict], task: Task, params: StageParams, checkpoint: Checkpoint) -> list[dict]:
    """The rows with words replaced by those of the teacher's masked LM and of word vectors."""
    settings, task_settings = params.augmentation.substitution, params.tasks[task.name]
    masked_lm = load_bert(MaskedLM, paths.TEACHER)
    tokenizer = load_tokenizer(paths.TOKENIZER)
    vectors = word_vectors(settings.word_vectors, paths.corpus("general", "train"), seed=params.seed)
    # Words that training cuts off stay as they are; [CLS] and [SEP] count.
    max_tokens = min(task_settings.max_length_tokens, masked_lm.config.max_position_embeddings) - 2
    texts = dict.fromkeys(row[column] for row in rows for column in task.columns)
    sentences = read_sentences(texts, tokenizer, max_tokens=max_tokens, unchanged=stop_words(settings.stop_words))
    predictor = WordPredictor(masked_lm, tokenizer, params.precision)
    candidates = replacement_candidates(sentences, settings, predictor, vectors, checkpoint)
    copies, probability = task_settings.augmented_copies, settings.probability
    return substitute(rows, task, candidates, probability=probability, copies=copies, seed=params.seed)


if __name__ == "__main__":
    run_stage(main, "task")
