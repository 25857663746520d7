"""The tokenizer of teacher and students: the teacher's own, or one trained on the general corpus."""

from tinybert import paths
from tinybert.corpus.tokenizer import load_tokenizer, save_pretrained_tokenizer, save_tokenizer, train_tokenizer
from tinybert.files import atomic_folder, read_jsonl
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Writes the tokenizer that goes with the teacher's source."""
    teacher = stage.params.teacher
    with atomic_folder(paths.TOKENIZER) as folder:
        if teacher.source == "hub":
            save_pretrained_tokenizer(teacher.hub.model, teacher.hub.revision, folder)
        elif teacher.source == "local":
            save_pretrained_tokenizer(teacher.local.folder, None, folder)
        else:
            texts = (document["text"] for document in read_jsonl(paths.corpus("general", "train")))
            save_tokenizer(train_tokenizer(texts, vocabulary_size=teacher.embedded.vocabulary_size), folder)
        pieces = load_tokenizer(folder).get_vocab_size()
    stage.write_metrics({"pieces": pieces})


if __name__ == "__main__":
    run_stage(main)
