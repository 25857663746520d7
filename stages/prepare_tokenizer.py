"""The tokenizer of teacher and students: the teacher's own, or one trained on the general corpus."""

from tinybert.data.tokenizer import save_tokenizer, teacher_tokenizer, train_tokenizer
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, read_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Writes the tokenizer that goes with the teacher's source."""
    teacher = stage.params.teacher
    if (tokenizer := teacher_tokenizer(teacher)) is None:
        texts = (document["text"] for document in read_jsonl(paths.corpus("general", "train")))
        tokenizer = train_tokenizer(texts, vocabulary_size=teacher.synthetic.vocabulary_size)
    with atomic_folder(paths.TOKENIZER) as folder:
        save_tokenizer(tokenizer, folder)
    stage.write_metrics({"tokens": tokenizer.get_vocab_size()})


if __name__ == "__main__":
    run_stage(main)
