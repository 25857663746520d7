"""Where a finished model's data and teacher come from: in words for its card, and by their names on the Hub."""

from tinybert.report.markdown import escape


def corpus_source(corpus) -> str:
    """The `corpus` section of params in words."""
    if corpus.source == "hub":
        return f"{escape(corpus.hub.dataset)} ({escape(corpus.hub.config)}, {_at(corpus.hub.revision)}) of the Hub"
    if corpus.source == "local":
        return f"local files ({', '.join(map(escape, corpus.local.files))})"
    return "synthetic articles, which the project writes from tables of facts"


def task_source(tasks) -> str:
    """The sources in the `tasks` section of params in words."""
    if tasks.source == "hub":
        return f"{escape(tasks.hub.dataset)} ({_at(tasks.hub.revision)}) of the Hub"
    if tasks.source == "local":
        return f"local files in GLUE's layout ({escape(tasks.local.folder)})"
    return "synthetic rows in the manner of GLUE, which the project makes by a grammar"


def teacher_source(teacher) -> str:
    """The sources in the `teacher` section of params in words."""
    if teacher.source == "hub":
        return hub_model(teacher.hub)
    if teacher.source == "local":
        return f"a local folder ({escape(teacher.local.folder)})"
    return "a small BERT, pretrained by the project on its own synthetic articles"


def model_source(source) -> str:
    """A model of others, {folder} or {hub: {model, revision}}, in words."""
    return hub_model(source.hub) if source.hub else f"a local folder ({escape(source.folder)})"


def hub_model(hub) -> str:
    """A model on the Hub in words."""
    return f"{escape(hub.model)} ({_at(hub.revision)}) of the Hub"


def hub_names(*sections) -> list[str]:
    """The names on the Hub, each once, of those sections that take their data or model from there."""
    hubs = [section.hub for section in sections if getattr(section, "source", "hub") == "hub" and section.hub]
    return list(dict.fromkeys(getattr(hub, "dataset", None) or hub.model for hub in hubs))


def _at(revision: str) -> str:
    return f"revision {escape(revision)}"
