"""Held-out losses of a general student while it trains, from three initializations; not part of the pipeline.

`python -m benchmarks.learning_curves --init random|subcloning|narrowing OUTPUT.jsonl`, after `dvc repro tokenize`, or
`dvc repro prepare_teacher` if the student imitates the pretrained teacher: distills a student of params.yaml as its
general stage does and appends a JSON line at each evaluation. `narrowing` is HomoDistil (benchmarks/narrowing.py).
`seconds` are those of training, without initialization and evaluations. A saved student can replace a folder of
models/general; it has no provenance, so its model cards leave out general distillation.
"""

import argparse
import json
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from tqdm import tqdm

from benchmarks.narrowing import Narrower
from benchmarks.timing import synchronize
from tinybert.config.load import PARAMS, check_params, read_yaml
from tinybert.config.schema import Params
from tinybert.config.students import Student, check_students, training_of
from tinybert.data.sequences import Sequences
from tinybert.data.tokenizer import load_tokenizer
from tinybert.distill.batches import Batches, Masker, MicroBatch, spread_batches
from tinybert.distill.loop import (
    Distiller,
    LiveTeacher,
    Settings,
    adamw,
    all_epochs,
    distillation_step,
    optimizer_step,
    set_learning_rate,
    start_accelerator,
)
from tinybert.distill.metric_log import MetricLogger, TrainRun
from tinybert.distill.objective import DistillationConfig, DistillationLoss
from tinybert.models.bert import BertConfig, MaskedLM
from tinybert.models.initialization import InitializedStudent, general_teacher, initialize_student, subclone
from tinybert.models.model_folders import save_model
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import atomic_folder
from tinybert.pipeline.process import FreedMemory, stream

INITS = ("random", "subcloning", "narrowing")
SUBCLONING_SEQUENCES = 256  # as in stages/general_distill.py
EVALUATE_AT = (0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)


def learning_curve(
    module: Distiller,
    teacher: LiveTeacher,
    batches: Batches,
    heldout: list[MicroBatch],
    settings: Settings,
    evaluate_at: Collection[int],
) -> Iterator[dict[str, Any]]:
    """Trains as distill.loop.train does, up to the last step of `evaluate_at`; yields an entry at each of them."""
    memory = FreedMemory()
    accelerator, steps, training = start_accelerator(settings.precision), max(evaluate_at), settings.training
    teacher.begin(accelerator)
    distiller, optimizer = accelerator.prepare(module.train(), adamw(module, settings))
    if settings.pruner:
        settings.pruner.begin(steps, optimizer)
    logger = MetricLogger(steps, TrainRun("general distillation"), accelerator, module.loss.map.learned)
    tokens, seconds, rate = 0, 0.0, 0.0

    def entry(step: int) -> dict[str, Any]:
        losses = evaluate(distiller, teacher, heldout, accelerator)
        found = {"step": step, "tokens": tokens, "learning_rate": rate, "seconds": round(seconds, 2)}
        return found | {"parameters": module.student.parameter_count, "total": losses.pop("total"), "losses": losses}

    if 0 in evaluate_at:
        yield entry(0)
    started = time.perf_counter()
    for step, (epoch, batch) in zip(range(steps), all_epochs(batches), strict=False):
        torch.manual_seed(int(stream(settings.seed, "dropout", step, 0).integers(2**63)))
        module.loss.map.redraw(step)
        rate = set_learning_rate(step, steps, optimizer, settings)
        terms = distillation_step(batch, distiller, teacher, accelerator, training.accumulation_steps)
        norm = optimizer_step(step, distiller, optimizer, accelerator, settings)
        tokens += int(batch.mask.sum())
        logger.add(epoch, rate, terms, norm)
        memory.after_step()
        if step + 1 in evaluate_at:
            synchronize()
            seconds += time.perf_counter() - started
            yield entry(step + 1)
            started = time.perf_counter()
    logger.bar.close()


@torch.no_grad()
def evaluate(
    distiller: Distiller, teacher: LiveTeacher, heldout: list[MicroBatch], accelerator: Accelerator
) -> dict[str, float]:
    """The "total" and each unweighted term of the loss, without dropout."""
    distiller.eval()
    distiller.loss.map.redraw(0)  # a random map reads the same layers at each evaluation
    sums: Counter[str] = Counter()
    for part in heldout:
        batch = part.batch.to(accelerator.device)
        with accelerator.autocast():
            total, terms = distiller(MicroBatch(batch, part.shares), teacher(batch))
        sums.update({name: float(value) for name, value in {"total": total, **terms}.items()})
    distiller.train()
    return dict(sums)


def heldout_batches(sequences: Sequences, masker: Masker | None, limit: int) -> list[MicroBatch]:
    """Batches with their shares of all that losses are means over."""
    batches = spread_batches(sequences, masker, limit=limit)
    counts = [batch.counts() for batch in batches]
    totals = {unit: max(1, sum(count[unit] for count in counts)) for unit in counts[0]}
    shares = ({unit: count[unit] / totals[unit] for unit in totals} for count in counts)
    return [MicroBatch(batch, share) for batch, share in zip(batches, shares, strict=True)]


def chosen_params(options: argparse.Namespace) -> Params:
    """params.yaml with the student's initialization, losses and learning rate as the options say; UserError."""
    tree, name = read_yaml(PARAMS), options.student
    params, key = check_params(tree), f"students.{name}"
    if name not in params.students:
        raise UserError(f"--student: unknown (got {name}); allowed: {', '.join(params.students)}")
    student = tree["students"][name]
    if options.losses:
        student["general"] = (student["general"] or {}) | {"losses": options.losses}
    if not student["general"]:
        raise UserError(f"{key}.general: no losses (got null); fix: give --losses, or choose another student")
    if options.learning_rate:
        training = training_of(params, name, "general").model_dump()
        student["general"]["training"] = training | {"learning_rate": options.learning_rate}
    if options.init == "random":
        student["init"] = "random"
    elif not params.students[name].init.teacher:
        raise UserError(f"{key}.init: names no teacher layers; fix: set it to {{teacher: uniform}} for {options.init}")
    return check_params(tree)


def begin_student(params: Params, name: str, init: str, teacher: MaskedLM) -> tuple[Distiller, BertConfig]:
    """The student before its first step with its losses, and the shape that it ends in; UserError if it does not fit.

    With `narrowing` it is as wide as the teacher, and its projections begin as the identity.
    """
    student, shape = params.students[name], teacher.config
    check_students({name: student}, shape.shape, ["general"])
    torch.manual_seed(params.seed)
    config = shape.resized(student.architecture)
    if init == "narrowing":
        initialized = wide_student(student, config, teacher)
    else:
        sequences = Sequences.open(paths.sequences("general", "train"))
        sample = partial(spread_batches, sequences, limit=SUBCLONING_SEQUENCES)
        initialized = initialize_student(student, teacher, sample=sample)
    length_tokens = params.tokenize.sequence_tokens
    losses = DistillationConfig.of(student, "general", seed=params.seed, length_tokens=length_tokens)
    loss = DistillationLoss(losses, config, shape)
    if initialized.projection is not None:
        for projection in loss.projections.values():
            projection.weight = nn.Parameter(torch.empty_like(initialized.projection))
        loss.start_projections(initialized.projection)
    return Distiller(initialized.model, loss), config


def wide_student(student: Student, config: BertConfig, teacher: MaskedLM) -> InitializedStudent:
    """The teacher's layers that init.teacher names, in the teacher's width, with the identity as projection."""
    heads, allowed = config.num_attention_heads, teacher.config.num_attention_heads
    if heads != allowed:
        raise UserError(f"--init: narrowing keeps all heads (got {heads}); allowed: {allowed}; fix: another --init")
    sizes = {name: getattr(teacher.config, name) for name in ("hidden_size", "intermediate_size")}
    return subclone(teacher, replace(config, **sizes), student.init.teacher, batches=[])


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    params, name, init = chosen_params(options), options.student, options.init
    training, tokenizer = training_of(params, name, "general"), load_tokenizer(paths.TOKENIZER)
    teacher = general_teacher(params, params.students[name])
    module, config = begin_student(params, name, init, teacher)
    narrower = None
    if init == "narrowing":
        narrower = Narrower(module.student, module.loss, config, options.narrowing_fraction)
    settings = Settings(training, params.optimizer, params.seed, params.precision, narrower)

    # Losses on layers only are computed on plain text, as in the general stage.
    masker = Masker.of(params.masking, tokenizer) if module.loss.student_spec.logits else None
    train, heldout = (Sequences.open(paths.sequences("general", split)) for split in ("train", "heldout"))
    batches = Batches(train, masker, batch_size=training.batch_size, seed=params.seed)
    parts = heldout_batches(heldout, masker, options.heldout_sequences)
    for model_config in (config, teacher.config):
        model_config.check_length(batches.longest_row_tokens, batches.length_key)
    steps = options.steps or int(training.steps(len(batches)))
    evaluate_at = {step for step in options.evaluate_at if step < steps} | {steps}
    columns = ("step", "tokens", "learning_rate", "seconds", "parameters", "total", *module.loss.weights)
    print(f"{name}, {init}: held-out losses\n" + " ".join(f"{column:>13}" for column in columns), flush=True)
    with open(options.output, "a", encoding="utf-8") as handle:
        for entry in learning_curve(module, LiveTeacher(teacher, module.loss), batches, parts, settings, evaluate_at):
            handle.write(json.dumps({"init": init, "student": name} | entry) + "\n")
            handle.flush()
            values = [(entry | entry["losses"])[column] for column in columns]
            tqdm.write(" ".join(f"{value:13{'.5g' if isinstance(value, float) else 'd'}}" for value in values))
    if options.save:
        with atomic_folder(options.save) as folder:
            save_model(module.student, folder)
            module.loss.save(folder)
            shutil.copytree(paths.TOKENIZER, folder, dirs_exist_ok=True)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the parser ends the process if it is wrong."""

    def weights(text: str) -> dict[str, float]:
        pairs = (part.split("=") for part in text.split(","))
        return {name: float(weight) for name, weight in pairs}

    def steps(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, metavar="OUTPUT.jsonl", help="lines are appended")
    parser.add_argument("--init", choices=INITS, required=True)
    parser.add_argument("--student", default="tinybert4")
    parser.add_argument("--steps", type=int, help="default: those of the general stage; the last one is evaluated")
    parser.add_argument("--learning-rate", type=float, help="peak, in place of the general stage's")
    parser.add_argument("--losses", type=weights, metavar="NAME=WEIGHT,...", help="in place of the general stage's")
    parser.add_argument("--evaluate-at", type=steps, default=EVALUATE_AT, metavar="STEP,STEP,...")
    parser.add_argument("--heldout-sequences", type=int, default=128, help="evaluated at most")
    parser.add_argument("--narrowing-fraction", type=float, default=0.5, help="of the steps, in which it is narrowed")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="a new folder for the trained student")
    options = parser.parse_args(arguments)
    if not 0 < options.narrowing_fraction <= 1:
        parser.error("--narrowing-fraction: must be above 0 and at most 1")
    if options.save and options.save.exists():
        parser.error(f"--save: {options.save} exists; fix: name a new folder")
    return options


if __name__ == "__main__":
    main()
