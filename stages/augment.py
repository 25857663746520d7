"""A task's training rows with variations of each: by substitution (Jiao et al.) or sampling (Tang et al.)."""

from tinybert.config.load import StageParams
from tinybert.data.task_sources import fraction_of
from tinybert.data.tasks import TASKS, Task
from tinybert.distill.resume import Checkpoint
from tinybert.pipeline import paths
from tinybert.pipeline.files import read_jsonl, write_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Writes the rows, each followed by its variations; with 0 copies the rows alone."""
    params, task = stage.params, TASKS[stage.items["task"]]
    whole = list(read_jsonl(paths.task_rows(task.name) / "train.jsonl"))
    rows = fraction_of(whole, params.tasks[task.name].train_fraction, seed=params.seed)
    strategy, checkpoint = STRATEGIES[params.augmentation.strategy], Checkpoint.of(stage)
    augmented = strategy(rows, task, params, checkpoint) if params.tasks[task.name].augmented_copies else rows
    write_jsonl(paths.augmented(task.name), augmented)
    stage.write_metrics({"original": len(rows), "augmented": len(augmented)})
    checkpoint.remove()


def substituted(rows: list[dict], task: Task, params: StageParams, checkpoint: Checkpoint) -> list[dict]:
    """The rows with words substituted by the teacher's masked LM and by word vectors."""
    from tinybert.augment.substitution import Settings, substitute
    from tinybert.augment.word_vectors import word_vectors
    from tinybert.data.tokenizer import load_tokenizer
    from tinybert.models.bert import MaskedLM
    from tinybert.models.checkpoints import load_bert
    from tinybert.models.outputs import best_device

    substitution = params.augmentation.substitution
    return substitute(
        rows,
        task,
        settings=Settings(
            copies=params.tasks[task.name].augmented_copies,
            probability=substitution.probability,
            top_k=substitution.candidates,
            second_segment=substitution.second_segment,
            keep_word=False,
            keep_partner=True,
            max_length_tokens=params.tasks[task.name].max_length_tokens,
            precision=params.precision,
        ),
        masked_lm=load_bert(MaskedLM, paths.TEACHER).to(best_device()),
        tokenizer=load_tokenizer(paths.TOKENIZER),
        vectors=word_vectors(substitution.word_vectors, paths.corpus("general", "train"), seed=params.seed),
        seed=params.seed,
        checkpoint=checkpoint,
    )


def sampled(rows: list[dict], task: Task, params: StageParams, _checkpoint: Checkpoint) -> list[dict]:
    """The rows with words masked, replaced by others of their part of speech, and cut to n-grams: seconds of work."""
    from tinybert.augment.sampling import Settings, sample

    sampling = params.augmentation.sampling
    settings = Settings(
        copies=params.tasks[task.name].augmented_copies,
        mask_probability=sampling.mask_probability,
        replacement_probability=sampling.replacement_probability,
        ngram_probability=sampling.ngram_probability,
        longest_ngram=sampling.longest_ngram,
        tagger=sampling.pos_tagger,
    )
    return sample(rows, task, settings=settings, seed=params.seed)


STRATEGIES = {"substitution": substituted, "sampling": sampled}

if __name__ == "__main__":
    run_stage(main, "task")
