"""What every summary of a run holds, and how a run's result is written."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedveil.accounting import Guarantee
from fedveil.evidence.numerics import numerics_of, versions
from fedveil.evidence.rows import MEASURES, Row, last_rounds, noise_over_rounds
from fedveil.files import MODEL, write_atomic
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
    """What every summary holds, whoever ran the rounds."""
    counted = {kind: sum(len(row[kind]) for row in rows) for kind in ("failed", "invalid", "refused")}
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
        "replies": {"used": sum(row["replies"] for row in rows), **counted},
        "dimension": layout.size,
        "versions": versions(),
        "numerics": numerics_of(noisy is not None, trainer, person=persons),
        "seconds": {"rounds": round(sum(row["seconds"] for row in rows), 3)},
    }


def write_result(
    folder: Path,
    models: Sequence[Mapping[str, Tensor]],
    summary: Mapping[str, Any],
    about: Description | None = None,
) -> None:
    """Write the last released model, or hypotheses, what it takes, and then the summary, by which a run is finished."""
    arrays = {
        name if len(models) == 1 else f"hypothesis.{j}.{name}": value.detach().cpu().contiguous().clone()
        for j, named in enumerate(models)
        for name, value in named.items()
    }
    weights = save(arrays, metadata={"format": "pt"})
    write_atomic(folder / MODEL, weights)
    if about is not None:
        write_atomic(folder / DESCRIPTION, about.of(weights, len(models)).promising(summary).to_text().encode())
    write_atomic(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
