"""Linear models of a task, on TF-IDF features and on static embeddings from the teacher."""

from tinybert.config.tasks import read_task
from tinybert.data.encoding import encode, read_rows
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.task_teacher import TaskTeacher
from tinybert.evaluate.baselines import LinearModel, static_features, tfidf_features
from tinybert.evaluate.scoring import compare_splits, predict_references, save_predictions
from tinybert.models.bert import BertModel, MaskedLM
from tinybert.models.model_folders import load_bert
from tinybert.pipeline import paths
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Fits each model on the training rows, scores it beside the teacher and the majority class, counts its FLOPs."""
    params, task = stage.params, read_task(stage.items["task"])
    tokenizer, limit = load_tokenizer(paths.TOKENIZER), params.tasks[task.name].max_length_tokens
    teacher = TaskTeacher.load(task, params.seed, tokenizer, max_length_tokens=limit)
    references = predict_references(teacher)
    train = encode(read_rows(task, "train"), task, tokenizer, max_length_tokens=limit)
    # The static embeddings are of the students' word pieces, which a teacher with another vocabulary lacks.
    encoder = teacher.model if isinstance(teacher.model, BertModel) else load_bert(MaskedLM, paths.TEACHER)
    dev, _ = references[task.dev_splits[0]]
    tfidf, static = tfidf_features(train, task), static_features(train, encoder, pair=task.is_pair)
    for name, featurizer in {"tfidf": tfidf, "static": static}.items():
        model = LinearModel(task, featurizer, train)
        scores, predictions = compare_splits(model.predict, references, task)
        save_predictions(paths.predictions(stage.name, f"{stage.instance}-{name}"), predictions)
        stage.write_metrics({"costs": {"student": model.costs(dev)}} | scores, f"{stage.instance}-{name}")


if __name__ == "__main__":
    run_stage(main, "task")
