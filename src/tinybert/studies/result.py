"""What a study found, as tables for the terminal and for git, and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from tinybert.pipeline.files import atomic_file
from tinybert.report.table import Table, as_markdown, as_text, fixed, score
from tinybert.studies.experiments import Experiment
from tinybert.studies.picture import dot_chart
from tinybert.studies.study import Study
from tinybert.studies.verdict import Difference, Finding, Measured, difference, scores, spread

RESULTS = Path("reports/studies")


def variants_table(study: Study, measured: Measured, *, tasks: Sequence[str], seed: int) -> Table:
    """Mean, spread and seeds of each variant, and how much better it is than the first."""
    rows = []
    for task in tasks:
        reference = measured[task, next(iter(study.variants))]
        for variant in study.variants:
            answers = measured[task, variant]
            values, metric = scores(answers), next(iter(answers.values())).metric
            better = None if answers is reference else difference(answers, reference, seed=seed)
            row = (task, variant, metric, score(mean(values)), fixed(spread(values), 3), str(len(values)))
            rows.append((*row, *_difference_cells(better)))
    columns = ("task", "variant", "metric", "mean", "± over seeds", "seeds", "better than first by", "95 %")
    note = "95 %: paired bootstrap over seeds and dev rows; of one seed over rows alone."
    return Table("Variants", columns, rows, names=3, note=note)


def claims_table(found: Sequence[Finding], *, with_published: bool) -> Table:
    """Each published claim and what was found here; with_published: and the figures that it was published with."""
    rows = [
        (
            f"{finding.claim.variant} {finding.claim.relation.replace('_', ' ')} {finding.claim.other}",
            finding.task,
            *([finding.claim.published] if with_published else []),
            finding.verdict,
            *_difference_cells(finding.difference),
        )
        for finding in found
    ]
    published = ("published",) if with_published else ()
    columns = ("claim", "task", *published, "verdict", "difference", "95 %")
    return Table("Claims", columns, rows, names=3 + with_published)


def write_result(
    name: str,
    study: Study,
    measured: Measured,
    found: Sequence[Finding],
    experiments: Sequence[Experiment],
    *,
    tasks: Sequence[str],
    seed: int,
) -> str:
    """Writes reports/studies/<name>.md and .svg; returns the tables as text for the terminal."""
    variants = variants_table(study, measured, tasks=tasks, seed=seed)
    panels = {task: {variant: scores(measured[task, variant]) for variant in study.variants} for task in tasks}
    margin = f"Equal and not below: by a margin of {study.margin:g}.\n" if _needs_margin(study) else ""
    parts = [
        f"# {study.question}\n\nPublished: {study.source}\n",
        as_markdown(variants),
        as_markdown(claims_table(found, with_published=True)),
        margin,
        f"![A dot a seed, a stroke at the mean]({name}.svg)\n",
        f"## Experiments\n\nBy `make study NAME={name}`; each variant is `dvc exp run` with these, over params.yaml:\n",
        "".join(
            f"- {', '.join(names)}: `{' '.join(overrides)}`\n" for overrides, names in _variants(experiments).items()
        ),
    ]
    for ending, text in {"md": "\n".join(filter(None, parts)), "svg": dot_chart(study.question, panels)}.items():
        with atomic_file(RESULTS / f"{name}.{ending}") as handle:
            handle.write(text)
    return "\n".join([study.question, "", as_text(variants), as_text(claims_table(found, with_published=False))])


def _variants(experiments: Sequence[Experiment]) -> dict[tuple[str, ...], list[str]]:
    """overrides -> the variants that are measured with them."""
    found: dict[tuple[str, ...], list[str]] = {}
    for experiment in experiments:
        found.setdefault(experiment.overrides, []).append(experiment.variant)
    return found


def _needs_margin(study: Study) -> bool:
    return any(claim.relation != "beats" for claim in study.claims)


def _difference_cells(found: Difference | None) -> tuple[str, str]:
    if found is None:
        return "", ""
    return f"{found.mean + 0.0:+.3f}", f"{found.low + 0.0:+.3f} to {found.high + 0.0:+.3f}"
