"""A tree of metrics whose numbers are set by hand, the params that ask for it, and a reader of the page made of it."""

import csv
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from tests.support.project import default_tree
from tinybert.config.load import check_params
from tinybert.config.schema import Params
from tinybert.config.tasks import TASKS, write_task
from tinybert.evaluate.scoring import Predictions, save_predictions
from tinybert.pipeline.files import write_json
from tinybert.pipeline.paths import VARIANTS

NASTY = '<script>alert("x")</script> & | `y` $x$'
PERPLEXITY = {"lazy": 8.512, "attentive": 9.034, "little_professor": 8.127}
CLOZE_TOP1 = {"lazy": 0.31, "attentive": 0.27, "little_professor": 0.29}
SEEDS = (42, 43)
# Part of an instance's name -> what it says of its systems.
COSTS = {
    "evaluate": {"teacher": {"parameters": 1_816_224, "flops": 12_345_678},
                 "student": {"parameters": 345_678, "flops": 2e6}},
    "finetune_student": {"student": {"parameters": 445_678, "flops": 3e6}},
    "tfidf": {"student": {"parameters": 8_001, "flops": 42.5}},
    "static": {"student": {"parameters": 128_129, "flops": 12_800}},
}  # fmt: skip


def small_tree() -> dict:
    """Plain params: two tasks, one with two dev splits, one task student, three domain students, two seeds."""
    tree = default_tree()
    tree["seed"], tree["seeds"] = 42, list(SEEDS)
    tree["tasks"]["run"] = ["mrpc", "mnli"]
    tree["tasks"]["students"] = ["tinybert4"]
    tree["tasks"]["mnli"] = tree["tasks"]["mrpc"]
    tree["domain"]["students"] = list(PERPLEXITY)
    tree["quantization"]["models"] = ["teacher", "tinybert4"]
    tree["pruning"]["sparsities_percent"] = [20]
    return tree


def small_params() -> Params:
    return check_params(small_tree())


def write_tree(root: Path) -> None:
    write_corpus_metrics(root / "reports/metrics")
    write_domain_metrics(root)
    for task, shift in {"mrpc": 0.0, "mnli": 0.05}.items():
        (root / "data/tasks" / task).mkdir(parents=True, exist_ok=True)
        write_task(TASKS[task], root / "data/tasks" / task)
        write_task_metrics(root, task, shift)
    curve = [
        {"step": 10 * i, "epoch": 0, "learning_rate": 1e-3 / i, "total": 7.7 / i, "hard": 7.7 / i} for i in range(1, 30)
    ]
    write_curve(root / "reports/curves/prepare_teacher.csv", curve)
    write_curve(root / "reports/curves/general_distill/lazy.csv", [{"step": 1, "epoch": 0, "total": 6.25, NASTY: 1.0}])
    write_curve(root / "reports/curves/task_distill_intermediate/mrpc-tinybert4-42.csv", [])
    for instance in (
        "prepare_teacher",
        "evaluate/mrpc-tinybert4",
        "evaluate_domain",
        "tokenize/general",
        "quantize/mrpc-teacher",
    ):
        write_json(root / f"reports/timings/{instance}.json", {"seconds": 123.4, "peak_memory_mb": 987})


def write_corpus_metrics(metrics: Path) -> None:
    write_json(
        metrics / "prepare_corpus.json", {what: {"train": 1234, "heldout": 137} for what in ("documents", "words")}
    )
    write_json(metrics / "prepare_tokenizer.json", {"tokens": 3999})
    tally = {"found": 1200, "kept": 900, "kept_share": 0.75}
    history = tally | {"terms": {"war": {"found": 40, "kept": 30, "kept_share": 0.75}, NASTY: tally}}
    found = {"documents": tally, "words": tally, "subjects": {"history": history}}
    write_json(metrics / "filter_corpus.json", {"train": found, "heldout": found})
    sequences = {"documents": 9, "sequences": 777, "tokens": 49999, "unknown_share": 0.0123}
    for corpus in ("general", "domain"):
        write_json(metrics / f"tokenize/{corpus}.json", {"train": sequences, "heldout": sequences})


def write_domain_metrics(root: Path) -> None:
    teacher = {"parameters": 1_816_224, "steps": 290, "layers": 4, "loss": {"total": 2.5, "hard": 2.5}}
    heldout = {"loss": 2.0, "perplexity": 7.389, "accuracy": 0.613}
    metrics = root / "reports/metrics"
    write_json(metrics / "prepare_teacher.json", teacher | {"heldout": heldout})
    training = {"parameters": 345_678, "steps": 290, "loss": {"total": 3.25, "hard": 3.25}}
    for student in (*PERPLEXITY, "tinybert4"):
        write_json(metrics / f"general_distill/{student}.json", training)
    for student in PERPLEXITY:
        for seed in SEEDS:
            write_json(metrics / f"domain_distill/{student}-{seed}.json", training)
            further = seed - SEEDS[0]  # the second seed is off by 2, and by .02
            evaluated = {
                "teacher": evaluation(5.018, 0.51),
                "student": evaluation(PERPLEXITY[student] + 2 * further, CLOZE_TOP1[student] - 0.02 * further),
                "untrained": evaluation(4012.5, 0.002),
                "questions_dropped": 17,
                "agreement": {what: {"top1": 0.717, "kl": 0.456} for what in ("general", "domain", "cloze")},
            }
            write_json(metrics / f"evaluate_domain/{student}-{seed}.json", evaluated)
        best = [{"token": token, "probability": 0.4} for token in ("paris", NASTY, "rome", "oslo", "bern")]
        answer = {"subject": "geography", "prompt": f"{NASTY} is [MASK].", "answer": "paris"}
        write_json(root / f"reports/quiz_answers/{student}-42.json", [answer | {"teacher": best, "student": best}])


def evaluation(perplexity: float, top1: float) -> dict:
    text = {"loss": 2.1, "perplexity": perplexity, "accuracy": 0.55}
    by_subject = {"questions": 100, "top1": top1, "top5": 0.6}
    return {"general": text, "domain": text, "cloze": {"all": by_subject, "history": by_subject}}


def write_task_metrics(root: Path, task: str, shift: float) -> None:
    metrics = root / "reports/metrics"
    names = ("accuracy", "f1") if task == "mrpc" else ("accuracy",)
    training = {"parameters": 345_678, "steps": 141, "loss": {"total": 0.5, "prediction": 0.5}}
    examples = {"examples": {"train": 1500, "dev": 500}, "majority": dict.fromkeys(names, 0.6)}
    write_json(metrics / f"prepare_task/{task}.json", examples)
    write_json(metrics / f"finetune_teacher/{task}.json", training | {"layers": 4, "dev": dict.fromkeys(names, 0.85)})
    write_json(metrics / f"augment/{task}.json", {"original": 1500, "augmented": 4321})
    for seed in SEEDS:
        instance = f"{task}-tinybert4-{seed}"
        write_json(metrics / f"task_distill_intermediate/{instance}.json", {"steps": 0, "loss": {}})
        write_json(metrics / f"task_distill_prediction/{instance}.json", training)
        write_evaluation(root, task, f"evaluate/{task}-tinybert4/{seed}", 0.73 + 0.02 * (seed - SEEDS[0]), shift)
        write_evaluation(root, task, f"finetune_student/{task}-tinybert4/{seed}", 0.7, shift)
    for baseline, score in {"tfidf": 0.65, "static": 0.745}.items():
        write_evaluation(root, task, f"baselines/{task}-{baseline}", score, shift)
    pruned = {"target": 0.2, "sparsity": 0.20004, "dev": dict.fromkeys(names, 0.7219)}
    size = {"size_mb": {"raw": 1.389, "compressed": 1.201}}
    write_json(metrics / f"prune/{task}-tinybert4-20.json", training | pruned | size)
    for model in ("teacher", "tinybert4"):
        write_quantized(root, f"{task}-{model}", names)


def write_evaluation(root: Path, task: str, instance: str, ours: float, shift: float = 0.0) -> None:
    """The teacher scores .85, the majority class .6, of 400 rows."""
    names = ("accuracy", "f1") if task == "mrpc" else ("accuracy",)
    compared = {
        "teacher": dict.fromkeys(names, 0.85 + shift),
        "student": dict.fromkeys(names, ours + shift),
        "majority": dict.fromkeys(names, 0.6 + shift),
        "collapsed": task == "mnli",
    }
    splits = ["dev"] if task == "mrpc" else ["dev_matched", "dev_mismatched"]
    costs = next(({"costs": value} for name, value in COSTS.items() if name in instance), {})
    write_json(root / f"reports/metrics/{instance}.json", dict.fromkeys(splits, compared) | costs)
    labels, right = np.arange(400) % 2, {"teacher": 340, "student": round(400 * ours), "majority": 240}
    systems = {
        name: Predictions("accuracy", labels, np.where(np.arange(400) < rows, labels, 1 - labels))
        for name, rows in right.items()
    }
    save_predictions(root / f"reports/predictions/{instance}.json", systems)


def write_quantized(root: Path, instance: str, names: tuple[str, ...]) -> None:
    """The smallest variant loses too much, the next one exactly a point."""
    score = dict(zip(VARIANTS, (0.73, 0.729, 0.72, 0.5), strict=True))
    raw_mb = dict(zip(VARIANTS, (44.44, 15.15, 12.12, 11.11), strict=True))
    small = 1.0 if "teacher" in instance else 0.1
    variants = {
        variant: {
            "dev": dict.fromkeys(names, score[variant]),
            "agreement": 0.987,
            "difference_95": {"low": -0.0123, "high": 0.0042},
            "size_mb": {"raw": small * raw_mb[variant], "compressed": small * raw_mb[variant] / 2},
        }
        for variant in VARIANTS
    }
    write_json(root / f"reports/metrics/quantize/{instance}.json", variants)
    if "mrpc" in instance:
        times = {"median": 240.0 * small, "p10": 230.0 * small, "p90": 260.5 * small}
        batches = ("batch_1", "batch_32", "dev_batch_1", "dev_batch_32")
        latency = {variant: dict.fromkeys(batches, times) for variant in VARIANTS}
        write_json(root / f"reports/latency/{instance}.json", {"threads": 2, "dev_examples": 8} | latency)


def write_curve(path: Path, points: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(points[0]) if points else ["step", "total"])
        writer.writeheader()
        writer.writerows(points)


class Outline(HTMLParser):
    """What a page holds; rows: of cell texts, tables: the same by title, texts: of paragraphs and <pre>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.references, self.ids = [], [], [], []
        self.rows: list[list[str]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts = dict.fromkeys(("p", "pre"), "")
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.attributes += found
        self.references += [found[name] for name in ("src", "href", "srcset", "action") if name in found]
        self.ids += [found["id"]] if "id" in found else []
        if found.get("role") == "region":
            self.tables[found["aria-label"]] = self.table = []
        if tag == "tr":
            self.rows.append([])
            self.table.append(self.rows[-1])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("td", "th", *self.texts):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data):
        if self.inside and self.inside[-1] in self.texts:
            self.texts[self.inside[-1]] += data
        elif self.inside:
            self.rows[-1][-1] += data
