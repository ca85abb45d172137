"""Does finding out *who takes part* help to find out *which records were trained on*?

Run ``python -m benchmarks.inference_chain --into results/metric-privacy`` in a checkout. One client attacks. Whether the
target takes part is drawn for each run; so is which of its records it has. The attacker asks of each candidate record
whether the federation trained on it:

* *records alone*: by the updates of the others along the record's gradient, or by its loss; who takes part is ignored;
* *chain*: client inference first (`own-update` of `fedveil audit`), then the same score of the record. Both scores are
  weighed by a logistic regression that is fitted to rehearsals;
* *told*: the same, if somebody tells the attacker who takes part. No first step can be better.

Sources: property inference by subtraction (Melis et al. 2019, arXiv 1805.04049), gradient alignment and calibrated loss
(Watson et al. 2022, arXiv 2111.08440).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import fedveil as fv
from benchmarks.records import machine
from fedveil.accounting import model_of
from fedveil.clipping import clip
from fedveil.engines import Seen
from fedveil.learning import ClientData, LocalTraining
from fedveil_lab.attacks.statistics import auc
from fedveil_lab.runs.provenance import provenance

Floats = NDArray[np.float64]

ROUNDS, CLIP = 20, 0.5
CANDIDATES = 40  # a run: half of them are the target's, if it takes part
SPECIAL = (5, 6, 7, 8, 9)  # classes of the target
SETTINGS = {
    "no privacy": (None, 0.0),
    "global DP, z = 0.5": (fv.GlobalDP, 0.5),
    "metric privacy, z = 0.5": (fv.MetricPrivacy, 0.5),
    "global DP, z = 2": (fv.GlobalDP, 2.0),
    "metric privacy, z = 2": (fv.MetricPrivacy, 2.0),
}
STAND_INS = {"all ten classes": tuple(range(10)), "the same five classes": SPECIAL}


@dataclass(frozen=True)
class Told:
    """What one run gives: a score of the target, scores of the candidates, and the truth."""

    present: bool
    client: float
    records: dict[str, Floats]
    owned: NDArray[np.bool_]
    accuracy: float

    @property
    def trained_on(self) -> NDArray[np.bool_]:
        """Whether the federation trained on each candidate."""
        return self.owned & self.present


class OwnUpdates:
    """Probe that keeps what the first client sent in each round."""

    name = "own updates"
    figures: Collection[str] = ()

    def __init__(self) -> None:
        self.sent: list[Tensor] = []

    def __call__(self, seen: Seen) -> dict[str, float]:
        model = model_of(seen.received[0])
        assert model is not None
        self.sent.append(model - seen.broadcast.models[0])
        return {}


def dealt(x: Tensor, y: Tensor, seed: int, stand_in: tuple[int, ...]) -> dict[str, ClientData]:
    """Deal disjoint records of the digits to all parts of one run."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    special = [int(i) for i in order if int(y[i]) in SPECIAL]
    own, others, known = np.split(np.array(special[:180]), [20, 40])
    left = [int(i) for i in order if int(i) not in set(special[:180])]
    absent = [i for i in left if int(y[i]) in stand_in][:40]
    rest = [i for i in left if i not in set(absent)]

    def data(rows: Any) -> ClientData:
        return ClientData(x[rows], y[rows])

    return {
        "attacker": data(rest[:100]),
        "bystander": data(rest[100:200]),
        "reference": data(rest[200:500]),
        "test": data(rest[500:]),
        "target": data(np.concatenate([own, known[:20]])),
        "candidates": data(np.concatenate([own, others])),
        "shadow": data(known[20:]),
        "stand-in": data(absent),
    }


def gradients(vector: Tensor, data: ClientData) -> Tensor:
    """Compute minus the gradient of the cross-entropy of each example, at a linear model [650]: [n, 650] float64."""
    weight, bias = vector[:640].view(10, 64).double(), vector[640:].double()
    x = data.x.double()
    error = torch.softmax(x @ weight.T + bias, 1) - torch.nn.functional.one_hot(data.y, 10)
    return -torch.cat([(error[:, :, None] * x[:, None]).flatten(1), error], 1)


def losses(vector: Tensor, data: ClientData) -> Tensor:
    """Compute the cross-entropy of each example at a linear model [650]: [n]."""
    weight, bias = vector[:640].view(10, 64).double(), vector[640:].double()
    output = data.x.double() @ weight.T + bias
    return torch.nn.functional.cross_entropy(output, data.y, reduction="none")


def played(x: Tensor, y: Tensor, setting: str, stand_in: tuple[int, ...], seed: int) -> Told:
    """Run one federation of three clients, and score what the first one received."""
    parts = dealt(x, y, seed, stand_in)
    present = bool(np.random.default_rng([seed, 1]).integers(2))
    third = parts["target" if present else "stand-in"]
    kind, z = SETTINGS[setting]
    rule = fv.FedAvg()
    method = rule if kind is None else kind(rule, clip=CLIP, noise_multiplier=z)
    torch.manual_seed(seed)
    own = OwnUpdates()
    federation = fv.Federation(
        model=torch.nn.Linear(64, 10),
        clients=[parts["attacker"], parts["bystander"], third],
        method=method,
        local=LocalTraining(epochs=2, batch_size=16, lr=0.5),
        evaluation=fv.Evaluation(probes=[own]),
        seed=seed,
    )
    models = [federation.models[0].clone()]
    for _ in federation.rounds(ROUNDS):
        models.append(federation.models[0].clone())
    client = 0.0
    aligned = torch.zeros(CANDIDATES, dtype=torch.float64)
    for start, end, sent in zip(models[:-1], models[1:], own.sent, strict=True):
        known = sent if kind is None else clip(sent[None], CLIP)[0]
        moved = (3 * (end - start) - known).double()
        usual = gradients(start, parts["reference"]).mean(0)
        direction = gradients(start, parts["shadow"]).mean(0) - usual
        client += float(moved @ direction / direction.norm())
        kindred = gradients(start, parts["shadow"])
        each = gradients(start, parts["candidates"]) - kindred.mean(0)
        aligned += (each @ moved) / each.norm(dim=1)
    reference = parts["reference"]
    outsider = LogisticRegression(max_iter=300).fit(reference.x.numpy(), reference.y.numpy())
    flat = np.concatenate([outsider.coef_.reshape(-1), outsider.intercept_])
    fitted = losses(torch.from_numpy(flat), parts["candidates"])
    scores = {
        "gradient": aligned.numpy(),
        "loss": (fitted - losses(models[-1], parts["candidates"])).numpy(),
    }
    test = parts["test"]
    weight, bias = models[-1][:640].view(10, 64), models[-1][640:]
    right = (test.x @ weight.T + bias).argmax(1) == test.y
    owned = np.arange(CANDIDATES) < CANDIDATES // 2
    return Told(present, client, scores, owned, float(right.double().mean()))


def features(runs: list[Told], step: str) -> Floats:
    """List the scores of all candidates of all runs: [runs x candidates, 1, 2 or 3], as the attacker has them."""
    rows = []
    for run in runs:
        columns = [run.records["gradient"], run.records["loss"]]
        if step != "records alone":
            first = float(run.present) if step == "told" else run.client
            columns.append(np.full(CANDIDATES, first))
        rows.append(np.stack(columns, 1))
    return np.concatenate(rows)


def weighed(rehearsals: list[Told], runs: list[Told], step: str) -> Floats:
    """Weigh the scores by a logistic regression fitted to rehearsals: log-odds [runs, candidates]."""
    truth = np.concatenate([run.trained_on for run in rehearsals])
    scale = StandardScaler().fit(features(rehearsals, step))
    fitted = LogisticRegression(C=1.0).fit(scale.transform(features(rehearsals, step)), truth)
    odds: Floats = fitted.decision_function(scale.transform(features(runs, step)))
    if step == "told":  # an absent client's records were not trained on: no weight is needed
        odds = np.where(np.repeat([run.present for run in runs], CANDIDATES), odds, -1e9)
    return odds.reshape(len(runs), CANDIDATES)


def area(scores: Floats, truth: NDArray[np.bool_]) -> float:
    """Compute the area under the ROC curve of all candidates of some runs."""
    return auc(scores[truth], scores[~truth])


def rate(scores: Floats, truth: NDArray[np.bool_], share: float = 0.01) -> float:
    """Compute the share of records trained on that score above all but a share of the others."""
    return float((scores[truth] > np.quantile(scores[~truth], 1 - share)).mean())


def judged(rehearsals: list[Told], runs: list[Told]) -> dict[str, Any]:
    """Judge one setting: areas of both steps and of the chain, with 95% bootstrap intervals over runs."""
    truth = np.stack([run.trained_on for run in runs])
    present = np.array([run.present for run in runs])
    odds = {step: weighed(rehearsals, runs, step) for step in ("records alone", "chain", "told")}
    client = np.array([run.client for run in runs])
    told = odds["told"]
    owned = np.stack([run.owned for run in runs])

    def measured(rows: NDArray[np.int64]) -> dict[str, float]:
        here = rows[present[rows]]
        found = {
            "takes part (AUC)": auc(client[here], client[rows[~present[rows]]]),
            "its records, if it takes part (AUC)": area(told[here], owned[here]),
        }
        for step, scores in odds.items():
            found[f"{step} (AUC)"] = area(scores[rows], truth[rows])
            found[f"{step} (TPR at 1% FPR)"] = rate(scores[rows], truth[rows])
        found["chain - records alone (AUC)"] = found["chain (AUC)"] - found["records alone (AUC)"]
        return found

    draw = np.random.default_rng(0)
    inside, outside = np.flatnonzero(present), np.flatnonzero(~present)
    every = []
    for _ in range(300):
        again = (draw.choice(inside, len(inside)), draw.choice(outside, len(outside)))
        every.append(measured(np.concatenate(again)))
    point = measured(np.arange(len(runs)))
    body: dict[str, Any] = {
        name: [value, *np.quantile([one[name] for one in every], [0.025, 0.975]).tolist()]
        for name, value in point.items()
    }
    body["accuracy"] = float(np.mean([run.accuracy for run in runs]))
    return body


def main() -> None:
    """Play all settings, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("results/metric-privacy"))
    parser.add_argument("--runs", type=int, default=200, help="judged; half as many rehearsals")
    given = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    rows = []
    for other, classes in STAND_INS.items():
        for setting in SETTINGS:
            runs = [played(x, y, setting, classes, seed) for seed in range(given.runs * 3 // 2)]
            found = judged(runs[given.runs :], runs[: given.runs])
            rows.append({"in its place": other, "setting": setting, **found})
            print(json.dumps(rows[-1]), flush=True)
    made = provenance("scikit-learn's digits", [0])
    made["command"] = (
        f"python -m benchmarks.inference_chain --into {given.into} --runs {given.runs}"
    )
    made["machine"] = machine("cpu")
    given.into.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"provenance": made, "rounds": ROUNDS, "rows": rows}, indent=1)
    (given.into / "chain.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
