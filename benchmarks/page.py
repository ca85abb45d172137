"""docs/benchmarks.md, made from the JSON files alone, so that the page says what they say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import sections
from benchmarks.markdown import figure, table
from benchmarks.records import BENCH, FOLDER, ROOT, read
from benchmarks.targets import TARGETS, Records, Target

PAGE = ROOT / "docs" / "benchmarks.md"
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

_HEAD = """# Benchmarks

`make bench` builds an environment with the peers, runs every part below (under 20 minutes on two cores) and writes this
page; the parts may be measured one by one, as the table at the end says. The page is made from the files in
[results/bench](../results/bench), a folder for each instruction set of PyTorch's kernels; no figure is typed by hand.
Machines differ: compare ratios, not milliseconds.

How it is measured: FedVeil runs through its public interface with its defaults, so that clipping, noise, ledger and
accounting are on. The peers do the same work in turn with it, in one process, burst by burst; Flower runs in its own
processes in between. Every worker has one intra-op thread; pfl-research is measured with one and with two. Ratios are
of minimums, which disturbances hardly reach, and of medians."""


def records(folder: Path = FOLDER) -> dict[str, Any]:
    """Every result there is, by name; those of a GPU end in ``-cuda``."""
    found = {name: read(name, folder=folder) for name in NAMES}
    return found | {f"{name}-cuda": read(name, "cuda", folder) for name in CUDA}


def sets(folder: Path = BENCH) -> dict[str, dict[str, Any]]:
    """The results of every instruction set there are, the newest first."""
    found = {path.name: records(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    return dict(sorted(found.items(), key=lambda pair: _measured_on(pair[1]), reverse=True))


def _measured_on(found: Records) -> str:
    return max(
        (record["provenance"]["date"] for record in found.values() if record is not None),
        default="",
    )


def page(found: Mapping[str, Records]) -> str:
    """The whole page: targets of every instruction set, and all the rest of the first."""
    newest, first = next(iter(found.items()))
    parts = [_HEAD, *_targets(found)]
    if len(found) > 1:
        others = ", ".join(name for name in found if name != newest)
        parts.append(
            f"All that follows is of {newest}; the files at the end have the same of {others}."
        )
    for name, section in sections.SECTIONS.items():
        record = first.get(name)
        parts += [] if record is None else section(record)
    return "\n\n".join([*parts, *_gpu(first), *_sources(found)]) + "\n"


def _targets(found: Mapping[str, Records]) -> list[str]:
    words = {True: "yes", False: "**no**", None: "not measured"}
    counts, columns = [], []
    for name, records_ in found.items():
        met = [target.met(records_) for target in TARGETS]
        said = f"{name}: {met.count(True)} of {len(met)} targets are met, {met.count(False)} are missed"
        counts.append(said + (f", {met.count(None)} were not measured." if None in met else "."))
        columns.append(
            [(*_measured(t, records_), words[m]) for t, m in zip(TARGETS, met, strict=True)]
        )
    rows = [
        (target.text, _asked(target), *(cell for column in columns for cell in column[i]))
        for i, target in enumerate(TARGETS)
    ]
    head = [word for name in found for word in (f"{name}, by minimums", "by medians", "met")]
    missed = [t for t in TARGETS if any(t.met(records_) is False for records_ in found.values())]
    bounds = [(t.text, t.bounded) for t in missed]
    why = (
        []
        if not missed
        else ["What bounds those that are missed:", table(("target", "what bounds it"), bounds)]
    )
    return ["## Targets", *counts, table(("what", "target", *head), rows), *why]


def _asked(target: Target) -> str:
    word = "at most" if target.most else "at least"
    aim = "" if target.aim is None else f" (aim {figure(target.aim)})"
    return f"{word} {figure(target.bound, target.unit)}{aim}"


def _measured(target: Target, found: Records) -> tuple[str | None, str | None]:
    value = target.measured(found)
    return (
        (None, None)
        if value is None
        else (figure(value[0], target.unit), figure(value[1], target.unit))
    )


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
            link = f"[{kind}/{name}.json](../results/bench/{kind}/{name}.json)"
            commit, *changes = made.get("commit", "").split(" ", 1)
            at = " ".join([commit[:10], *changes])
            rows.append(
                (link, f"`{made['command']}`", at, made["date"], made.get("machine"), versions)
            )
    return [
        "## What made these figures",
        table(("file", "command", "commit", "date", "machine", "versions"), rows),
    ]
