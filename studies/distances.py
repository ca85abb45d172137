"""Which distance tells how different the clients are? Digits dealt out by Dirichlet draws from almost one class to iid.

All distances are measured on the same client models of the same runs without noise, beside two yardsticks: how
different the clients' data are (total variation between their class shares, mean over pairs), which no server knows,
and the largest share of held-out examples on which two clients' models disagree.

Writes results/metric-privacy/distances-digits.json, .md and .png. Run: python studies/distances.py --seeds 5
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import fedveil as fv
from fedveil.data import federate, load
from fedveil.engines import Federation
from fedveil.learning import ClientData, build_model
from fedveil.papers.files import dumps
from fedveil.papers.metric_privacy.measures import (
    DECAY,
    DISAGREEMENT,
    correlation_of_changes,
    decay,
    divergences,
    rank_correlation,
    registry,
)
from fedveil.report.figures import COLOURS, DASHES, MARKERS, new_figure, whole_numbers
from fedveil.runs.provenance import provenance

OUT = Path(__file__).resolve().parent.parent / "results" / "metric-privacy"
ALPHAS = (0.05, 0.1, 0.3, 1.0, 10.0)
CLIENTS, ROUNDS, SHOWN = 10, 15, 0.1
LOCAL = fv.LocalTraining(epochs=2, batch_size=16, lr=0.2)
NAMES = (*registry(), DISAGREEMENT)


def main() -> None:
    """Run every alpha under every seed and write page and figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--into", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = [one_run(alpha, seed) for alpha in (*ALPHAS, None) for seed in range(args.seeds)]
    made = provenance("scikit-learn digits, 10 clients, two layers (1,210 parameters)", list(range(args.seeds)))
    args.into.mkdir(parents=True, exist_ok=True)
    (args.into / "distances-digits.json").write_text(dumps({"provenance": made, "runs": runs}))
    (args.into / "distances-digits.md").write_text(page(runs, args.seeds))
    draw(runs).savefig(args.into / "distances-digits.png", dpi=90)
    print(page(runs, args.seeds))


def one_run(alpha: float | None, seed: int) -> dict[str, Any]:
    """FedAvg without noise; every distance in every round."""
    digits = load("digits")
    scheme = {"scheme": "iid"} if alpha is None else {"scheme": "dirichlet", "alpha": alpha, "min_size": 10}
    clients = federate(digits, clients=CLIENTS, holdout=0.2, seed=seed, **scheme)
    module = build_model("mlp", hidden=(16,), activation="tanh", input_shape=digits.input_shape, outputs=10, seed=seed)
    federation = Federation(model=module, clients=clients, local=LOCAL, seed=seed)
    held_out = torch.cat([c.test_x for c in clients if c.test_x is not None])
    rounds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(ROUNDS):
        asked = federation.ask(ROUNDS)
        task = asked.task
        learned = federation.learner.learn(task.models, task.clients, task.keys, task.needs)
        sent = torch.stack([found.trained.model for found in learned if not isinstance(found, Exception)])
        for name, value in divergences(sent, federation.layout, federation.learner.model, held_out).items():
            rounds[name].append(float(f"{value:.6g}"))
        federation.close(asked, federation.collect(asked, learned))
    return {"alpha": alpha, "seed": seed, "data": round(data_divergence(clients), 6), "rounds": rounds}


def data_divergence(clients: Sequence[ClientData]) -> float:
    """Total variation between class shares, mean over pairs of clients."""
    shares = [c.y.bincount(minlength=10).double() / len(c.y) for c in clients]
    return fmean(float((a - b).abs().sum() / 2) for a, b in combinations(shares, 2))


def page(runs: Sequence[dict[str, Any]], seeds: int) -> str:
    """One line a distance."""
    data = [run["data"] for run in runs]
    lines = [
        f"FedAvg without noise on digits, {CLIENTS} clients, Dirichlet alpha {', '.join(map(str, ALPHAS))} and iid, "
        f"{seeds} seeds each, {ROUNDS} rounds.",
        "",
        "| distance | mean d, alpha .05 | mean d, iid | rank correlation with the difference of the data, over runs | "
        "with the disagreement, over the rounds of a run (median) | of their changes from round to round (median) | "
        "last / first round (median) |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    measures = (rank_correlation, correlation_of_changes)
    moving = [r["rounds"] for r in runs if len(set(r["rounds"][DISAGREEMENT])) > 1]  # a constant has no ranks
    for name in NAMES:
        means = [fmean(run["rounds"][name]) for run in runs]
        ends = [fmean(m for m, run in zip(means, runs, strict=True) if run["alpha"] == a) for a in (ALPHAS[0], None)]
        over_runs = rank_correlation(means, data)
        inside = [median(measure(r[name], r[DISAGREEMENT]) for r in moving) for measure in measures]
        trend = median(run["rounds"][name][-1] / run["rounds"][name][0] for run in runs)
        shown = " | ".join("" if name == DISAGREEMENT else f"{value:.2f}" for value in inside)
        lines.append(f"| {name} | {ends[0]:.3g} | {ends[1]:.3g} | {over_runs:.2f} | {shown} | {trend:.2f} |")
    alone = [median(measure(decay(ROUNDS), r[DISAGREEMENT]) for r in moving) for measure in measures]
    lines += [
        f"| {DECAY} | | | | {alone[0]:.2f} | {alone[1]:.2f} | {decay(ROUNDS)[-1]:.2f} |",
        "",
        f"Over the rounds of a run both fall as training converges, fast and then slowly. {DECAY} does so too and "
        "knows nothing of any model: over rounds a distance tells of the clients what it has beyond that. "
        f"Left out there: {len(runs) - len(moving)} of {len(runs)} runs, whose disagreement never moves.",
    ]
    return "\n".join(lines) + "\n"


def draw(runs: Sequence[dict[str, Any]]) -> Any:
    """Distances over the difference of the data, and over the rounds, in multiples of what iid clients have."""
    figure, axes = new_figure(10, 4.8, [["data", "rounds"]], [1, 1])
    for number, name in enumerate(NAMES):
        level = fmean(fmean(run["rounds"][name]) for run in runs if run["alpha"] is None)
        style = {"color": COLOURS[number], "label": name}
        x, y = [run["data"] for run in runs], [fmean(run["rounds"][name]) / level for run in runs]
        axes["data"].plot(x, y, marker=MARKERS[number], linestyle="none", markersize=5, alpha=0.7, **style)
        some = [run["rounds"][name] for run in runs if run["alpha"] == SHOWN]
        mean = [fmean(values) / level for values in zip(*some, strict=True)]
        axes["rounds"].plot(
            range(1, ROUNDS + 1), mean, linestyle=DASHES[number], marker=MARKERS[number], markersize=4, **style
        )
    unit = "in multiples of that of iid clients"
    axes["data"].set(
        xlabel="difference of the clients' data (total variation)", ylabel=f"mean over the rounds,\n{unit}"
    )
    axes["data"].set_title("a point a run, iid and Dirichlet data", fontsize=9)
    axes["rounds"].set(xlabel="round", ylabel=f"mean over the runs,\n{unit}")
    axes["rounds"].set_title(f"over the rounds, with data of a Dirichlet distribution, alpha = {SHOWN}", fontsize=9)
    axes["rounds"].xaxis.set_major_locator(whole_numbers())
    for one in axes.values():
        one.set_ylim(bottom=0)
    figure.legend(*axes["rounds"].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("digits, 10 clients, FedAvg without noise: distances of the clients' models", fontsize=10)
    return figure


if __name__ == "__main__":
    main()
