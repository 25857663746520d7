"""Folders of finished models: weights, tokenizer, label names, ONNX variants and the model card."""

import shutil
from itertools import product

from tinybert.compress.onnx_files import write_portable
from tinybert.compress.variants import passing_variant
from tinybert.config.load import StageParams
from tinybert.config.tasks import Task, read_task
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer
from tinybert.models.bert import MaskedLM
from tinybert.models.model_folders import copy_model, load_bert, load_task_model, read_provenance
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, read_json
from tinybert.report.model_card import Finished, write_domain_card, write_task_card
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Copies the task models and domain students of the global seed, each with its card, and lists them in MLflow."""
    params = stage.params
    for task, name in product(params.tasks.run, params.quantization.models):
        metrics = package_task_model(read_task(task), name, params)
        stage.run.log_model_reference(f"{task}-{name}", paths.final(task, name), metrics)
    for name in params.domain.students:
        metrics = package_domain_student(name, params)
        stage.run.log_model_reference(f"domain-{name}", paths.final("domain", name), metrics)


def package_task_model(task: Task, name: str, params: StageParams) -> dict:
    """Copies a task model with its ONNX files and writes its card; returns the metrics of its ONNX variants."""
    source = paths.task_model(task.name, params.seed, name)
    metrics = {part: read_json(paths.metrics(part, task.name)) for part in ("prepare_task", "finetune_teacher")}
    metrics["quantize"] = read_json(paths.metrics("quantize", f"{task.name}-{name}"))
    drop, key = params.quantization.max_score_drop, f"quantization.max_score_drop: {task.name}/{name}"
    chosen = passing_variant(metrics["quantize"], task.headline, drop, key=key)
    with atomic_folder(paths.final(task.name, name)) as folder:
        copy_model(source, folder)
        save_tokenizer(load_tokenizer(source), folder, max_length_tokens=params.tasks[task.name].max_length_tokens)
        shutil.copytree(paths.onnx(task.name, name), folder, copy_function=shutil.copy, dirs_exist_ok=True)
        write_portable(folder / "fp32.onnx", folder / "onnx/model.onnx")
        if params.quantization.method == "smoothed":  # published ones need ONNX Runtime
            write_portable(folder / f"{chosen}.onnx", folder / "onnx/model_quantized.onnx")
        finished = Finished(name, load_task_model(source), read_provenance(source), params)
        write_task_card(folder, finished, task, metrics, chosen)
    return metrics["quantize"]


def package_domain_student(name: str, params: StageParams) -> dict:
    """Copies a domain student and writes its card; returns its metrics."""
    source = paths.domain_student(name, params.seed)
    metrics = read_json(paths.metrics("evaluate_domain", f"{name}-{params.seed}"))
    with atomic_folder(paths.final("domain", name)) as folder:
        copy_model(source, folder)
        write_domain_card(folder, Finished(name, load_bert(MaskedLM, source), read_provenance(source), params), metrics)
    return metrics["student"]


if __name__ == "__main__":
    run_stage(main)
