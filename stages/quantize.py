"""A task model as ONNX: FP32, dynamic INT8, static INT8 in two formats; score, size and latency of each."""

from tinybert.compress.onnx_files import OnnxClassifier, export_onnx, latencies
from tinybert.compress.quantization import calibration_feeds, plan_int8, write_int8
from tinybert.data.encoding import read_examples
from tinybert.data.tasks import read_task
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import PREDICTION_BATCH_SIZE, decide
from tinybert.evaluate.scoring import Predictions, save_predictions, variant_scores
from tinybert.models.checkpoints import load_task_model
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, file_sizes_mb, write_json
from tinybert.pipeline.paths import INT8_VARIANTS, VARIANTS
from tinybert.stage import Stage, run_stage

CHECKED_ROWS = (1, 32)  # sizes of the batches of dev rows on which the exported graph must agree with PyTorch


def main(stage: Stage) -> None:
    """Writes and measures the ONNX files of one task model."""
    params, task, name = stage.params, read_task(stage.items["task"]), stage.items["model"]
    settings, calibration = params.quantization, params.quantization.calibration
    limit, latency = params.tasks[task.name].max_length_tokens, settings.latency
    tokenizer, data = load_tokenizer(paths.TOKENIZER), paths.task_rows(task.name)
    train = read_examples(data / "train.jsonl", task, tokenizer, max_length_tokens=limit)
    dev = read_examples(data / f"{task.dev_splits[0]}.jsonl", task, tokenizer, max_length_tokens=limit)
    model = load_task_model(paths.task_model(task.name, params.seed, name))
    model.config.check_length(latency.length_tokens, "quantization.latency.length_tokens")

    with atomic_folder(paths.onnx(task.name, name)) as folder:
        files = {variant: folder / f"{variant}.onnx" for variant in VARIANTS}
        export_onnx(model, files["fp32"], real_rows=[dev.batch(range(min(rows, len(dev)))) for rows in CHECKED_ROWS])
        feeds = calibration_feeds(
            train, examples=calibration.examples, batch_size=calibration.batch_size, seed=params.seed
        )
        plan = plan_int8(files["fp32"], feeds, smoothing=calibration.smoothing, exclude=settings.exclude)
        for variant in INT8_VARIANTS:
            write_int8(plan, files[variant], variant)
        predictions = {}
        for variant, file in files.items():
            logits = OnnxClassifier(file, latency.threads).logits_of(dev, PREDICTION_BATCH_SIZE)
            predictions[variant] = Predictions(task.headline, dev.gold, decide(logits, task))
        sizes = {variant: file_sizes_mb(file) for variant, file in files.items()}
        measured = latencies(files, latency, dev, model.config.vocab_size)

    write_json(paths.latency(task.name, name), measured)
    save_predictions(paths.predictions(stage.name, stage.instance), predictions)
    scores = variant_scores(predictions, task, seed=params.seed)
    stage.write_metrics({variant: scores[variant] | {"size_mb": sizes[variant]} for variant in VARIANTS})


if __name__ == "__main__":
    run_stage(main, "task", "model")
