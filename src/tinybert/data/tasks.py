"""The nine GLUE tasks: columns, labels, metrics, the layout of the official files, and published scores."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TsvLayout:
    """The layout of a task's official tab-separated files."""

    folder: str
    texts: tuple[str, ...]  # names in the header line, in the order of Task.columns
    label: str = "label"  # name in the header line
    spellings: tuple[str, ...] = ("0", "1")  # the labels as written, in the order of Task.labels
    columns: tuple[str, ...] = ()  # names by position if train and dev have no header line (test always has one)
    broken_rows: int = 0  # as many damaged rows of one file are left out before that is an error


@dataclass(frozen=True)
class Task:
    """One GLUE task under its Hub name."""

    name: str
    columns: tuple[str, ...]  # the text columns, one or two
    labels: tuple[str, ...]  # class names, index = label id; none for a regression
    tsv: TsvLayout
    metrics: tuple[str, ...] = ("accuracy",)  # the first is the headline
    score_range: tuple[float, float] | None = None  # least and greatest gold score of a regression
    dev_splits: tuple[str, ...] = ("dev",)

    @property
    def test_splits(self) -> tuple[str, ...]:
        return tuple(split.replace("dev", "test") for split in self.dev_splits)

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def is_pair(self) -> bool:
        return len(self.columns) == 2

    @property
    def headline(self) -> str:
        return self.metrics[0]

    @property
    def published(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """By system and metric, the published test scores as shares of 1, one for each dev split."""
        metric, *rows = PUBLISHED.get(self.name, ("",))
        systems = zip(("bert_base", "tinybert4", "tinybert6"), rows, strict=False)
        return {(system, metric): tuple(round(score / 100, 4) for score in row) for system, row in systems}


# GLUE server, test sets, in percent (Jiao et al. 2020, table 1): the metric, then BERT-base, TinyBERT4 and TinyBERT6.
PUBLISHED: dict[str, tuple] = {
    "cola": ("matthews", [52.8], [44.1], [51.1]),
    "sst2": ("accuracy", [93.4], [92.6], [93.1]),
    "mrpc": ("f1", [87.5], [86.4], [87.3]),
    "stsb": ("spearman", [85.2], [80.4], [83.7]),
    "qqp": ("f1", [71.1], [71.3], [71.6]),
    "mnli": ("accuracy", [83.9, 83.4], [82.5, 81.8], [84.6, 83.2]),
    "qnli": ("accuracy", [90.9], [87.7], [90.4]),
    "rte": ("accuracy", [67.0], [66.6], [70.0]),
}
# Dev split, headline metric: TinyBERT4 from BERT-base without augmentation (a published TinyBERT reproduction).
REPRODUCED = {"cola": 0.331, "sst2": 0.906, "mrpc": 0.683, "rte": 0.643}
PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
ENTAILMENT3 = ("entailment", "neutral", "contradiction")
COLA_TSV = TsvLayout("CoLA", ("sentence",), columns=("source", "label", "mark", "sentence"))
MRPC_TSV = TsvLayout("MRPC", ("#1 String", "#2 String"), "Quality")
# Some questions of the official train.tsv contain line breaks, which tear their rows apart.
QQP_TSV = TsvLayout("QQP", ("question1", "question2"), "is_duplicate", broken_rows=20)
MNLI_DEV = ("dev_matched", "dev_mismatched")
MNLI_TSV = TsvLayout("MNLI", PAIR, "gold_label", ENTAILMENT3)
QNLI_TSV = TsvLayout("QNLI", ("question", "sentence"), spellings=ENTAILMENT)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("cola", ("sentence",), ("unacceptable", "acceptable"), COLA_TSV, ("matthews", "accuracy")),
        Task("sst2", ("sentence",), ("negative", "positive"), TsvLayout("SST-2", ("sentence",))),
        Task("mrpc", PAIR, ("not_equivalent", "equivalent"), MRPC_TSV, ("accuracy", "f1")),
        Task("stsb", PAIR, (), TsvLayout("STS-B", PAIR, "score"), ("pearson", "spearman"), (0.0, 5.0)),
        Task("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), QQP_TSV, ("accuracy", "f1")),
        Task("mnli", ("premise", "hypothesis"), ENTAILMENT3, MNLI_TSV, dev_splits=MNLI_DEV),
        Task("qnli", ("question", "sentence"), ENTAILMENT, QNLI_TSV),
        Task("rte", PAIR, ENTAILMENT, TsvLayout("RTE", PAIR, spellings=ENTAILMENT)),
        Task("wnli", PAIR, ("not_entailment", "entailment"), TsvLayout("WNLI", PAIR)),
    )
}
