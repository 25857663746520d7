"""What the property tests share: damage to bytes and to trees, and what a refusal must look like."""

import copy
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from tinybert.pipeline.errors import UserError

REFUSED = object()
LINE_CHARACTERS = 600
MEGABYTE = 2**20


def outcome(read: Callable[[], Any], *, names: str) -> Any:
    """What `read` returns; REFUSED where it raises a UserError whose every line names what is wrong. Nothing else may
    be raised.
    """
    try:
        return read()
    except UserError as error:
        lines = str(error).split("\n")
        for line in lines:
            assert names in line, f"{names} is not named: {line!r}"
            assert line.isprintable() and len(line) <= LINE_CHARACTERS, f"no plain line: {line!r:.2000}"
            assert not any(word in line for word in ("pydantic", "https://", "Traceback", "object at 0x")), line
        return REFUSED


def is_finite(value: Any) -> bool:
    """Whether all numbers in a plain tree are."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def as_json(tree: Any) -> bytes:
    """As a JSON file holds it, or repr where JSON cannot say it."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)  # a number of any length may stand in a file
    try:
        return json.dumps(tree).encode()
    except (TypeError, ValueError):
        return repr(tree).encode("utf-8", "replace")
    finally:
        sys.set_int_max_str_digits(limit)


# --- bytes -----------------------------------------------------------------------------------------------------------

PIECES = [
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b"\t", b"\t\t", b'"', b"'", b" ",
    b"\\", b"{", b"}", b"[", b"]", b",", b":", b"nan", b"NaN", b"inf", b"-Infinity", b"1e999", b"-1", b"99", b"2.5",
    b"\xe2\x80\xa8", b"\x85", b"\x1a", b"\x1b", "é漢😀".encode(), b"null", b"true", b"[MASK]", b"= x =", b"\\ud800",
]  # fmt: skip
RECODINGS = ["utf-8", "utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig", "cp037"]


def _recoded(data: bytes, encoding: str) -> bytes:
    return data.decode("utf-8", "replace").encode(encoding, "replace")


@st.composite
def damaged_bytes(draw, data: bytes) -> bytes:
    """The bytes after one to three injuries; sometimes none of the original is left."""
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["cut", "insert", "replace", "drop", "double", "bits", "recode", "long", "other"]))
        first = draw(st.integers(0, len(data)))
        last = min(len(data), first + draw(st.sampled_from([1, 2, 7, 40, 10**6])))
        if kind == "cut":
            data = data[:first]
        elif kind == "insert":
            data = data[:first] + draw(st.sampled_from(PIECES)) + data[first:]
        elif kind == "replace":
            data = data[:first] + draw(st.sampled_from(PIECES)) + data[last:]
        elif kind == "drop":
            data = data[:first] + data[last:]
        elif kind == "double":
            data = data[:last] + data[first:last] + data[last:]
        elif kind == "bits" and data:
            place = min(first, len(data) - 1)
            data = data[:place] + bytes([data[place] ^ 1 << draw(st.integers(0, 7))]) + data[place + 1 :]
        elif kind == "recode":
            data = _recoded(data, draw(st.sampled_from(RECODINGS)))
        elif kind == "long" and draw(st.integers(0, 9)) == 0:  # costs more than the others
            data = data[:first] + draw(st.sampled_from([b"x", b"[", b"= ", b"x ", b"9", b"\t", b'"'])) * MEGABYTE
        elif kind == "other":
            data = draw(st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"\n", b"\0" * 9, b"\x1f\x8b"])))
    return data


# --- trees -----------------------------------------------------------------------------------------------------------

NUMBERS = [0, 1, -1, 2, 3, 7, 100, 2**31, 2**32, 2**63, 10**30, 16**5000, 0.0, -0.0, 0.5, 1.0, 1.5, 1e-320, 1e308,
           -1e-9, math.nan, math.inf, -math.inf]  # fmt: skip
TEXTS = ["", " ", "x", "null", "random", "uniform", "a\nb", "a\0b", "\ud800", "é漢😀", "../x", "/", "x" * 300,
         "x/" * 9000,         "teacher", "[bert]", "{item}", "${seed}", "1", "1e-3", "nan"]  # fmt: skip
OTHERS = [None, True, False, [], {}, [[]], [None], [1, 2], [2, 1], [1, 1], ["x"], {"x": 1}, {1: 2}, {None: None},
          {"learnable": {}}, {"hard": 1.0}, {"teacher": "top"}, {"folder": "x", "hub": None}, b"x", (1, 2),
          list(range(5000))]  # fmt: skip


def values() -> st.SearchStrategy:
    """Values of all kinds, to stand where others belong."""
    return st.one_of(
        st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.sampled_from(OTHERS), st.integers(), st.floats(), st.text()
    )


def places(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all nodes below the root."""
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in below:
        yield (*path, key)
        yield from places(value, (*path, key))


def at(tree: Any, path: tuple) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _nudged(value: Any, by: Any) -> Any:
    """A value near a good one, which has a chance to be good."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return by(value)
    return value[::-1] if isinstance(value, (list, str)) else not value


NUDGES = [lambda x: x + 1, lambda x: x - 1, lambda x: 2 * x, lambda x: x / 2, lambda x: -x, lambda x: 0, float, int]


def _change(draw, tree: Any, path: tuple, everywhere: list[tuple]) -> None:
    *parents, key = path
    node = at(tree, tuple(parents))
    kind = draw(st.sampled_from(["set", "nudge", "nudge", "delete", "add", "rename", "copy", "repeat", "wrap"]))
    if kind == "set":
        node[key] = copy.deepcopy(draw(values()))
    elif kind == "nudge":
        node[key] = _nudged(node[key], draw(st.sampled_from(NUDGES)))
    elif kind == "delete":
        del node[key]
    elif kind == "copy":
        node[key] = copy.deepcopy(at(tree, draw(st.sampled_from(everywhere))))
    elif kind == "wrap":
        node[key] = draw(st.sampled_from([[node[key]], {"x": node[key]}, {key: node[key]}]))
    elif isinstance(node, list):
        node.append(copy.deepcopy(node[key]))
    elif kind == "rename":
        node[draw(st.one_of(st.sampled_from([*TEXTS, 1, None, True, 0.5]), st.text(max_size=9)))] = node.pop(key)
    else:
        node[draw(st.sampled_from([*TEXTS, 1, None, True, f"{key}_"]))] = copy.deepcopy(node[key])


@st.composite
def damaged_trees(draw, *originals: Any, paths: Callable[[Any], Iterator[tuple]] = places) -> Any:
    """One of the plain trees after one to three changes."""
    tree = copy.deepcopy(draw(st.sampled_from(originals)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        if everywhere := list(paths(tree)):
            _change(draw, tree, draw(st.sampled_from(everywhere)), everywhere)
    return tree
