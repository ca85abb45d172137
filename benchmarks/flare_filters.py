"""What FLARE's own privacy filters leave of an update, and what they cost, beside FedVeil's Gaussian filter.

Run ``python -m benchmarks.flare_filters --seeds 3 --into results/flare-filters`` in a checkout, with FLARE installed.

Ten sites train a small network on digits; each site's difference goes through its filter, and the server takes the
mean. "Cosine" is that of what a site sends with what it trained, in the first round; "of the mean" that of the ten
together. An epsilon is the total of all rounds for everything of one site: two clipped differences of any data are up
to 2C apart. FLARE's sparse vector states its own total. A filter without noise has none.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.records import write
from fedveil.engines import Federation
from fedveil.engines.nvflare.gaussian import ASKED, forms_of
from fedveil.gdp import epsilon_of_mu
from fedveil.learning import LocalTraining
from fedveil.methods import build
from fedveil.nvflare import GaussianFilter

SITES, ROUNDS, CLIP, DELTA = 10, 30, 1.0, 1e-5
FLIP = {
    "clip": 1.0,
    "sensitivity": 1e-4,
    "epsilon": 10.0,
    "delta": 1e-5,
}  # defaults of londonaicentre/FLIP PR 833
RECORDS = "record level in FedVeilExecutor, epsilon 8 for one image"
Arrays = dict[str, np.ndarray]
Send = Callable[[Arrays, int], Arrays]


def network(seed: int) -> nn.Module:
    """The model; 2,410 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def data(
    seed: int,
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """Each site's rows, and those that belong to nobody."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    rows, targets = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    held, mine = slice(0, 397), [slice(397 + site, None, SITES) for site in range(SITES)]
    return [(rows[own], targets[own]) for own in mine], (rows[held], targets[held])


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Arrays:
    """A site's difference after ten steps."""
    local = network(0)
    local.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
    for _ in range(10):
        optimizer.zero_grad()
        cross_entropy(local(x), y).backward()
        optimizer.step()
    start = model.state_dict()
    return {name: (value - start[name]).numpy() for name, value in local.state_dict().items()}


def flat(arrays: Arrays) -> np.ndarray:
    """One vector."""
    return np.concatenate([np.ravel(arrays[name]) for name in sorted(arrays)]).astype(np.float64)


def through(given: Any, fl_ctx: Any) -> Send:
    """What a FLARE filter sends of a difference."""

    def send(arrays: Arrays, site: int) -> Arrays:
        copies = {name: value.copy() for name, value in arrays.items()}
        result = DXO(DataKind.WEIGHT_DIFF, copies, {"NUM_STEPS_CURRENT_ROUND": 1}).to_shareable()
        found: Arrays = from_shareable(given.process(result, fl_ctx(site))).data
        return found

    return send


def flip_sigma() -> float:
    """Deviation of the noise of FLIP's defaults."""
    return float(
        FLIP["sensitivity"] * math.sqrt(2 * math.log(1.25 / FLIP["delta"])) / FLIP["epsilon"]
    )


def flip(seed: int) -> Send:
    """FLIP's defaults: clip, then noise for a sensitivity of a ten-thousandth of the clip."""
    draw = np.random.default_rng(seed)

    def send(arrays: Arrays, site: int) -> Arrays:
        factor = min(1.0, FLIP["clip"] / np.linalg.norm(flat(arrays)))
        return {
            name: value * factor + draw.normal(0, flip_sigma(), value.shape)
            for name, value in arrays.items()
        }

    return send


def sensitive(epsilon: float) -> Callable[[int, Path], Send]:
    """FedVeil's filter at a total epsilon of all rounds."""

    def made(seed: int, folder: Path) -> Send:
        one = GaussianFilter(epsilon=epsilon, rounds=ROUNDS, delta=DELTA, clip=CLIP, seed=seed)
        return through(one, lambda site: context(folder, site))

    return made


def context(folder: Path, site: int) -> Any:
    """What a filter asks of FLARE's context."""
    workspace = SimpleNamespace(get_run_dir=lambda job: str(folder / job))
    engine = SimpleNamespace(get_workspace=lambda: workspace)
    name = f"site-{site}"
    model = {name: value.numpy() for name, value in network(0).state_dict().items()}
    asked = forms_of(DXO(DataKind.WEIGHTS, model).to_shareable())
    return SimpleNamespace(
        get_engine=lambda: engine,
        get_identity_name=lambda default="": name,
        get_job_id=lambda default=None: "job",
        get_prop={ASKED: asked}.get,
    )


def filters(size: int) -> dict[str, tuple[Callable[[int, Path], Send], float | None]]:
    """By name: what makes the filter, and its total epsilon over all rounds."""

    def svt_epsilon(one: SVTPrivacy) -> float:
        upload = math.ceil(size * one.fraction)
        return float(ROUNDS * (one.epsilon + upload * one.noise_var))

    def plain(kind: Any) -> Callable[[int, Path], Send]:
        return lambda seed, folder: through(kind(), lambda site: FLContext())

    mu = 2 * FLIP["clip"] / flip_sigma() * math.sqrt(ROUNDS)
    made: dict[str, tuple[Callable[[int, Path], Send], float | None]] = {
        "nothing": (lambda seed, folder: lambda arrays, site: arrays, None),
        "PercentilePrivacy, FLARE's defaults": (plain(PercentilePrivacy), None),
        "SVTPrivacy, FLARE's defaults": (plain(SVTPrivacy), svt_epsilon(SVTPrivacy())),
        "FLIP's defaults": (lambda seed, folder: flip(seed), epsilon_of_mu(mu, DELTA)),
    }
    for epsilon in (8.0, 100.0, 1000.0, 10000.0):
        made[f"GaussianFilter, epsilon {epsilon:,.0f}"] = (sensitive(epsilon), epsilon)
    return made


def played(name: str, make: Callable[[int, Path], Send], seed: int) -> dict[str, float]:
    """Accuracy after all rounds, and how alike what was sent is to what was trained."""
    np.random.seed(seed)  # noqa: NPY002  (FLARE's filters draw from it)
    sites, (x, y) = data(seed)
    model, figures = network(seed), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        send = make(seed, Path(folder))
        for round_ in range(ROUNDS):
            own = [trained(model, *rows) for rows in sites]
            sent = [send(arrays, site) for site, arrays in enumerate(own)]
            if not round_:
                pairs = [
                    cosine(flat(one), flat(other)) for one, other in zip(sent, own, strict=True)
                ]
                figures["cosine"] = float(np.mean(pairs))
                figures["cosine of the mean"] = cosine(sum(map(flat, sent)), sum(map(flat, own)))
                figures["not zero"] = float(np.mean(flat(sent[0]) != 0))
            state = model.state_dict()
            for key in state:
                step = np.mean([arrays[key] for arrays in sent], axis=0)
                state[key] = state[key] + torch.as_tensor(step, dtype=torch.float32)
            model.load_state_dict(state)
    figures["accuracy"] = float((model(x).argmax(1) == y).float().mean())
    return figures


def by_records(seed: int) -> dict[str, float]:
    """Accuracy of the same network and sites where records are protected, by noise inside training."""
    sites, (x, y) = data(seed)
    method = build(
        "record", examples=140, epsilon=8.0, delta=DELTA, rounds=ROUNDS, clip=CLIP, steps=10
    )
    federation = Federation(
        model=lambda: network(seed),
        clients=sites,
        method=method,
        seed=seed,
        local=LocalTraining(lr=0.5),
    )
    models = federation.run(ROUNDS).models
    model = network(seed)
    model.load_state_dict(federation.layout.unflatten(models[0]))
    return {"accuracy": float((model(x).argmax(1) == y).float().mean())}


def cosine(one: Any, other: Any) -> float:
    """Cosine of two vectors."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def averaged(runs: list[dict[str, float]]) -> dict[str, float]:
    """Means over seeds, and the accuracy's deviation."""
    means = {key: float(np.mean([one[key] for one in runs])) for key in runs[0]}
    return {**means, "accuracy sd": float(np.std([one["accuracy"] for one in runs], ddof=1))}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The page's table."""
    columns = ["epsilon", "cosine", "cosine of the mean", "not zero", "accuracy"]
    lines = [f"| filter | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, figures in rows.items():
        shown = [said(figures["epsilon"])]
        for column in columns[1:]:
            shown.append(f"{figures[column]:.3f}" if column in figures else "-")
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def said(total: float | None) -> str:
    """A total epsilon for the table."""
    if total is None:
        return "none"
    return f"{total:,.0f}" if total < 1e6 else f"{total:.3g}"


def main() -> None:
    """Play every filter, write the figures and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=Path("results/flare-filters"))
    given = parser.parse_args()
    size = sum(p.numel() for p in network(0).parameters())
    rows: dict[str, dict[str, Any]] = {}
    for name, (make, epsilon) in filters(size).items():
        runs = [played(name, make, seed) for seed in range(given.seeds)]
        rows[name] = {**averaged(runs), "epsilon": epsilon}
        print(name, rows[name], flush=True)
    runs = [by_records(seed) for seed in range(given.seeds)]
    rows[RECORDS] = {**averaged(runs), "epsilon": 8.0}
    rounds = {}
    for times, said in ((1, "zero-out"), (2, "any two inputs")):
        mu = times * FLIP["clip"] / flip_sigma() * math.sqrt(3)
        rounds[f"FLIP's defaults over 3 rounds, {said}"] = epsilon_of_mu(mu, FLIP["delta"])
    body = {"filters": rows, "flip": {**FLIP, "sigma": flip_sigma(), **rounds}}
    body |= {"sites": SITES, "rounds": ROUNDS, "parameters": size, "seeds": given.seeds}
    path = write("filters", body, data="digits of scikit-learn", folder=given.into)
    named = json.loads(path.read_text())
    named["provenance"]["command"] = f"python -m benchmarks.flare_filters --seeds {given.seeds}"
    named["provenance"]["seeds"] = list(range(given.seeds))
    path.write_text(json.dumps(named, indent=1) + "\n")
    print(rounds)
    print(table(rows))


if __name__ == "__main__":
    main()
