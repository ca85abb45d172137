"""Summary of a run: the part common to all engines, and writing a run's result."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedveil.accounting import Guarantee
from fedveil.evidence.numerics import machine, numerics_of, versions
from fedveil.evidence.rows import MEASURES, Row, last_rounds, noise_over_rounds
from fedveil.files import BEST, MODEL, write_atomic
from fedveil.home.description import DESCRIPTION, Description
from fedveil.layout import Layout
from fedveil.methods import Method

REPRODUCIBLE = "reproducible, not for deployment"


def core_of(
    label: str,
    method: Method,
    layout: Layout,
    rows: Sequence[Row],
    guarantee: Guarantee,
    delta: float,
    trainer: str = "auto",
) -> dict[str, Any]:
    """Return the part of a summary that is common to all engines."""
    replies = {"used": sum(row["replies"] for row in rows)}
    for kind in ("failed", "invalid", "refused"):
        replies[kind] = sum(len(row[kind]) for row in rows)
    noisy = method.noisy
    persons = noisy is not None and noisy.noisy_steps.images > 0
    return {
        "setting": label,
        "method": method.name,
        "trust": method.client.trust,
        "measures": MEASURES,
        "metrics": rows[-1]["metrics"] if rows else {},
        "last_rounds": last_rounds(rows),
        "test_metrics": {},
        "guarantee": guarantee.describe(delta),
        "noise": noise_over_rounds(rows),
        "rounds": len(rows),
        "replies": replies,
        "dimension": layout.size,
        "versions": versions(),
        "machine": machine(),
        "numerics": numerics_of(
            noisy is not None, trainer, person=persons, grid=method.noise_on_grid
        ),
        "seconds": {"rounds": round(sum(row["seconds"] for row in rows), 3)},
    }


def write_result(
    folder: Path,
    models: Sequence[Mapping[str, Tensor]],
    summary: Mapping[str, Any],
    about: Description | None = None,
    best: Sequence[Mapping[str, Tensor]] | None = None,
) -> None:
    """Write the last released models, their description, and last the summary, which marks a run as finished.

    `best` are the models of the round with the lowest validation loss; they are written to another file.
    """
    weights = _packed(models)
    write_atomic(folder / MODEL, weights)
    if best is not None:
        write_atomic(folder / BEST, _packed(best))
    if about is not None:
        description = about.of(weights, len(models)).promising(summary)
        write_atomic(folder / DESCRIPTION, description.to_text().encode())
    write_atomic(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def _packed(models: Sequence[Mapping[str, Tensor]]) -> bytes:
    """Write models as a safetensors file; the arrays of several models have prefixes."""
    arrays = {}
    for number, named in enumerate(models):
        prefix = "" if len(models) == 1 else f"hypothesis.{number}."
        for name, value in named.items():
            arrays[prefix + name] = value.detach().cpu().contiguous().clone()
    return save(arrays, metadata={"format": "pt"})
