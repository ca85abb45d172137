"""Figures of jax-privacy for banded noise, beside which `benchmarks.correlated` is tested.

Run in an environment of its own: ``pip install jax-privacy==2.0.0``, then
``python benchmarks/jax_privacy_figures.py COMMIT > results/formal-calibration/jax-privacy.json``. Nothing of FedVeil is
imported.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import jax
from jax_privacy.accounting import DpParams, DpsgdTrainingAccountant, PldAccountantConfig
from jax_privacy.matrix_factorization import toeplitz

DELTA, UNITS = 1e-5, 1000
FACTORS = ((25, 2), (25, 5), (100, 4), (100, 10), (200, 8))  # rounds, bands
# units in a round, rounds, bands, noise multiplier
RUNS = (
    (100, 25, 5, 1.5),
    (100, 25, 1, 1.0),
    (100, 100, 10, 4.0),
    (50, 100, 4, 1.2),
    (50, 200, 10, 2.0),
    (300, 30, 3, 3.0),
)


def factor(rounds: int, bands: int) -> dict[str, Any]:
    """Return coefficients of the best banded Toeplitz factor of prefix sums, and their mean squared error."""
    found = toeplitz.optimize_banded_toeplitz(rounds, bands)
    error = float(toeplitz.loss(found, rounds))
    return {
        "rounds": rounds,
        "bands": bands,
        "coefficients": found.tolist(),
        "mean squared error": error,
    }


def cost(batch: int, rounds: int, bands: int, noise: float) -> dict[str, Any]:
    """Return epsilon of rounds with cyclic Poisson lots, under add or remove one."""
    accountant = DpsgdTrainingAccountant(dp_accountant_config=PldAccountantConfig())
    terms = DpParams(
        noise_multipliers=noise,
        num_samples=UNITS,
        delta=DELTA,
        batch_size=batch,
        cycle_length=bands,
    )
    epsilon = float(accountant.compute_epsilon(rounds, terms))
    names = ("batch", "rounds", "bands", "noise", "epsilon")
    return dict(zip(names, (batch, rounds, bands, noise, epsilon), strict=True))


def main() -> None:
    """Print all figures as JSON."""
    jax.config.update("jax_enable_x64", True)
    made = {
        "command": "python benchmarks/jax_privacy_figures.py COMMIT",
        "commit": sys.argv[1],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seeds": [],
        "data": "none",
        "versions": {name: version(name) for name in ("jax-privacy", "jax", "dp-accounting")},
    }
    body = {
        "provenance": made,
        "units": UNITS,
        "delta": DELTA,
        "factors": [factor(*one) for one in FACTORS],
        "costs": [cost(*one) for one in RUNS],
    }
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
