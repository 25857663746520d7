"""The nine GLUE tasks: columns, labels, metrics, the layout of the official files, published scores."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TsvLayout:
    """Where a task's official tab-separated files keep what.

    Attributes:
        folder: The task's folder.
        texts: Names in the header line, in the order of Task.columns.
        label: Name in the header line.
        columns: The names by position if train and dev have no header line (test always has one).
        spellings: The labels as written, in the order of Task.labels.
        broken_rows: How many damaged rows of one file are left out before that is an error.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    columns: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ("0", "1")
    broken_rows: int = 0


@dataclass(frozen=True)
class Task:
    """One GLUE task under its Hub name.

    Attributes:
        name: The key in params.
        labels: The class names, index = label id; none for a regression.
        tsv: The official files.
        columns: The text columns, one or two.
        metrics: The first is the headline.
        score_range: Least and greatest gold score of a regression.
        dev_splits: Two for MNLI (matched, mismatched).
        test_splits: Likewise.
        published_metric: What `published` holds.
        published: Scores on the GLUE server's test sets (Jiao et al. 2020, table 1), as shares of 1: per system one for
            each dev split.
    """

    name: str
    labels: tuple[str, ...]
    tsv: TsvLayout
    columns: tuple[str, ...] = ("sentence1", "sentence2")
    metrics: tuple[str, ...] = ("accuracy",)
    score_range: tuple[float, float] | None = None
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    published_metric: str = ""
    published: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def is_pair(self) -> bool:
        return len(self.columns) == 2

    @property
    def headline(self) -> str:
        return self.metrics[0]


SENTENCES = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
ENTAILMENT3 = ("entailment", "neutral", "contradiction")


def _scores(*percents: float) -> dict[str, tuple[float, ...]]:
    """Percents of BERT-base, TinyBERT4 and TinyBERT6, each for all dev splits, as `Task.published`."""
    size = len(percents) // 3
    shares = [round(percent / 100, 4) for percent in percents]
    systems = ("bert_base", "tinybert4", "tinybert6")
    return {system: tuple(shares[place * size :][:size]) for place, system in enumerate(systems)}


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="cola",
            columns=("sentence",),
            labels=("unacceptable", "acceptable"),
            metrics=("matthews", "accuracy"),
            tsv=TsvLayout("CoLA", ("sentence",), columns=("source", "label", "mark", "sentence")),
            published_metric="matthews",
            published=_scores(52.8, 44.1, 51.1),
        ),
        Task(
            name="sst2",
            columns=("sentence",),
            labels=("negative", "positive"),
            tsv=TsvLayout("SST-2", ("sentence",)),
            published_metric="accuracy",
            published=_scores(93.4, 92.6, 93.1),
        ),
        Task(
            name="mrpc",
            labels=("not_equivalent", "equivalent"),
            metrics=("accuracy", "f1"),
            tsv=TsvLayout("MRPC", ("#1 String", "#2 String"), "Quality"),
            published_metric="f1",
            published=_scores(87.5, 86.4, 87.3),
        ),
        Task(
            name="stsb",
            labels=(),
            score_range=(0.0, 5.0),
            metrics=("pearson", "spearman"),
            tsv=TsvLayout("STS-B", SENTENCES, "score"),
            published_metric="spearman",
            published=_scores(85.2, 80.4, 83.7),
        ),
        Task(
            name="qqp",
            columns=("question1", "question2"),
            labels=("not_duplicate", "duplicate"),
            metrics=("accuracy", "f1"),
            # Some questions of the official train.tsv contain line breaks, which tear their rows apart.
            tsv=TsvLayout("QQP", ("question1", "question2"), "is_duplicate", broken_rows=20),
            published_metric="f1",
            published=_scores(71.1, 71.3, 71.6),
        ),
        Task(
            name="mnli",
            columns=("premise", "hypothesis"),
            labels=ENTAILMENT3,
            dev_splits=("dev_matched", "dev_mismatched"),
            test_splits=("test_matched", "test_mismatched"),
            tsv=TsvLayout("MNLI", SENTENCES, "gold_label", spellings=ENTAILMENT3),
            published_metric="accuracy",
            published=_scores(83.9, 83.4, 82.5, 81.8, 84.6, 83.2),
        ),
        Task(
            name="qnli",
            columns=("question", "sentence"),
            labels=ENTAILMENT,
            tsv=TsvLayout("QNLI", ("question", "sentence"), spellings=ENTAILMENT),
            published_metric="accuracy",
            published=_scores(90.9, 87.7, 90.4),
        ),
        Task(
            name="rte",
            labels=ENTAILMENT,
            tsv=TsvLayout("RTE", SENTENCES, spellings=ENTAILMENT),
            published_metric="accuracy",
            published=_scores(67.0, 66.6, 70.0),
        ),
        Task(
            name="wnli",
            labels=("not_entailment", "entailment"),
            tsv=TsvLayout("WNLI", SENTENCES),
        ),
    )
}
