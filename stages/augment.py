"""A task's training rows with variations of each (Jiao et al. 2020, algorithm 1)."""

from tinybert import paths
from tinybert.files import read_jsonl, write_jsonl
from tinybert.glue.tasks import TASKS
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Writes the rows, each followed by its variations; with 0 copies the rows alone."""
    task = TASKS[stage.items["task"]]
    rows = list(read_jsonl(paths.glue(task.name) / "train.jsonl"))
    copies = stage.params.glue[task.name].augmented_copies
    augmented = varied(rows, task, copies, stage.params) if copies else rows
    write_jsonl(paths.augmented(task.name), augmented)
    stage.write_metrics({"original": len(rows), "augmented": len(augmented)})


def varied(rows: list[dict], task, copies: int, params) -> list[dict]:
    """The rows with `copies` draws of each sentence, by the teacher's masked LM and word vectors."""
    from tinybert.augment.strategies import Settings, augment
    from tinybert.augment.word_vectors import word_vectors
    from tinybert.corpus.tokenizer import load_tokenizer
    from tinybert.models.activations import best_device
    from tinybert.models.folder import load_model

    augmentation = params.augmentation
    return augment(
        rows,
        task,
        settings=Settings(
            copies=copies,
            probability=augmentation.probability,
            top_k=augmentation.candidates,
            second_segment=augmentation.second_segment,
            max_length_tokens=params.glue[task.name].max_length_tokens,
        ),
        masked_lm=load_model(paths.TEACHER).to(best_device()),
        tokenizer=load_tokenizer(paths.TOKENIZER),
        vectors=word_vectors(augmentation.word_vectors, paths.corpus("general", "train"), seed=params.seed),
        seed=params.seed,
    )


if __name__ == "__main__":
    run_stage(main, "task")
