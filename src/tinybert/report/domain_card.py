"""The model card of a domain student."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinybert.pipeline import paths
from tinybert.report.card import INHERITED, architecture, bullets, recipe_section, revision_section, write_card
from tinybert.report.markdown import escape
from tinybert.report.source_words import corpus_source, hub_names, teacher_source
from tinybert.report.table import ABSENT, Table, fixed, markdown_body, score

ROLES = ("teacher", "student", "untrained")


def write_domain_card(
    folder: Path, *, name: str, model: Any, history: Sequence[dict[str, Any]], params: Any, metrics: dict[str, Any]
) -> None:
    """Writes README.md into the existing `folder`. params: what the stage declares; metrics: of the domain_evaluation."""
    entries = {
        "language": "en" if params.corpus.source != "local" else None,  # of other corpora nobody said it
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["fill-mask", "distillation"],
        "datasets": hub_names(params.corpus),
        "base_model": hub_names(params.teacher),
    }
    sections = {
        "Data": _data(params),
        "Teacher": f"The teacher was {teacher_source(params.teacher)}.",
        "Recipe": recipe_section(history, architecture=architecture(model)),
        "Examination": _examination(metrics),
        "Limits": _limits(params),
        "Use": _usage(name),
        "Made with": revision_section(params.seed),
    }
    write_card(folder, title=f"`{name}`, a masked LM", entries=entries, sections=sections)


def _data(params: Any) -> str:
    terms = "; ".join(
        f"{subject}: {', '.join(map(escape, terms))}" for subject, terms in params.filter.subjects.items()
    )
    return bullets([
        f"General corpus: {corpus_source(params.corpus)}",
        f"Domain corpus: its documents with at least {params.filter.min_hits} hits of the terms, and "
        f"{params.filter.min_hits_per_1000_words:g} in 1,000 words, matched by {params.filter.matching} ({terms})",
    ])  # fmt: skip


def _examination(metrics: dict[str, Any]) -> str:
    quiz = metrics["student"]["quiz"]["all"]["questions"]
    rows = [_row(role, metrics[role], metrics["agreement"] if role == "student" else None) for role in ROLES]
    columns = ("", "perplexity, general", "perplexity, domain", "quiz, top 1", "quiz, top 5", "as the teacher", "KL")
    note = (
        f"Perplexity: of masked tokens in held-out text. Quiz: share of {quiz} cloze questions. As the teacher, KL: "
        "share of masked tokens of domain text whose likeliest piece is the teacher's, and mean KL divergence from it."
    )
    return markdown_body(Table("Examination", columns, rows, note=note))


def _row(role: str, found: dict[str, Any], agreement: dict[str, Any] | None) -> tuple[str, ...]:
    perplexities = (fixed(found[corpus]["perplexity"], 2) for corpus in ("general", "domain"))
    quiz = (score(found["quiz"]["all"][key]) for key in ("top1", "top5"))
    alike = (score(agreement["domain"]["top1"]), fixed(agreement["domain"]["kl"], 3)) if agreement else (ABSENT, ABSENT)
    return (role, *perplexities, *quiz, *alike)


def _limits(params: Any) -> str:
    return bullets([
        "Its corpus is synthetic: it knows the facts and the few phrasings of the project's own articles, and is of no "
        "use on real text." if params.corpus.source == "synthetic" else "",
        "One training run with one seed: another seed gives other numbers.",
        f"Examined on {params.domain_evaluation.heldout_sequences} held-out blocks of each corpus at most, masked once.",
        INHERITED,
    ])  # fmt: skip


def _usage(name: str) -> str:
    return f"""```python
from transformers import pipeline

fill = pipeline("fill-mask", "{paths.final("domain", name)}")
print(fill("The capital of France is [MASK]."))
```"""
