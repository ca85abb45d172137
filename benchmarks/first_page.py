"""The page of ``python -m benchmarks first_settings``: its tables, from the cells that were kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.first_foresight import table as foresight
from benchmarks.records import ROOT
from fedveil.accounting.planning import ENOUGH

FOLDER = ROOT / "results" / "first-settings"
GAIN = 0.05  # of a best setting over chance, below which there is no share to speak of
HEAD = """# First settings: the tables

By `python -m benchmarks first_settings`; what they mean: [README.md](README.md)."""


def write(found: Mapping[str, Any], quick: bool, say: Callable[[str], None]) -> None:
    """Write the cells and the page's tables; with `quick` say what they hold."""
    text = tables(found["cells"])
    if quick:
        say(text)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "measured.json").write_text(json.dumps(found, indent=1) + "\n")
    (FOLDER / "tables.md").write_text(f"{HEAD}\n\n{text}\n")
    say(f"wrote {FOLDER.relative_to(ROOT)}")


def tables(cells: Mapping[str, Any]) -> str:
    """All tables."""
    return "\n\n".join(
        [
            "\n".join(part)
            for part in (
                _shares(cells),
                _defaults(cells),
                _whole_clients(cells),
                foresight(cells),
                _parts(cells),
            )
        ]
    )


def defaults_of(cell: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Runs of the private settings by epsilon, as text."""
    return {
        label.rpartition(" ")[2]: own
        for label, own in cell["defaults"].items()
        if "epsilon" in label
    }


@dataclass(frozen=True)
class Corner:
    """One set, sum and epsilon: gains over chance of the default and of the best setting, the default included.

    Attributes
    ----------
    where : str
        Set, sum and epsilon, as the table has them.
    default, best : float
        Mean gains over all seeds; each seed divides the rows anew.
    first, first_best : float
        Gains on the rows of seed 0.
    name : str
        The setting that is best over all seeds.
    seeds : int
        How many there are.
    """

    where: str
    default: float
    best: float
    first: float
    first_best: float
    name: str
    seeds: int

    @property
    def share(self) -> float | None:
        """Of the best setting's mean gain over the seeds; None where little is gained."""
        return self.default / self.best if self.best >= GAIN else None

    @property
    def first_share(self) -> float | None:
        """Of the best gain on the rows of seed 0; None where little is gained."""
        return self.first / self.first_best if self.first_best >= GAIN else None


def corners(cells: Mapping[str, Any]) -> Iterator[Corner]:
    """All corners that were measured."""
    for cell in cells.values():
        for epsilon, found in cell["grid"].items():
            own = [run["score"] for run in defaults_of(cell)[epsilon]]
            seeds = min(len(own), *(len(scored) for scored in found["grid"].values()))
            tried = {name: scored[:seeds] for name, scored in found["grid"].items()}
            tried["the default"] = own[:seeds]
            name = max(tried, key=lambda name: fmean(tried[name]))
            yield Corner(
                where=f"{cell['set']} | {cell['sum']} | {epsilon}",
                default=fmean(tried["the default"]) - cell["chance"],
                best=fmean(tried[name]) - cell["chance"],
                first=own[0] - cell["chance"],
                first_best=max(scored[0] for scored in tried.values()) - cell["chance"],
                name=name,
                seeds=seeds,
            )


def _shares(cells: Mapping[str, Any]) -> Iterator[str]:
    every = list(corners(cells))
    means = [corner.share for corner in every if corner.share is not None]
    firsts = [corner.first_share for corner in every if corner.first_share is not None]
    for of, shares in (("all seeds", means), ("seed 0 alone", firsts)):
        yield (
            f"Of {of}: shares of {len(shares)} of {len(every)} corners, median {median(shares):.2f}, worst "
            f"{min(shares):.2f}."
        )
    yield ""
    yield "| set | sum | epsilon | seeds | default's gain | best's gain | share | the best | share on seed 0 |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for corner in every:
        share, first = (
            "nothing to gain" if one is None else f"{one:.2f}"
            for one in (corner.share, corner.first_share)
        )
        yield (
            f"| {corner.where} | {corner.seeds} | {corner.default:.3f} | {corner.best:.3f} | {share} | {corner.name} "
            f"| {first} |"
        )


def _defaults(cells: Mapping[str, Any]) -> Iterator[str]:
    yield "| set, unit, sum | rows, clients | chance | epsilon 8 | 4 | 1 | no privacy |"
    yield "|---|---|---|---|---|---|---|"
    for cell in cells.values():
        runs = defaults_of(cell)
        shown = [_shown(runs[epsilon]) for epsilon in ("8", "4", "1")]
        plain = _shown(cell["defaults"]["no privacy"])
        where = f"{cell['set']}, {cell['unit']}, {cell['sum']}"
        size = f"{cell['rows']}, {cell['clients']}"
        yield f"| {where} | {size} | {cell['chance']:.3f} | {' | '.join(shown)} | {plain} |"


def _whole_clients(cells: Mapping[str, Any]) -> Iterator[str]:
    """Each setting of whole clients: its noise/signal, and the share that it keeps of the gain without privacy."""
    yield f"`plan` and `advise` call noise/signal up to 1 possible, and above {1 / ENOUGH:.1f} hopeless."
    yield ""
    yield "| whole clients, epsilon | noise/signal over all rounds | share of the gain without privacy |"
    yield "|---|---|---|"
    rows = []
    for cell in cells.values():
        if cell["unit"] != "client":
            continue
        outputs = cell["shape"]["classes"] or 1
        parameters = outputs * (cell["shape"]["inputs"] + 1)
        plain = fmean(run["score"] for run in cell["defaults"]["no privacy"]) - cell["chance"]
        for label, pull in cell["pulls"].items():
            gain = fmean(run["score"] for run in cell["defaults"][label]) - cell["chance"]
            where = f"{cell['set']}, {label.rpartition(' ')[2]}"
            rows.append((math.sqrt(parameters) / pull, where, gain / plain))
    for ratio, where, share in sorted(rows):
        yield f"| {where} | {ratio:.2f} | {share:.2f} |"


def _shown(runs: list[dict[str, Any]]) -> str:
    scores = [run["score"] for run in runs]
    spread = f" ({min(scores):.3f} to {max(scores):.3f})" if len(scores) > 1 else ""
    return f"{fmean(scores):.3f}{spread}"


def _parts(cells: Mapping[str, Any]) -> Iterator[str]:
    """Each tried part against the recipe, over the sets: mean difference, best and worst."""
    found: dict[str, dict[str, list[float]]] = {}
    alone = [cell for cell in cells.values() if cell["sum"] == "none"]
    for cell in alone:
        for epsilon, corner in cell["grid"].items():
            for name, value in corner["parts"].items():
                found.setdefault(name, {}).setdefault(epsilon, []).append(
                    value - corner["parts"]["recipe"]
                )
    yield "| instead of the recipe (no trust) | epsilon 8: mean difference, worst to best | epsilon 1 |"
    yield "|---|---|---|"
    for name, by_epsilon in found.items():
        if name != "recipe":
            texts = [
                f"{fmean(own):+.3f} ({min(own):+.3f} to {max(own):+.3f})"
                for own in by_epsilon.values()
            ]
            yield f"| {name} | {' | '.join(texts)} |"
