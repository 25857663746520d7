"""The corpus: synthetic, from the Hub or from local files; split into train and held-out."""

import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from tinybert.config.schema import Corpus, HubCorpus
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import NO_TEXT, atomic_file, parse_json, read_lines
from tinybert.pipeline.hub import hub_access, hub_dataset
from tinybert.pipeline.process import byte_bar
from tinybert.synthetic.articles import articles as synthetic_articles

# WikiText marks headings by as many "=" on either side as the heading is deep: = Title =, = = Section = =
HEADING = re.compile(r"(?P<marks>=(?: =)*) (?P<title>[^=](?:.*[^=])?) (?P=marks)")
# Text without headings would be one endless article; it is cut at the next line beyond this size.
ARTICLE_LIMIT_CHARACTERS = 2**20
HEADING_LIMIT_CHARACTERS = 1000  # the pattern takes quadratic time
# Each holds six requests that wait up to 10 s for an answer; the library's 20 retries are silent for half an hour.
STREAM_RETRIES = 3
LOCAL_FILES_KEY = "corpus.local.files"
ENDINGS = (".txt", ".tokens", ".jsonl")  # of local files; .gz may follow


def documents(settings: Corpus, *, seed: int) -> Iterator[dict]:
    """Yields the documents of the source in `settings` (params: corpus); memory holds one article (synthetic: all).

    The unit "article" gives an article's paragraphs, one a line; "paragraph" each paragraph under its article's title.
    Section headings are dropped, because they are not sentences. The seed matters to the synthetic corpus only.

    Yields:
        {"title", "text"}; texts are never empty, titles may be.
    """
    with byte_bar(f"corpus: {settings.source}") as progress:
        if settings.source == "synthetic":
            units = synthetic_articles(seed)
        elif settings.source == "hub":
            units = _hub_articles(settings.hub, progress.update)
        else:
            files = matching_files(settings.local.files)
            progress.total = sum(path.stat().st_size for path in files)
            units = (article for path in files for article in file_articles(path, on_read=progress.update))
        if settings.unit == "paragraph":
            lines = ((article["title"], line.strip()) for article in units for line in article["text"].split("\n"))
            units = ({"title": title, "text": line} for title, line in lines if line)
        document = None
        for document in islice(units, settings.max_documents):
            yield document
    if document is None:
        raise UserError(f"corpus.source: {settings.source}: no text in it; fix: give at least two documents")


def write_splits(found: Iterable[dict], *, train: Path, heldout: Path, every: int) -> dict[str, dict[str, int]]:
    """Writes each `every`-th document to the JSON-lines file `heldout`, the others to `train`, in one pass.

    Neither file is written if one would stay empty.

    Returns:
        {"documents": {"train", "heldout"}, "words": the same}.
    """
    counts = {what: {"train": 0, "heldout": 0} for what in ("documents", "words")}
    with atomic_file(train) as train_file, atomic_file(heldout) as heldout_file:
        for number, document in enumerate(found, start=1):
            split, file = ("train", train_file) if number % every else ("heldout", heldout_file)
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
            counts["documents"][split] += 1
            counts["words"][split] += len(document["text"].split())
        if not all(counts["documents"].values()):
            total = sum(counts["documents"].values())
            problem = f"{every}, but the corpus has {total} documents, so that a split stays empty"
            fix = "lower it, add text, raise corpus.max_documents, or set corpus.unit: paragraph"
            raise UserError(f"corpus.heldout_every: {problem}; fix: {fix}")
    return counts


def wikitext_articles(rows: Iterable[str]) -> Iterator[dict]:
    """Joins WikiText rows (lines, or rows of the Hub dataset) under each ` = Title = ` into one article.

    Rows before the first title form an article without one. If there are blank rows, a title follows one: WikiText
    also has torn formulas that look like ` = 1 henry and capacitance C = `, which are text.
    """
    paragraphs: list[str] = []
    title, size = "", 0
    previous, blank_rows = "", False
    for row in rows:
        line = row.strip()
        heading = HEADING.fullmatch(line) if len(line) <= HEADING_LIMIT_CHARACTERS else None
        opening = heading if heading and heading["marks"] == "=" and not (previous and blank_rows) else None
        if paragraphs and (opening or size > ARTICLE_LIMIT_CHARACTERS):
            yield {"title": title, "text": "\n".join(paragraphs)}
            paragraphs, size = [], 0
        if opening:
            title = opening["title"]
        elif line and (heading is None or heading["marks"] == "="):
            paragraphs.append(line)
            size += len(line)
        previous, blank_rows = line, blank_rows or not line
    if paragraphs:
        yield {"title": title, "text": "\n".join(paragraphs)}


def _hub_articles(hub: HubCorpus, on_read: Callable[[int], object]) -> Iterator[dict]:
    """The articles of a dataset: its rows if they have titles or the first text has several lines; or WikiText's."""
    rows = _hub_rows(hub, on_read)
    first = next((row for row in rows if "title" in row or row["text"]), None)
    if first:
        rows = chain([first], rows)
        if "title" in first or "\n" in first["text"]:
            yield from ({"title": ""} | row for row in rows if row["text"])
        else:
            yield from wikitext_articles(row["text"] for row in rows)


def _hub_rows(hub: HubCorpus, on_read: Callable[[int], object]) -> Iterator[dict]:
    """The columns text and, if there is one, title; missing values are empty."""
    fix = "check corpus.hub, or set corpus.source to local with corpus.local.files, or to synthetic"
    with hub_access("corpus.source: hub", f"{hub.dataset} ({hub.config}, {hub.split}, {hub.revision})", fix=fix):
        from datasets import config

        config.STREAMING_READ_MAX_RETRIES = STREAM_RETRIES  # of what fails after the rows have begun
        for row in hub_dataset(hub.dataset, hub.config, hub.revision, split=hub.split, streaming=True):
            found = {name: row[name] or "" for name in ("title", "text") if isinstance(row.get(name, 0), str | None)}
            if "text" not in found:
                raise UserError(f"corpus.hub.dataset: {hub.dataset} has no text column; it has {', '.join(row)}")
            on_read(len(found["text"].encode()))
            yield {name: value.replace("\0", " ").strip() for name, value in found.items()}


def file_articles(path: Path, *, on_read: Callable[[int], object] = lambda size_bytes: None) -> Iterator[dict]:
    """Yields the articles of a local file as `documents` does; `on_read` as in read_lines."""
    lines = read_lines(path, key=LOCAL_FILES_KEY, on_read=on_read)
    if not path.name.lower().removesuffix(".gz").endswith(".jsonl"):
        yield from wikitext_articles(line for _, line in lines)
        return
    for number, line in lines:
        if line.strip() and (document := _json_document(line, f"{LOCAL_FILES_KEY}: {path}, line {number}"))["text"]:
            yield document


def matching_files(patterns: Iterable[str]) -> list[Path]:
    """The files of all paths and globs, in the order given, each once; endings are checked before any is read."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        place = str(paths.resolve(pattern))
        matches = [place] if Path(place).exists() else sorted(glob.glob(place, recursive=True))
        files = [Path(match) for match in matches if Path(match).is_file()]
        if not files:
            reason = "is a folder; add /*.txt or the like" if Path(place).is_dir() else "matches no file; add files"
            raise UserError(f"{LOCAL_FILES_KEY}: {pattern!r} {reason}, or correct the path from the repository's root")
        found |= dict.fromkeys(files)
    if unknown := [path for path in found if not path.name.lower().removesuffix(".gz").endswith(ENDINGS)]:
        raise UserError(f"{LOCAL_FILES_KEY}: {unknown[0]}: unknown ending; {', '.join(ENDINGS)} can be read, also .gz")
    return list(found)


def _json_document(line: str, where: str) -> dict:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UserError(f"{where}: no JSON ({error}); one object a line is expected") from None
    if not isinstance(record, dict) or "text" not in record:
        raise UserError(f'{where}: no "text"; one object a line with "text" and, if there is one, "title" is expected')
    document = {"title": record.get("title") or "", "text": record["text"]}
    for name, value in document.items():
        if not isinstance(value, str) or NO_TEXT.search(value):
            expected = "a string without NUL and halves of surrogate pairs"
            raise UserError(f'{where}: "{name}" is {value!r:.40}; {expected} is expected')
    return {name: value.strip() for name, value in document.items()}
