"""A task model as ONNX: FP32, dynamic INT8, static INT8 in two formats; size, score, latency of each."""

from tinybert.compress.calibration import calibration_feeds
from tinybert.compress.export import export_onnx
from tinybert.compress.measure import answers_of_forms, latencies, scores_of_forms
from tinybert.compress.quantization import plan_int8, write_int8
from tinybert.compress.variants import INT8_FORMS
from tinybert.data.encoding import read_examples
from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer
from tinybert.evaluate.predictions import save_predictions
from tinybert.models.checkpoints import Classifier, copy_model, load_task_model, read_provenance
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, read_json, write_json
from tinybert.report.task_card import TaskModel, write_task_card
from tinybert.stage import Stage, run_stage

CHECKED_ROWS = (1, 32)  # batches of dev rows on which the exported graph must answer as the model does


def main(stage: Stage) -> None:
    """Writes the folder that the model ships: weights, four ONNX files, tokenizer, label names, model card."""
    params, task, name = stage.params, TASKS[stage.items["task"]], stage.items["model"]
    settings, limit = params.quantization, params.tasks[task.name].max_length_tokens
    calibration = settings.calibration
    tokenizer, data = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    train, dev = (
        read_examples(data / f"{split}.jsonl", task, tokenizer, max_length_tokens=limit)
        for split in ("train", task.dev_splits[0])
    )
    feeds = calibration_feeds(train, examples=calibration.examples, batch_size=calibration.batch_size, seed=params.seed)
    model = load_task_model(paths.task_model(task.name, name))
    model.config.check_longer(settings.latency.length_tokens, "quantization.latency.length_tokens")
    with atomic_folder(paths.final(task.name, name)) as folder:
        copy_model(paths.task_model(task.name, name), folder)
        save_tokenizer(tokenizer, folder, max_length_tokens=limit)
        fp32 = folder / "fp32.onnx"
        export_onnx(model, fp32, real_rows=[dev.batch(range(min(size, len(dev)))) for size in CHECKED_ROWS])
        plan = plan_int8(
            fp32,
            feeds,
            method="minmax",
            percentile=100.0,
            smoothing=calibration.smoothing,
            tolerance=float("inf"),
            search_examples=64,
        )
        for form in INT8_FORMS:
            write_int8(fp32, folder / f"{form}.onnx", form=form, plan=plan)
        answers = answers_of_forms(folder, dev, task, threads=settings.latency.threads)
        metrics = scores_of_forms(folder, answers, task, seed=params.seed)
        measured = latencies(folder, settings.latency, dev)
        write_task_card(folder, about(stage, model, metrics))
    write_json(paths.latency(task.name, name), measured)
    save_predictions(paths.predictions(stage.name, stage.instance), answers)
    # Names of nodes begin with a slash, which MLflow refuses within names.
    left = {part.lstrip("/"): plan.costs[part] for part in plan.in_float}
    stage.write_metrics(metrics | {"search": {"sum_of_single_moves": sum(plan.costs.values()), "left_in_float": left}})


def about(stage: Stage, model: Classifier, scores: dict) -> TaskModel:
    """What the card says of the model. scores: of its ONNX forms."""
    task, name = TASKS[stage.items["task"]], stage.items["model"]
    data = read_json(paths.metrics("prepare_task", task.name))
    return TaskModel(
        name=name,
        task=task,
        model=model,
        history=read_provenance(paths.task_model(task.name, name)),
        params=stage.params,
        scores=scores,
        teacher=read_json(paths.metrics("finetune_teacher", task.name))["dev"],
        majority=data["majority"],
        examples=data["examples"],
    )


if __name__ == "__main__":
    run_stage(main, "task", "model")
