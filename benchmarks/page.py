"""docs/benchmarks.md and results/bench/measured.md, made from the JSON files alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from benchmarks import sections
from benchmarks.markdown import figure, table
from benchmarks.records import BENCH, FOLDER, ROOT, read
from benchmarks.targets import TARGETS, Records, Target

PAGE = ROOT / "docs" / "benchmarks.md"
MEASURED = BENCH / "measured.md"
NAMES = (
    "engines",
    "limits",
    "footprint",
    "curves",
    "cnn",
    "trainers",
    "scores",
    "noise",
    "kernels",
    "per_example",
    "persons",
    "secure_sum",
    "waits",
)
CUDA = ("engines", "cnn")

_FIRST = """# Benchmarks

On small models a round of pfl-research takes {small} times as long as FedVeil's, on a CNN of 1.2 million parameters {large}
times. FedVeil's memory is {memory} of Flower's. The table has both workloads. [All
figures](../results/bench/measured.md) have every target and timing, with command, commit and machine. Machines differ:
compare ratios, not milliseconds."""
_HEAD = """`make bench` builds an environment with the peers, measures every part (under 20 minutes on two cores) and writes this
page and the one of all figures. FedVeil runs with its defaults: clipping, noise, ledger and accounting are on. The
peers do the same work in turn with it, in one process; Flower runs in processes of its own. Every worker has one thread
inside PyTorch. A ratio is of minimums, which disturbances hardly change; the ratio of medians is in brackets.

One process holds 100,000 clients, 100 million parameters, or a secure sum of 200 sites
([scale](../results/bench/scale.md), measured apart by `python -m benchmarks.scale`)."""

_MEASURED_HEAD = """# All figures of the benchmarks

Made by `make bench`, which [the page on benchmarks](../../docs/benchmarks.md) sums up. "Times ours" is a time over
FedVeil's."""


def records(folder: Path = FOLDER) -> dict[str, Any]:
    """Every result there is, by name; those of a GPU end in ``-cuda``."""
    found = {name: read(name, folder=folder) for name in NAMES}
    return found | {f"{name}-cuda": read(name, "cuda", folder) for name in CUDA}


def sets(folder: Path = BENCH) -> dict[str, dict[str, Any]]:
    """The results of every instruction set there are: the most complete first, of these the newest."""
    found = {path.name: records(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    return dict(sorted(found.items(), key=lambda pair: _order(pair[1]), reverse=True))


def _order(found: Records) -> tuple[int, str]:
    made = [record for record in found.values() if record is not None]
    return len(made), max((record["provenance"]["date"] for record in made), default="")


SHOWN = {
    "W1": "Small MLP",
    "W2": "CNN",
}  # workloads that stand on the page, by the names that they have there
COLUMNS = {"avx2": "a processor with AVX2", "avx512": "a processor with AVX-512"}
_SPEED = [target for target in TARGETS if "pfl-research at its best" in target.text]
_FLOWER = [target for target in TARGETS if "over Flower's" in target.text]


def page(found: Mapping[str, Records]) -> str:
    """The page: FedVeil beside its peers, and how long an audit takes, on every instruction set."""
    first = next(iter(found.values()))
    beside = [target for target in TARGETS if target.text[:2] in SHOWN and target.unit == "x"]
    audits = [target for target in TARGETS if target.text.startswith("the audit")]
    rows = [
        (_named(target.text), _asked(target, aim=False), *_measured_by(target, found))
        for target in (*beside, *audits)
    ]
    columns = [COLUMNS.get(name, name) for name in found]
    written = table(("what", "target", *columns), rows)
    return (
        "\n\n".join([_opening(found), _HEAD, *_workloads(first), "## Beside others", written])
        + "\n"
    )


def _opening(found: Mapping[str, Records]) -> str:
    """The page's answer: a round beside pfl-research's, memory beside Flower's, over all instruction sets."""
    small, large = (_range([target], found, 2) for target in _SPEED)
    return _FIRST.format(small=small, large=large, memory=_range(_FLOWER, found, 2))


def _range(targets: list[Target], found: Mapping[str, Records], digits: int) -> str:
    """The least and the most of some targets' figures, as ``a to b``."""
    measured_ = [target.measured(records_) for target in targets for records_ in found.values()]
    figures = [one[0] for one in measured_ if one is not None]
    if not figures:
        return "(not measured)"
    return f"{min(figures):.{digits}g} to {max(figures):.{digits}g}"


def _named(text: str) -> str:
    """A target's text, with a workload by its name on the page."""
    return f"{SHOWN[text[:2]]}{text[2:]}" if text[:2] in SHOWN else text


def _measured_by(target: Target, found: Mapping[str, Records]) -> list[str]:
    return [_said(target, records_) for records_ in found.values()]


def measured(found: Mapping[str, Records]) -> str:
    """All figures of the newest instruction set, and what made the files of each."""
    newest, first = next(iter(found.items()))
    parts = [_MEASURED_HEAD, *_workloads(first, SHOWN), *_targets(found), *_bounds(found)]
    if len(found) > 1:
        others = ", ".join(name for name in found if name != newest)
        parts.append(f"Figures are of {newest}; the files at the end have those of {others}.")
    for name, section in sections.SECTIONS.items():
        record = first.get(name)
        parts += [] if record is None else section(record)
    return "\n\n".join([*parts, *_gpu(first), *_sources(found)]) + "\n"


def _targets(found: Mapping[str, Records]) -> list[str]:
    counts = []
    for name, records_ in found.items():
        met = [target.met(records_) for target in TARGETS]
        said = f"{name}: {met.count(True)} of {len(met)} targets are met, {met.count(False)} are missed"
        counts.append(said + (f", {met.count(None)} were not measured." if None in met else "."))
    rows = [(target.text, _asked(target), *_measured_by(target, found)) for target in TARGETS]
    return ["## Targets", " ".join(counts), table(("what", "target", *found), rows)]


def _workloads(found: Records, keys: Collection[str] = ()) -> list[str]:
    """What the workloads are; those of `keys` by the names of the files."""
    record = found["engines"]
    named = {} if record is None else record["workloads"]
    return [
        f"{key if key in keys else SHOWN.get(key, key)}: {work['title']}."
        for key, work in named.items()
    ]


def _bounds(found: Mapping[str, Records]) -> list[str]:
    missed = [t for t in TARGETS if any(t.met(records_) is False for records_ in found.values())]
    bounds = [(t.text, t.bounded) for t in missed]
    if not missed:
        return []
    return [
        "## What bounds the targets that are missed",
        table(("target", "what bounds it"), bounds),
    ]


def _said(target: Target, found: Records) -> str:
    """The figure by minimums, in brackets by medians, and whether it misses the target."""
    value = target.measured(found)
    if value is None:
        return "not measured"
    by_minimums, by_medians = (figure(one, target.unit) for one in value)
    said = f"{by_minimums} ({by_medians})" if by_medians else str(by_minimums)
    return said if target.met(found) else f"**missed:** {said}"


def _asked(target: Target, aim: bool = True) -> str:
    word = "at most" if target.most else "at least"
    hoped = "" if target.aim is None or not aim else f" (aim {figure(target.aim)})"
    return f"{word} {figure(target.bound, target.unit)}{hoped}"


def _gpu(found: Records) -> list[str]:
    parts: list[str] = []
    for name in CUDA:
        record = found.get(f"{name}-cuda")
        parts += [] if record is None else sections.SECTIONS[name](record)
    deeper = [part.replace("## ", "### ", 1) if part.startswith("## ") else part for part in parts]
    return ["## On a GPU", *deeper] if parts else []


def _sources(found: Mapping[str, Records]) -> list[str]:
    rows = []
    for kind, name, record in (
        (k, n, r) for k, records_ in found.items() for n, r in records_.items()
    ):
        if record is not None:
            made = record["provenance"]
            versions = ", ".join(
                f"{library} {number}" for library, number in made.get("versions", {}).items()
            )
            link = f"[{kind}/{name}.json]({kind}/{name}.json)"
            commit, *changes = made.get("commit", "").split(" ", 1)
            at = " ".join([commit[:10], *changes])
            rows.append(
                (link, f"`{made['command']}`", at, made["date"], made.get("machine"), versions)
            )
    return [
        "## What made these figures",
        table(("file", "command", "commit", "date", "machine", "versions"), rows),
    ]
