"""Can a released prediction of a case be traced to its hospital? A game, with and without privacy.

Run ``python -m benchmarks.prediction_source --seeds 5 --into results/prediction-source`` in a checkout.

Hospitals train one model. Then its predictions are released, one vector of class scores a case, without the hospital's
name. The attacker knows the true class of each case and how the hospitals' classes are distributed, and has the
predictions and hospitals of half of the cases: it learns to tell the hospitals apart, and guesses for the other half.

Three figures belong together. *Chance*: the best guess from the true class alone. *Members*: cases that were trained
on. *Others*: cases of the same hospitals that were not. What others give away beyond chance is in the cases (another
scanner, other patients); what members give away beyond others is what training adds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.flare_filters import averaged
from benchmarks.records import write
from fedveil.engines import Federation
from fedveil.learning import LocalTraining, predict
from fedveil.methods import Method, build

HOSPITALS, ROUNDS, CLASSES, EACH = 4, 30, 10, 100
SHADES = (1.0, 0.8, 1.2, 1.0)  # of each hospital's scanner
TILTS = (0.0, 0.05, 0.0, -0.05)
DELTA = 1e-5


def network(seed: int) -> nn.Module:
    """The model."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def hospitals(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cases of each hospital, twice `EACH`: the first half is trained on. A scanner shifts and scales its pictures."""
    draw = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = draw.permutation(len(x))[: 2 * EACH * HOSPITALS]
    found = []
    for hospital in range(HOSPITALS):
        mine = order[hospital::HOSPITALS]
        pictures = x[mine] / 16 * SHADES[hospital] + TILTS[hospital]
        found.append((torch.tensor(pictures, dtype=torch.float32), torch.tensor(y[mine])))
    return found


def settings() -> dict[str, Method]:
    """By name: how the model is trained."""
    record = {"examples": EACH, "delta": DELTA, "rounds": ROUNDS, "clip": 1.0, "steps": 5}
    return {
        "no privacy": build("vanilla"),
        "record, epsilon 100": build("record", epsilon=100.0, **record),
        "record, epsilon 8": build("record", epsilon=8.0, **record),
        "record, epsilon 2": build("record", epsilon=2.0, **record),
    }


def traced(
    scores: np.ndarray, labels: np.ndarray, source: np.ndarray, seed: int
) -> tuple[float, float]:
    """Share of the second half of the cases whose hospital is guessed from their scores, and from the class alone."""
    order = np.random.default_rng(seed).permutation(len(source))
    known, asked = order[: len(order) // 2], order[len(order) // 2 :]
    classes = np.eye(CLASSES)[labels]
    seen = np.hstack([scores, classes, scores * classes])
    scale = StandardScaler().fit(seen[known])
    attack = LogisticRegression(max_iter=2000, C=0.1).fit(
        scale.transform(seen[known]), source[known]
    )
    prior = LogisticRegression(max_iter=2000, C=0.1).fit(classes[known], source[known])
    right = attack.predict(scale.transform(seen[asked])) == source[asked]
    guessed = prior.predict(classes[asked]) == source[asked]
    return float(right.mean()), float(guessed.mean())


def played(method: Method, seed: int) -> dict[str, float]:
    """One federation, and the game on what it predicts."""
    cases = hospitals(seed)
    clients = [(x[:EACH], y[:EACH]) for x, y in cases]
    local = LocalTraining(lr=0.5, epochs=20 if method.noisy is None else 1)
    federation = Federation(
        model=lambda: network(seed), clients=clients, method=method, seed=seed, local=local
    )
    models = federation.run(ROUNDS).models
    model, figures = network(seed), dict[str, float]()
    for name, part in (("members", slice(0, EACH)), ("others", slice(EACH, 2 * EACH))):
        rows = torch.cat([x[part] for x, _ in cases])
        labels = torch.cat([y[part] for _, y in cases]).numpy()
        source = np.repeat(np.arange(HOSPITALS), EACH)
        outputs = predict(model, federation.layout, models[0], rows, batch=1024)
        scores = torch.log_softmax(outputs.to(torch.float64), 1).numpy()
        figures[name], figures[f"chance, {name}"] = traced(scores, labels, source, seed)
        figures[f"accuracy, {name}"] = float((outputs.argmax(1).numpy() == labels).mean())
    return figures


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The page's table."""
    lines = ["| training | accuracy | others (chance) | members (chance) |", "|---|---|---|---|"]
    for name, figures in rows.items():
        cells = [f"{figures['accuracy, others']:.3f}"]
        for part in ("others", "members"):
            cells.append(f"{figures[part]:.3f} ({figures[f'chance, {part}']:.3f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Play every setting, write the figures and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--into", type=Path, default=Path("results/prediction-source"))
    given = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for name, method in settings().items():
        runs = [played(method, seed) for seed in range(given.seeds)]
        for one in runs:
            one["accuracy"] = one["accuracy, others"]
        rows[name] = averaged(runs)
        for part in ("members", "others"):
            rows[name][f"{part} sd"] = float(np.std([one[part] for one in runs], ddof=1))
        print(name, rows[name], flush=True)
    body = {"hospitals": HOSPITALS, "rounds": ROUNDS, "cases": EACH, "settings": rows}
    path = write("game", body, data="digits of scikit-learn", folder=given.into)
    named = json.loads(path.read_text())
    named["provenance"]["command"] = f"python -m benchmarks.prediction_source --seeds {given.seeds}"
    named["provenance"]["seeds"] = list(range(given.seeds))
    path.write_text(json.dumps(named, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
