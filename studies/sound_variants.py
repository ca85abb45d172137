"""The printed rules and their sound variants side by side on digits, at equal noise.

The noise of the sound variants is matched to that of private runs, so this is a study: the guarantees in the table are
those of the same noise fixed in advance.

Writes results/guarantees/digits.json and digits.md. Run: python studies/sound_variants.py --seeds 3
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from provenance import provenance

import fedveil as fv
from fedveil.data import federate, load
from fedveil.engines import Federation, History
from fedveil.gdp import epsilon_of_mu, mu_of_epsilon
from fedveil.learning import build_model
from fedveil.methods import Method, build

OUT = Path(__file__).resolve().parent.parent / "results" / "guarantees"
DELTA, ROUNDS, CLIENTS = 1e-5, 15, 10
LOCAL = fv.LocalTraining(epochs=2, batch_size=16, lr=0.5)


def train(method: Method, seed: int) -> History:
    """One run on digits, 10 clients: a logistic model (650 parameters), or two layers (1,210) where layers matter."""
    digits = load("digits")
    public, digits = (digits.x[:8], digits.y[:8]), replace(digits, x=digits.x[8:], y=digits.y[8:])
    clients = federate(digits, clients=CLIENTS, scheme="iid", holdout=0.2, seed=seed)
    counter = iter(range(100))

    def network() -> torch.nn.Module:
        start = {"input_shape": digits.input_shape, "outputs": 10, "seed": seed + 1000 * next(counter)}
        if method.name == "fedre":
            return build_model("mlp", hidden=(16,), activation="tanh", **start)
        return build_model("logistic", **start)

    return Federation(
        model=network, clients=clients, privacy=method, local=LOCAL, seed=seed, region=(2, 2, 6, 6), public_data=public
    ).run(ROUNDS)


def noise_length(history: History) -> float:
    """Expected Euclidean length of the noise of one release, averaged over releases."""
    d = history.models.shape[1]
    lengths = []
    for record in history.rounds:
        spend = record.round.spend
        if spend.scale:
            lengths.append(spend.scale[0] * math.sqrt(d))
        for scale in record.client_scales.values():
            if len(scale) == 1 and history.guarantee.unit == "parameter vector":
                lengths.append(d / scale[0])
            elif scale:
                lengths.append(math.sqrt(fmean(s * s for s in scale) * d))
    return fmean(lengths) if lengths else 0.0


def matched(make: Callable[[float], Method], start: float, target: float, seed: int) -> tuple[float, History]:
    """Find the parameter whose noise, which grows with it, is as long as the target on average."""
    value = start
    for _ in range(8):
        history = train(make(value), seed)
        ratio = noise_length(history) / target
        if abs(ratio - 1) < 0.01:
            break
        value /= ratio
    return value, history


def weaker(epsilon: float, factor: float) -> float:
    """The epsilon of noise that is `factor` times as long."""
    return epsilon_of_mu(mu_of_epsilon(epsilon, DELTA) / factor, DELTA)


def study(seed: int) -> list[tuple[str, str, History]]:
    """All pairs of one seed."""
    rows = [("none", "vanilla", train(build("vanilla"), seed))]
    printed = train(build("metric", noise_multiplier=1.2, clip=2.0, order="printed"), seed)
    length = noise_length(printed)
    sigma = length / math.sqrt(printed.models.shape[1])
    rows.append(("metric privacy", "printed", printed))
    constant = build("global", noise_multiplier=sigma * CLIENTS / 2.0, clip=2.0)
    rows.append(("metric privacy", "sound: constant scale, curve over distance", train(constant, seed)))
    released = lambda z: build("metric", noise_multiplier=z, clip=2.0, distance_on="released")  # noqa: E731
    rows.append(("metric privacy", "sound: scale from releases", matched(released, 1.2, length, seed)[1]))

    printed = train(build("group", noise_multiplier=3.0, hypotheses=2), seed)
    rows.append(("group privacy", "printed", printed))
    radius = noise_length(printed) / 3.0
    rows.append(
        ("group privacy", "sound: public radius", train(build("group", noise_multiplier=3.0, radius=radius), seed))
    )

    printed = train(build("fedre", epsilon=1000.0, clip=2.0), seed)
    rows.append(("FedRE", "printed", printed))
    public = lambda f: build("fedre", epsilon=weaker(1000.0, f), clip=2.0, scores="public")  # noqa: E731
    rows.append(("FedRE", "sound: mu split by public scores", matched(public, 1.0, noise_length(printed), seed)[1]))

    printed = train(build("sga-ldp", epsilon_min=20.0, epsilon_max=80.0, clip=2.0), seed)
    rows.append(("SGA-LDP", "printed", printed))
    own = lambda f: build(  # noqa: E731
        "sga-ldp", epsilon_min=weaker(20.0, f), epsilon_max=weaker(80.0, f), clip=2.0, similarity="released"
    )
    rows.append(("SGA-LDP", "sound: released similarity", matched(own, 1.0, noise_length(printed), seed)[1]))
    return rows


def accuracy(history: History) -> float:
    """Mean over the last five rounds, pooled held-out fifths."""
    return fmean(r.metrics.accuracy for r in history.rounds[-5:] if r.metrics and r.metrics.accuracy is not None)


def promise(history: History) -> str:
    """The total, or the fact that there is none."""
    return history.guarantee.describe(DELTA)


def main() -> None:
    """Run all seeds and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in range(args.seeds):
        for method, variant, history in study(seed):
            row = {"accuracy": accuracy(history), "noise_length": noise_length(history), "guarantee": promise(history)}
            found.setdefault((method, variant), []).append(row)
            print(seed, method, variant, row, flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [{"method": m, "variant": v, "runs": runs} for (m, v), runs in found.items()]
    source = (
        "scikit-learn digits, 10 iid clients, 15 rounds; logistic model (650 parameters), FedRE: two layers (1,210)"
    )
    record = {"provenance": provenance(source, list(range(args.seeds))), "rows": rows}
    (args.out / "digits.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = [
        "| method | variant | accuracy | noise length | promise of the first seed's noise, if fixed in advance |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        score = [r["accuracy"] for r in row["runs"]]
        length = fmean(r["noise_length"] for r in row["runs"])
        spread = f"{fmean(score):.3f} ± {pstdev(score):.3f}"
        text = row["runs"][0]["guarantee"]
        lines.append(f"| {row['method']} | {row['variant']} | {spread} | {length:.2f} | {text} |")
    (args.out / "digits.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
