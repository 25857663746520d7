"""What a finished task model ships: weights, tokenizer, label names, ONNX variants and the model card."""

import shutil

from tinybert.data.tasks import TASKS
from tinybert.data.tokenizer import load_tokenizer, save_tokenizer
from tinybert.models.checkpoints import copy_model, load_task_model, read_provenance
from tinybert.pipeline import paths
from tinybert.pipeline.files import atomic_folder, read_json
from tinybert.pipeline.paths import VARIANTS
from tinybert.report.model_card import Finished, write_task_card
from tinybert.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Copies one task model of the global seed with its ONNX files and writes its card."""
    params, task, name = stage.params, TASKS[stage.items["task"]], stage.items["model"]
    source = paths.task_model(task.name, params.seed, name)
    metrics = {part: read_json(paths.metrics(part, task.name)) for part in ("prepare_task", "finetune_teacher")}
    metrics["quantize"] = read_json(paths.metrics("quantize", stage.instance))
    with atomic_folder(paths.final(task.name, name)) as folder:
        copy_model(source, folder)
        limit = params.tasks[task.name].max_length_tokens
        save_tokenizer(load_tokenizer(paths.TOKENIZER), folder, max_length_tokens=limit)
        for variant in VARIANTS:
            shutil.copy(paths.onnx(task.name, name) / f"{variant}.onnx", folder)
        finished = Finished(name, load_task_model(source), read_provenance(source), params)
        write_task_card(folder, finished, task, metrics)
    stage.run.log_model_reference(f"{task.name}-{name}", paths.final(task.name, name), metrics["quantize"])


if __name__ == "__main__":
    run_stage(main, "task", "model")
