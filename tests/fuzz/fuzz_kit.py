"""Mutations of valid inputs, and what may come of reading one: a value, or a refusal in words within a second."""

import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings

from fedveil.errors import FedVeilError

MOST = float(
    os.environ.get("FUZZ", "0.1")
)  # share of a hundred thousand inputs; `make fuzz` plays all
SECONDS = 1.0  # of the processor
AT_MOST = 10.0  # the same, for a call that may load modules first
BYTES = 1 << 30  # how much address space one input may take
REFUSED = object()

_pickled: list[str] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        _pickled.append(str(arguments))


sys.addaudithook(_watch)


def played(examples: int) -> Callable[[Any], Any]:
    """Settings of a test that plays so many inputs in a whole run."""
    return settings(
        max_examples=max(1, round(examples * MOST)),
        deadline=None,
        database=None,
        derandomize="FUZZ_ANEW"
        not in os.environ,  # the same inputs each time, unless others are asked for
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def outcome(call: Callable[[], Any], *refusals: type[Exception]) -> Any:
    """What a call returns, or `REFUSED`; fails where it crashes, is slow twice, takes memory or unpickles.

    A call that is slow once may have loaded a module, or met the collector of garbage: a slow input is slow again. A
    call that keeps what it found could be fast then, so the first one has a limit, too.
    """
    value, seconds = _played(call, *refusals)
    assert seconds < AT_MOST, f"took {seconds:.1f} s of the processor"
    if seconds >= SECONDS:
        value, again = _played(call, *refusals)
        seconds = min(seconds, again)
    assert seconds < SECONDS, f"took {seconds:.1f} s of the processor, twice"
    return value


def _played(call: Callable[[], Any], *refusals: type[Exception]) -> tuple[Any, float]:
    """What a call returns, or `REFUSED`, and its seconds of the processor."""
    _pickled.clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, hard))
    words = "a value"
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = call()
    except (FedVeilError, *refusals) as error:
        words, value = str(error), REFUSED
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    took = time.process_time() - began
    assert words.strip(), "a refusal without words"
    assert not _pickled, f"unpickled {_pickled[:3]}"
    return value, took


numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**400, 1e308, 5e-324, -0.0, 1e-300]),
)
texts = st.one_of(
    st.text(max_size=24),
    st.sampled_from(
        [
            "",
            "\x00",
            "../../x",
            "\x1b[2J",
            "\u202e",
            "NaN",
            "1e999",
            "x" * 10_000,
            "1,234",
            "None",
            "\ud800",
            "${x}",
        ]
    ),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)


def _nested(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(one, max_size=4) | st.dictionaries(texts, one, max_size=4)


values = st.recursive(leaves, _nested, max_leaves=8)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in nested dicts and lists, the whole included."""
    yield path
    if isinstance(tree, dict):
        for key, inner in tree.items():
            yield from places(inner, (*path, key))
    elif isinstance(tree, list):
        for place, inner in enumerate(tree):
            yield from places(inner, (*path, place))


def _changed(tree: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy in which `change(parent, key)` was called at a path."""
    if isinstance(tree, dict):
        copy: Any = dict(tree)
    elif isinstance(tree, list):
        copy = list(tree)
    else:
        return tree
    if len(path) == 1:
        change(copy, path[0])
    else:
        copy[path[0]] = _changed(copy[path[0]], path[1:], change)
    return copy


@st.composite
def trees(draw: Any, tree: Any, most: int = 3) -> Any:
    """A nested value with one to `most` edits: another value, none, twice, another key, deeper."""
    tree = deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        every = list(places(tree))
        path = every[draw(st.integers(0, len(every) - 1))]
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return draw(values)
            continue
        kind = draw(st.sampled_from(["value", "value", "value", "gone", "key", "deeper", "added"]))
        new = draw(values)

        def change(parent: Any, key: Any, kind: str = kind, new: Any = new) -> None:
            if kind == "value":
                parent[key] = new
            elif kind == "gone":
                del parent[key]
            elif kind == "deeper":
                parent[key] = [parent[key]] * 2
            elif isinstance(parent, list):
                parent.insert(key, new)
            elif kind == "key":
                parent[str(new)[:40]] = parent.pop(key)
            else:
                parent[str(new)[:40]] = new

        tree = _changed(tree, path, change)
    return tree


@st.composite
def bytes_of(draw: Any, right: bytes, most: int = 4) -> bytes:
    """Bytes with one to `most` edits: flipped, put in, cut out, doubled, or ended early."""
    raw = bytearray(right)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        kind = draw(st.sampled_from(["flip", "flip", "put", "cut", "twice", "end", "number"]))
        length = draw(st.integers(1, 64))
        if kind == "flip" and raw:
            raw[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "put":
            raw[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "cut":
            del raw[at : at + length]
        elif kind == "twice":
            raw[at:at] = raw[at : at + length]
        elif kind == "end":
            del raw[at:]
        else:  # a length or an offset in a header
            raw[at : at + 4] = draw(
                st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"9999"])
            )
    return bytes(raw)


@st.composite
def lines_of(draw: Any, lines: list[str], most: int = 3) -> list[str]:
    """Lines with one to `most` edits: gone, twice, changed places, or with other letters."""
    own = list(lines)
    for _ in range(draw(st.integers(1, most))):
        if not own:
            break
        at = draw(st.integers(0, len(own) - 1))
        kind = draw(st.sampled_from(["gone", "twice", "moved", "letters", "letters"]))
        if kind == "gone":
            del own[at]
        elif kind == "twice":
            own.insert(at, own[at])
        elif kind == "moved":
            own.insert(draw(st.integers(0, len(own) - 1)), own.pop(at))
        else:
            own[at] = draw(bytes_of(own[at].encode("utf-8", "surrogatepass"))).decode(
                "utf-8", "replace"
            )
    return own
