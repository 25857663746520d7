"""A task model as ONNX: FP32, dynamic INT8, static INT8 in two formats; score, size and latency of each."""

from tinybert.compress.quantization import draw_rows
from tinybert.compress.variants import Subject, measure_variants
from tinybert.config.tasks import read_task
from tinybert.data.encoding import encode, read_rows
from tinybert.data.tokenizer import load_tokenizer
from tinybert.evaluate.scoring import save_predictions
from tinybert.models.model_folders import load_task_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, write_json
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Writes and measures the ONNX files of one task model."""
    params, task, name = stage.params, read_task(stage.items["task"]), stage.items["model"]
    settings, limit = params.quantization, params.tasks[task.name].max_length_tokens
    source = paths.task_model(task.name, params.seed, name)
    model, tokenizer = load_task_model(source), load_tokenizer(source)
    model.config.check_length(settings.latency.length_tokens, "quantization.latency.length_tokens")
    train, dev = (read_rows(task, split) for split in ("train", task.dev_splits[0]))
    drawn = draw_rows(train, settings.calibration.examples, seed=params.seed)
    calibration, scored = (encode(rows, task, tokenizer, max_length_tokens=limit) for rows in (drawn, dev))

    with atomic_folder(paths.onnx(task.name, name)) as folder:
        measured = measure_variants(Subject(model, task, calibration, scored), folder, settings, seed=params.seed)
    write_json(paths.latency(task.name, name), measured.latency)
    save_predictions(paths.predictions(stage.name, stage.instance), measured.predictions)
    stage.write_metrics(measured.metrics)


if __name__ == "__main__":
    run_stage(main, "task", "model")
