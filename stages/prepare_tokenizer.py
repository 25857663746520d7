"""The tokenizer of teacher and students: the teacher's own, or one trained on the general corpus."""

from tokenizers import Tokenizer

from tinybert.data.tokenizer import folder_tokenizer, hub_tokenizer, save_tokenizer, train_tokenizer
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, read_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Writes the tokenizer that goes with the teacher's source."""
    tokenizer = find_tokenizer(stage.params.teacher)
    with atomic_folder(paths.TOKENIZER) as folder:
        save_tokenizer(tokenizer, folder)
    stage.write_metrics({"pieces": tokenizer.get_vocab_size()})


def find_tokenizer(teacher) -> Tokenizer:
    """From the Hub or the teacher's folder; an synthetic teacher learns one from the corpus."""
    if teacher.source == "hub":
        return hub_tokenizer(teacher.hub)
    if teacher.source == "local":
        return folder_tokenizer(paths.resolve(teacher.local.folder))
    texts = (document["text"] for document in read_jsonl(paths.corpus("general", "train")))
    return train_tokenizer(texts, vocabulary_size=teacher.synthetic.vocabulary_size)


if __name__ == "__main__":
    run_stage(main)
