"""Tables of what lies behind the results: corpus, filter, tokens, task data, the training of each stage."""

from tinybert.report.charts import Chart, bar_chart
from tinybert.report.results import Results, stage_instances
from tinybert.report.table import ABSENT, Table, count, fixed, percent, score

TRAINING_STAGES = (
    "prepare_teacher",
    "general_distill",
    "domain_distill",
    "finetune_teacher",
    "task_distill_intermediate",
    "task_distill_prediction",
    "prune",
)


def corpus_table(results: Results) -> Table:
    """Documents, words, blocks and tokens of both corpora."""
    rows = []
    for corpus in ("general", "domain"):
        for split in ("train", "heldout"):
            if corpus == "general":
                documents, words = (results.value("prepare_corpus", "", what, split) for what in ("documents", "words"))
            else:
                found = results.value("filter_corpus", "", split)
                documents, words = found["documents"]["kept"], found["words"]["kept"]
            tokens = results.value("tokenize", corpus, split)
            rows.append((
                corpus, split, count(documents), count(words), count(tokens["blocks"]), count(tokens["tokens"]),
                percent(tokens["unknown_share"]),
            ))  # fmt: skip
    columns = ("corpus", "split", "documents", "words", "blocks", "tokens", "unknown")
    pieces = results.value("prepare_tokenizer", "", "pieces")
    note = f"The tokenizer knows {count(pieces)} word pieces; unknown: share of tokens that are none of them."
    return Table("Corpus", columns, rows, names=2, note=note)


def filter_table(results: Results) -> Table:
    """How many training documents hold each subject's terms, and how many of these were kept."""
    found = results.value("filter_corpus", "", "train")
    rows = [("all", "", *_tally(found["documents"]))]
    for subject, tally in found["subjects"].items():
        rows.append((subject, "any term", *_tally(tally)))
        rows += [(subject, term, *_tally(of_term)) for term, of_term in tally["terms"].items()]
    note = "Training documents in which the term occurs. A document can hold several terms and both subjects."
    return Table("Filter", ("subject", "term", "found", "kept", "share kept"), rows, names=2, note=note)


def _tally(found: dict) -> tuple[str, str, str]:
    return count(found["found"]), count(found["kept"]), percent(found["kept_share"])


def task_data_table(results: Results) -> Table:
    """Examples of each task by split, and its augmented training rows."""
    rows = []
    for task in results.params.tasks.run:
        examples = results.value("prepare_task", task, "examples")
        augmented = results.value("augment", task, "augmented")
        for split, size in examples.items():
            rows.append((task, split, count(size), count(augmented) if split == "train" else ""))
    return Table("Task data", ("task", "split", "examples", "augmented"), rows, names=2)


def training_table(results: Results) -> Table:
    """Steps and last mean losses of each training stage."""
    rows = []
    for stage, instance in stage_instances(results.params):
        if stage in TRAINING_STAGES:
            losses = results.value(stage, instance, "loss")
            terms = ", ".join(f"{name} {value:.4g}" for name, value in losses.items()) or "not trained"
            rows.append((stage, instance, terms, count(results.value(stage, instance, "steps"))))
    columns = ("stage", "instance", "last losses", "steps")
    return Table("Training", columns, rows, names=3, note="Losses: means over the last logged steps.")


def timing_table(results: Results) -> Table:
    """Seconds, their share and peak memory of each stage instance, as far as it ran here."""
    instances = stage_instances(results.params)
    timings = {instance: results.timing(*instance) or {} for instance in instances}
    total = sum(found.get("seconds", 0.0) for found in timings.values())
    rows = [
        (*instance, fixed(found.get("seconds"), 1), _share(found, total), fixed(found.get("peak_memory_mb"), 0))
        for instance, found in timings.items()
    ]
    rows.append(("all", "", fixed(total, 1), ABSENT, ABSENT))
    note = f"{ABSENT}: the stage did not run here; DVC restored its outputs."
    return Table("Stage times", ("stage", "instance", "seconds", "share", "peak MB"), rows, names=2, note=note)


def _share(timing: dict, total: float) -> str:
    return percent(timing["seconds"] / total) if timing and total else ABSENT


def timing_chart(results: Results) -> Chart | None:
    """Seconds of each stage, its instances together; None where none ran here."""
    seconds: dict[str, float] = {}
    for stage, instance in stage_instances(results.params):
        if found := results.timing(stage, instance):
            seconds[stage] = seconds.get(stage, 0.0) + found["seconds"]
    return bar_chart("Seconds by stage", seconds) if seconds else None


def teacher_table(results: Results) -> Table:
    """The masked-LM teacher on held-out general text, beside guessing the most frequent piece."""
    found = results.value("prepare_teacher", "", "heldout")
    rows = [
        ("parameters", count(results.value("prepare_teacher", "", "parameters"))),
        ("perplexity", fixed(found["perplexity"], 2)),
        ("accuracy", score(found["accuracy"])),
        ("accuracy of the most frequent piece", score(results.value("prepare_teacher", "", "frequency_accuracy"))),
    ]
    return Table("Teacher on held-out general text", ("", "value"), rows)
