"""Documents: WikiText headings, JSON lines, the error line of each mistake in a file, held-out splits, the Hub."""

import gzip
import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tinybert.data import corpus as sources
from tinybert.data.corpus import documents, wikitext_articles, write_splits
from tinybert.pipeline import hub
from tinybert.pipeline.errors import UserError
from tinybert.pipeline.process import byte_bar

WIKITEXT = """
 = Copper Lane =

 The lane runs east .
 It is short .

 = = Houses = =

 There are nine houses .
 = a sum that is no heading
 = 3 and a width b =
 4 paces

 = = = Gardens = = =

 = Tin Lane =

 Tin Lane is long .
"""


def settings(*files, unit="article", max_documents=None):
    local = SimpleNamespace(files=tuple(str(file) for file in files))
    return SimpleNamespace(source="local", unit=unit, max_documents=max_documents, local=local)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(*files, **more) -> list[dict]:
    return list(documents(settings(*files, **more), seed=0))


def test_a_queued_run_finds_files_where_the_user_has_them(tmp_path, monkeypatch):
    """It works in a copy of the project elsewhere; DVC_ROOT names the project."""
    project, copy = tmp_path / "project", tmp_path / "copy"
    (project / "local").mkdir(parents=True)
    copy.mkdir()
    write(project / "local/a.txt", "A line.\n")
    monkeypatch.chdir(copy)
    with pytest.raises(UserError, match="matches no file"):
        read("local/*.txt")
    monkeypatch.setenv("DVC_ROOT", str(project))
    assert [document["text"] for document in read("local/*.txt")] == ["A line."]


def test_titles_open_articles_and_section_headings_go(tmp_path):
    file = write(tmp_path / "a.tokens", WIKITEXT)
    assert read(file) == [
        {
            "title": "Copper Lane",
            "text": "The lane runs east .\nIt is short .\nThere are nine houses .\n"
            "= a sum that is no heading\n= 3 and a width b =\n4 paces",
        },
        {"title": "Tin Lane", "text": "Tin Lane is long ."},
    ]


def test_a_paragraph_is_a_document_under_its_articles_title(tmp_path):
    file = write(tmp_path / "a.txt", WIKITEXT)
    found = read(file, unit="paragraph")
    assert [document["text"] for document in found][:3] == [
        "The lane runs east .",
        "It is short .",
        "There are nine houses .",
    ]
    assert [document["title"] for document in found] == ["Copper Lane"] * 6 + ["Tin Lane"]


def test_without_blank_rows_every_title_opens_an_article():
    rows = ["= A =", "Text a .", "= B =", "Text b ."]
    assert [article["title"] for article in wikitext_articles(rows)] == ["A", "B"]


def test_text_before_the_first_title_and_empty_articles():
    rows = ["Loose text .", " = Empty = ", "", " = Full = ", "Some text ."]
    assert list(wikitext_articles(rows)) == [
        {"title": "", "text": "Loose text ."},
        {"title": "Full", "text": "Some text ."},
    ]


def test_text_without_headings_is_cut_to_bound_memory(monkeypatch):
    monkeypatch.setattr(sources, "ARTICLE_LIMIT_CHARACTERS", 10)
    found = list(wikitext_articles(["= T =", "abcdef", "ghijkl", "mnopqr"]))
    assert found == [{"title": "T", "text": "abcdef\nghijkl"}, {"title": "T", "text": "mnopqr"}]


def test_a_line_of_a_million_marks_takes_no_time():
    line = "= " * 200_000 + "x" + " =" * 199_999
    started = time.monotonic()
    assert list(wikitext_articles([line])) == [{"title": "", "text": line}]
    assert time.monotonic() - started < 5


def test_json_lines_with_and_without_title_empty_ones_left_out(tmp_path):
    lines = ['{"text": "One.\\nTwo.", "title": "T", "id": 3}', "", '{"text": "  "}']
    lines.append('{"text": "Three.", "title": null}')
    file = write(tmp_path / "a.jsonl", "\n".join(lines))
    assert read(file) == [{"title": "T", "text": "One.\nTwo."}, {"title": "", "text": "Three."}]
    assert [document["text"] for document in read(file, unit="paragraph")] == ["One.", "Two.", "Three."]


def test_gz_byte_order_mark_and_windows_line_ends(tmp_path):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress("\ufeff = Größe = \r\nEin Satz .\r\nNoch einer .\r\n".encode()))
    assert read(file) == [{"title": "Größe", "text": "Ein Satz .\nNoch einer ."}]


def test_progress_reaches_the_size_of_all_files(tmp_path, monkeypatch):
    bars = []
    monkeypatch.setattr(sources, "byte_bar", lambda title: bars.append(byte_bar(title)) or bars[0])
    files = [write(tmp_path / "a.txt", WIKITEXT), write(tmp_path / "b.txt.gz", gzip.compress(WIKITEXT.encode() * 999))]
    assert len(read(*files)) == 2 * 1000
    size_bytes = sum(file.stat().st_size for file in files)
    assert (bars[0].n, bars[0].total) == (size_bytes, size_bytes)


def test_globs_are_sorted_and_a_file_named_twice_is_read_once(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / f"{name}.txt", f"text {name}")
    found = read(tmp_path / "*.txt", tmp_path / "a.txt")
    assert [document["text"] for document in found] == ["text a", "text b"]


def test_max_documents_counts_units_and_reads_no_further(tmp_path):
    good, bad = write(tmp_path / "a.txt", WIKITEXT), write(tmp_path / "b.txt", b"\xff\xfe")
    assert len(read(good, bad, unit="paragraph", max_documents=7)) == 7
    with pytest.raises(UserError, match=r"b\.txt"):
        read(good, bad, unit="paragraph", max_documents=8)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"fine\ncaf\xe9\n", r"a\.txt, line 2: not UTF-8 \(byte 0xe9 at column 4\)"),
        ("a.txt", "text".encode("utf-16-le"), r"a\.txt, line 1: holds NUL bytes"),
        ("a.txt", b" \n\n", "no text in it"),
        ("a.txt", b"", "no text in it"),
        ("a.csv", b"text", r"a\.csv: unknown ending; \.txt, \.tokens, \.jsonl"),
        ("a.txt.gz", b"no gzip at all", r"a\.txt\.gz cannot be read"),
        ("a.txt.gz", gzip.compress(b"text " * 1000, mtime=0)[:-12], r"a\.txt\.gz cannot be read"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"a\.jsonl, line 2: no JSON"),
        ("a.jsonl", b'{"body": "a"}', r'a\.jsonl, line 1: no "text"'),
        ("a.jsonl", b'["text"]', r'a\.jsonl, line 1: no "text"'),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1: no JSON"),
        ("a.jsonl", b'{"text": 3}', r'a\.jsonl, line 1: "text" is 3; a string'),
        ("a.jsonl", b'{"text": "a", "title": ["b"]}', r'line 1: "title" is'),
        ("a.jsonl", b'{"text": "\\ud800"}', r'line 1: "text" is .*halves of surrogate pairs'),
    ],
)
def test_mistakes_in_a_file_are_one_line_with_file_and_place(tmp_path, name, content, expected):
    with pytest.raises(UserError, match=expected) as caught:
        read(write(tmp_path / name, content))
    assert str(caught.value).startswith("corpus.") and "\n" not in str(caught.value)


def test_overlong_lines_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tinybert.pipeline.files.LINE_LIMIT_BYTES", 2**20)
    file = write(tmp_path / "a.txt", b"x" * (2**20 + 1))
    with pytest.raises(UserError, match="line 1: longer than 1 MiB"):
        read(file)


@pytest.mark.parametrize(("pattern", "expected"), [("no*.txt", "matches no file"), ("folder", "is a folder")])
def test_patterns_without_files_are_named(tmp_path, pattern, expected):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=rf"corpus\.local\.files: .*{expected}"):
        read(tmp_path / pattern)


def test_every_third_document_is_held_out(tmp_path):
    files = {"train": tmp_path / "train.jsonl", "heldout": tmp_path / "heldout.jsonl"}
    write_splits(({"title": "", "text": str(number)} for number in range(1, 8)), **files, every=3)
    found = {split: [json.loads(line)["text"] for line in file.open()] for split, file in files.items()}
    assert found == {"train": ["1", "2", "4", "5", "7"], "heldout": ["3", "6"]}


def test_write_splits_writes_both_files_and_counts(tmp_path):
    found = [{"title": "é", "text": "two words"}, {"title": "", "text": "one"}, {"title": "", "text": "a b c"}]
    train, heldout = tmp_path / "train.jsonl", tmp_path / "heldout.jsonl"
    counts = write_splits(iter(found), train=train, heldout=heldout, every=2)
    assert counts == {"documents": {"train": 2, "heldout": 1}, "words": {"train": 5, "heldout": 1}}
    assert [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()] == [found[0], found[2]]
    assert [json.loads(line) for line in heldout.read_text(encoding="utf-8").splitlines()] == [found[1]]


def test_too_few_documents_leave_no_file_behind(tmp_path):
    with pytest.raises(UserError, match=r"corpus\.heldout_every: 5, but the corpus has 2 documents"):
        write_splits([{"text": "a"}] * 2, train=tmp_path / "t", heldout=tmp_path / "h", every=5)
    assert list(tmp_path.iterdir()) == []


def hub_settings(unit="article"):
    where = SimpleNamespace(dataset="someone/wiki", config="raw", split="train", revision="abc123")
    return SimpleNamespace(source="hub", unit=unit, max_documents=None, hub=where)


@pytest.fixture
def fake_hub(monkeypatch):
    """A `datasets` module whose load_dataset records its call and streams `rows`."""
    module = ModuleType("datasets")

    def load_dataset(*names, **options):
        module.call = (names, options)
        if isinstance(module.rows, Exception):
            raise module.rows
        return iter(module.rows)

    module.load_dataset, module.config = load_dataset, SimpleNamespace()
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(hub, "_is_reachable", lambda: True)
    return module


def test_hub_rows_are_streamed_from_the_pinned_revision(fake_hub):
    fake_hub.rows = [{"text": " = A = \n"}, {"text": ""}, {"text": " Body . \n"}]
    assert list(documents(hub_settings(), seed=0)) == [{"title": "A", "text": "Body ."}]
    options = {"split": "train", "revision": "abc123", "streaming": True}
    assert fake_hub.call == (("someone/wiki", "raw"), options)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{"title": "A", "text": " Body .\n"}, {"title": None, "text": "b\nc"}, {"title": "D", "text": None}],
         [{"title": "A", "text": "Body ."}, {"title": "", "text": "b\nc"}]),
        ([{"text": ""}, {"text": "a\nb", "title": 5}, {"text": ""}, {"text": " = c = "}],
         [{"title": "", "text": "a\nb"}, {"title": "", "text": "= c ="}]),
    ],
)  # fmt: skip
def test_hub_rows_with_titles_or_several_lines_are_articles(fake_hub, rows, found):
    fake_hub.rows = rows
    assert list(documents(hub_settings(), seed=0)) == found


def test_nul_characters_of_hub_rows_become_spaces(fake_hub):
    fake_hub.rows = [{"text": " = A = \n"}, {"text": " Body\0text . \n"}]
    assert list(documents(hub_settings(), seed=0)) == [{"title": "A", "text": "Body text ."}]


def test_hub_rows_without_text_name_the_columns(fake_hub):
    fake_hub.rows = [{"content": "x", "id": 1}]
    with pytest.raises(UserError, match="someone/wiki has no text column; it has content, id"):
        list(documents(hub_settings(), seed=0))


def test_a_hub_error_is_one_line_with_the_key_and_the_fix(fake_hub):
    fake_hub.rows = ValueError("Bad split: train.\nAvailable splits: ['test']")
    with pytest.raises(UserError) as caught:
        list(documents(hub_settings(), seed=0))
    assert str(caught.value) == (
        "corpus.source: hub: someone/wiki (raw, train, abc123) cannot be loaded from the Hub (Bad split: train); fix: "
        "check corpus.hub, or set corpus.source to local with corpus.local.files, or to synthetic"
    )


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with 403."""

    def do_HEAD(self):
        self.send_error(403)

    def log_message(self, *_):
        pass


def test_an_endpoint_that_answers_anything_at_all_is_reachable(monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert hub._is_reachable()
        thread.join()
    assert not hub._is_reachable()


OFFLINE_SCRIPT = """
import sys
from types import SimpleNamespace as N
from tinybert.data.corpus import documents
from tinybert.pipeline.errors import UserError
hub = N(dataset="Salesforce/wikitext", config="wikitext-103-raw-v1", split="train", revision="main")
lines = []
for _ in range(2):  # the second finds the libraries offline
    try:
        next(documents(N(source="hub", unit="article", max_documents=1, hub=hub), seed=0))
    except UserError as error:
        lines.append(str(error))
sys.exit("\\n".join(lines))
"""


def test_an_unreachable_hub_is_one_line_without_long_retries(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, never listening: connections are refused
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        source = Path(sources.__file__).parents[2]
        environment = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "PYTHONPATH": str(source), "PATH": ""}
        process = subprocess.run(
            [sys.executable, "-c", OFFLINE_SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=20,  # the library's own retries take longer
        )
    assert process.returncode == 1, process.stderr
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("corpus.source: hub: Salesforce/wikitext") and "corpus.local.files" in line
        assert f"no connection to {address}" in line


def test_local_files_import_nothing_of_the_hub(tmp_path):
    file = write(tmp_path / "a.txt", WIKITEXT)
    code = (
        "import sys; from types import SimpleNamespace as N; from tinybert.data.corpus import documents;"
        f"s = N(source='local', unit='article', max_documents=None, local=N(files=({str(file)!r},)));"
        "assert len(list(documents(s, seed=0))) == 2;"
        "assert not {'datasets', 'huggingface_hub', 'transformers', 'torch'} & set(sys.modules)"
    )
    environment = {"PYTHONPATH": str(Path(sources.__file__).parents[2])}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=20)
    assert process.returncode == 0, process.stderr
