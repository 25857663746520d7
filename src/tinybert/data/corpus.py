"""The general corpus: read from the synthetic articles, the Hub or local files, and split into train and held-out."""

import glob
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tinybert.config.schema import Corpus, HubCorpus
from tinybert.pipeline import paths
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.files import NO_TEXT, atomic_file, read_lines
from tinybert.pipeline.hub import hub_access, load_verified
from tinybert.pipeline.process import TextBar, text_progress_bar

# WikiText marks headings by as many "=" on either side as the heading is deep: = Title =, = = Section = =
HEADING = re.compile(r"(?P<marks>=(?: =)*) (?P<title>[^=](?:.*[^=])?) (?P=marks)")
# Text without headings would be one endless article; it is cut at the next line beyond this size.
ARTICLE_LIMIT_CHARACTERS = 2**20
HEADING_LIMIT_CHARACTERS = 1000  # the pattern takes quadratic time
# Each holds six requests that wait up to 10 s for an answer; the library's 20 retries are silent for half an hour.
STREAM_RETRIES = 3
LOCAL_FILES_KEY = "corpus.local.files"


def documents(settings: Corpus, *, seed: int) -> Iterator[dict]:
    """Yields the documents of the source in `settings` (params: corpus); memory holds one article.

    Args:
        settings: unit "article" gives an article's paragraphs, one a line; "paragraph" each paragraph under its
            article's title. Section headings are dropped: they are no sentences.
        seed: Matters to the synthetic corpus only.

    Yields:
        {"title", "text"}; texts are never empty, titles may be.

    Raises:
        UserError: If a file, the Hub or a record is at fault, or there is no text at all.
    """
    with text_progress_bar(f"corpus: {settings.source}") as progress:
        articles = SOURCES[settings.source](settings, seed, progress)
        units = articles if settings.unit == "article" else _paragraphs(articles)
        for document in islice(units, settings.max_documents):
            progress.advance(0, documents=1)
            yield document
    if not progress.documents:
        raise UserError(f"corpus.source: {settings.source}: no text in it; give a corpus with at least two documents")


def write_splits(found: Iterable[dict], *, train: str | Path, heldout: str | Path, every: int) -> dict[str, dict]:
    """Writes each `every`-th document to the JSON-lines file `heldout`, the others to `train`, in one pass.

    Returns:
        {"train": {"documents", "words"}, "heldout": the same}.

    Raises:
        UserError: If a split stays empty; then neither file is written.
    """
    counts = {split: {"documents": 0, "words": 0} for split in ("train", "heldout")}
    with atomic_file(train) as train_file, atomic_file(heldout) as heldout_file:
        files = {"train": train_file, "heldout": heldout_file}
        for number, document in enumerate(found, start=1):
            split = "train" if number % every else "heldout"
            files[split].write(json.dumps(document, ensure_ascii=False) + "\n")
            counts[split]["documents"] += 1
            counts[split]["words"] += len(document["text"].split())
        total = sum(count["documents"] for count in counts.values())
        if not all(count["documents"] for count in counts.values()):
            raise UserError(
                f"corpus.heldout_every: {every}, but the corpus has {total} documents, so that a split stays empty; "
                f"set it between 2 and the number of documents, or raise corpus.max_documents"
            )
    return counts


def wikitext_articles(rows: Iterable[str]) -> Iterator[dict]:
    """Joins WikiText rows (lines, or rows of the Hub's data set) under each ` = Title = ` into one article.

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


def _paragraphs(articles: Iterable[dict]) -> Iterator[dict]:
    for article in articles:
        for line in article["text"].split("\n"):
            if text := line.strip():
                yield {"title": article["title"], "text": text}


def _synthetic(settings: Corpus, seed: int, progress: TextBar) -> Iterator[dict]:
    from tinybert.synthetic.articles import articles

    for article in articles(seed):
        progress.update(len(article["text"].encode()))
        yield article


def _hub(settings: Corpus, seed: int, progress: TextBar) -> Iterator[dict]:
    return wikitext_articles(_hub_rows(settings.hub, progress))


def _hub_rows(hub: HubCorpus, progress: TextBar) -> Iterator[str]:
    fix = "check corpus.hub, or set corpus.source to local with corpus.local.files, or to synthetic"
    with hub_access("corpus.source: hub", f"{hub.dataset} ({hub.config}, {hub.split}, {hub.revision})", fix=fix):
        from datasets import config, load_dataset

        config.STREAMING_READ_MAX_RETRIES = STREAM_RETRIES

        def load() -> Iterable[dict]:
            return load_dataset(hub.dataset, hub.config, split=hub.split, revision=hub.revision, streaming=True)

        for row in load_verified(
            load, "dataset", hub.dataset, hub.revision
        ):  # what fails from here on, the library retries
            if not isinstance(row.get("text"), str):
                raise UserError(f"corpus.hub.dataset: {hub.dataset} has no text column; it has {', '.join(row)}")
            progress.update(len(row["text"].encode()))
            yield row["text"]


def _local(settings: Corpus, seed: int, progress: TextBar) -> Iterator[dict]:
    files = _matching_files(settings.local.files)
    progress.total = sum(path.stat().st_size for path in files)
    for path in files:
        yield from READERS[_ending(path)](path, progress)


def _matching_files(patterns: Iterable[str]) -> list[Path]:
    """The files of all paths and globs, in the order given, each once; endings are checked before any is read."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        place = str(paths.resolve(pattern))
        matches = [place] if Path(place).exists() else sorted(glob.glob(place, recursive=True))
        files = [Path(match) for match in matches if Path(match).is_file()]
        if not files:
            reason = "is a folder; add /*.txt or the like" if Path(place).is_dir() else "matches no file"
            raise UserError(f"{LOCAL_FILES_KEY}: {pattern!r} {reason} (paths start at the repository's root)")
        found |= dict.fromkeys(files)
    for path in found:
        if _ending(path) not in READERS:
            raise UserError(f"{LOCAL_FILES_KEY}: {path}: unknown ending; {', '.join(READERS)} can be read, also .gz")
    return list(found)


def _ending(path: Path) -> str:
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def _wikitext_file(path: Path, progress: TextBar) -> Iterator[dict]:
    return wikitext_articles(line for _, line in read_lines(path, key=LOCAL_FILES_KEY, on_read=progress.update))


def _jsonl_file(path: Path, progress: TextBar) -> Iterator[dict]:
    for number, line in read_lines(path, key=LOCAL_FILES_KEY, on_read=progress.update):
        if line.strip():
            document = _json_document(line, f"{LOCAL_FILES_KEY}: {path}, line {number}")
            if document["text"]:
                yield document


def _json_document(line: str, where: str) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: no JSON ({error}); one object a line is expected") from None
    if not isinstance(record, dict) or "text" not in record:
        raise UserError(f'{where}: no "text"; one object a line with "text" and, if there is one, "title" is expected')
    text, title = record["text"], record.get("title") or ""
    for name, value in {"text": text, "title": title}.items():
        if not isinstance(value, str):
            raise UserError(f'{where}: "{name}" is {value!r:.40}; a string is expected')
        if NO_TEXT.search(value):
            raise UserError(f'{where}: "{name}" holds half a surrogate pair or a NUL; remove it')
    return {"title": title.strip(), "text": text.strip()}


SOURCES = {"synthetic": _synthetic, "hub": _hub, "local": _local}
READERS = {".txt": _wikitext_file, ".tokens": _wikitext_file, ".jsonl": _jsonl_file}
