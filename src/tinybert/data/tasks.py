"""The nine GLUE tasks: columns, labels, metrics, the layout of the official files, published scores."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TsvLayout:
    """Where a task's official tab-separated files keep what.

    texts, label: names in the header line, in the order of Task.columns. columns: the names by position where train
    and dev have no header line (test always has one). spellings: the labels as written, in the order of Task.labels.
    broken_rows: how many rows of one file may be damaged, and are left out, before that is an error.
    """

    folder: str
    texts: tuple[str, ...]
    label: str
    columns: tuple[str, ...] | None = None
    spellings: tuple[str, ...] = ("0", "1")
    broken_rows: int = 0


@dataclass(frozen=True)
class Task:
    """One GLUE task under its Hub name.

    columns: the text columns, one or two. labels: the class names, index = label id; none for a regression.
    score_range: least and greatest gold score of a regression. metrics: the first is the headline. dev_splits,
    test_splits: two of each for MNLI (matched, mismatched). published_metric and published: scores on the GLUE
    server's test sets, as shares of 1, per system one for each dev split.
    """

    name: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    tsv: TsvLayout
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


def _published(bert_base: tuple[float, ...], tinybert4: tuple[float, ...], tinybert6: tuple[float, ...]) -> dict:
    """Jiao et al. 2020, table 1, where scores are in percent."""
    systems = {"bert_base": bert_base, "tinybert4": tinybert4, "tinybert6": tinybert6}
    return {system: tuple(round(score / 100, 4) for score in scores) for system, scores in systems.items()}


ENTAILMENT = ("entailment", "not_entailment")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="cola",
            columns=("sentence",),
            labels=("unacceptable", "acceptable"),
            metrics=("matthews", "accuracy"),
            tsv=TsvLayout("CoLA", ("sentence",), "label", columns=("source", "label", "mark", "sentence")),
            published_metric="matthews",
            published=_published((52.8,), (44.1,), (51.1,)),
        ),
        Task(
            name="sst2",
            columns=("sentence",),
            labels=("negative", "positive"),
            metrics=("accuracy",),
            tsv=TsvLayout("SST-2", ("sentence",), "label"),
            published_metric="accuracy",
            published=_published((93.4,), (92.6,), (93.1,)),
        ),
        Task(
            name="mrpc",
            columns=("sentence1", "sentence2"),
            labels=("not_equivalent", "equivalent"),
            metrics=("accuracy", "f1"),
            tsv=TsvLayout("MRPC", ("#1 String", "#2 String"), "Quality"),
            published_metric="f1",
            published=_published((87.5,), (86.4,), (87.3,)),
        ),
        Task(
            name="stsb",
            columns=("sentence1", "sentence2"),
            labels=(),
            score_range=(0.0, 5.0),
            metrics=("pearson", "spearman"),
            tsv=TsvLayout("STS-B", ("sentence1", "sentence2"), "score"),
            published_metric="spearman",
            published=_published((85.2,), (80.4,), (83.7,)),
        ),
        Task(
            name="qqp",
            columns=("question1", "question2"),
            labels=("not_duplicate", "duplicate"),
            metrics=("accuracy", "f1"),
            # Some questions of the official train.tsv contain line breaks, which tear their rows apart.
            tsv=TsvLayout("QQP", ("question1", "question2"), "is_duplicate", broken_rows=20),
            published_metric="f1",
            published=_published((71.1,), (71.3,), (71.6,)),
        ),
        Task(
            name="mnli",
            columns=("premise", "hypothesis"),
            labels=("entailment", "neutral", "contradiction"),
            metrics=("accuracy",),
            dev_splits=("dev_matched", "dev_mismatched"),
            test_splits=("test_matched", "test_mismatched"),
            tsv=TsvLayout(
                "MNLI",
                ("sentence1", "sentence2"),
                "gold_label",
                spellings=("entailment", "neutral", "contradiction"),
            ),
            published_metric="accuracy",
            published=_published((83.9, 83.4), (82.5, 81.8), (84.6, 83.2)),
        ),
        Task(
            name="qnli",
            columns=("question", "sentence"),
            labels=ENTAILMENT,
            metrics=("accuracy",),
            tsv=TsvLayout("QNLI", ("question", "sentence"), "label", spellings=ENTAILMENT),
            published_metric="accuracy",
            published=_published((90.9,), (87.7,), (90.4,)),
        ),
        Task(
            name="rte",
            columns=("sentence1", "sentence2"),
            labels=ENTAILMENT,
            metrics=("accuracy",),
            tsv=TsvLayout("RTE", ("sentence1", "sentence2"), "label", spellings=ENTAILMENT),
            published_metric="accuracy",
            published=_published((67.0,), (66.6,), (70.0,)),
        ),
        Task(
            name="wnli",
            columns=("sentence1", "sentence2"),
            labels=("not_entailment", "entailment"),
            metrics=("accuracy",),
            tsv=TsvLayout("WNLI", ("sentence1", "sentence2"), "label"),
        ),
    )
}
