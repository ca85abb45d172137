"""What the study of the group-privacy paper measures.

What clients leaked, counted as the paper does (n / nu a participation), over all clients
that may train, those that never did included; the composed guarantee where a public radius proves one; the validation
clients' loss where the run has settled, and the last models' errors on each of them; how far synthetic hypotheses are
from the users' own lines.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import eq
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fedveil.accounting import EuclideanLaplace, epsilon, mu_of_epsilon
from fedveil.data.leaf import coin
from fedveil.engines import Seen
from fedveil.methods import mean_length
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.prepare import Setup
from fedveil_studies.data.mixture import OPTIMA
from fedveil_studies.frame import Study, Value
from fedveil_studies.frame.measure import WholeRun
from fedveil_studies.frame.models import validated
from fedveil_studies.frame.plots import Curve

study = Study.of(__package__)
CUT, CHOICES = (
    0.3,
    20,
)  # of a loss, about three times the median hospital's; draws of a noised choice


def _participations(outcome: Outcome) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of every client, ascending."""
    counts = outcome.summary.values["participations"]
    return np.repeat(list(map(int, counts)), list(map(int, counts.values())))


def _each(outcome: Outcome) -> float:
    """Leakage of one participation: n / nu, or 0 where there is no noise to count."""
    nu = _multiplier(outcome)
    if not nu:
        return 0.0
    return float(outcome.summary.values["dimension"]) / nu


def _multiplier(outcome: Outcome) -> float:
    """Return nu of a run."""
    return float(outcome.cell.config.privacy.options["noise_multiplier"])


@study.measure("leakage")
def leakage(outcomes: Sequence[Outcome], which: str) -> Value:
    """Leakage over clients: ``leakage median`` or ``leakage max``."""
    [outcome] = outcomes
    made = _participations(outcome)
    times = made.max()
    if which == "median":
        times = np.median(made)
    return Value(_each(outcome) * float(times))


@study.measure("settled")
def settled(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """``settled validation``: mean over the validations after which the run gave up, or the last 30."""
    losses = validation(outcomes, "").y
    return Value(fmean(losses[-30:]))


@study.curve("settled over nu")
def settled_over_noise(outcomes: Sequence[Outcome], argument: str) -> Curve:
    """The same over the noise: the paper's figure 4."""
    losses = [settled([outcome], argument).value for outcome in outcomes]
    return Curve(list(map(_multiplier, outcomes)), losses)


@study.measure("rounds")
def rounds(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Number of rounds."""
    return Value(float(len(outcomes[0].rows)))


@study.curve("share leaked")
def share_leaked(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """Share of clients with a leakage of at most x: the paper's figure 3 as a distribution function."""
    [outcome] = outcomes
    made, each = _participations(outcome), _each(outcome)
    x = np.arange(int(made.max()) + 1)
    return Curve((each * x).tolist(), [float((made <= k).mean()) for k in x])


@study.curve("validation")
def validation(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """Validation loss of every round."""
    rounds, losses = [], []
    for row in outcomes[0].rows:
        if "validation" in row:
            rounds.append(float(row["round"]))
            losses.append(float(row["validation"]))
    return Curve(rounds, losses)


@study.measure("accuracy")
def accuracy(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Accuracy of the last models on the validation clients, averaged over clients."""
    measured = validated(outcomes[0])
    shares = []
    for outputs, client in zip(measured.outputs, measured.clients, strict=True):
        right = outputs.argmax(1) == client.y
        shares.append(float(right.double().mean()))
    return Value(fmean(shares))


@study.measure("own kind")
def own_kind(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """``own kind``: share of validation writers who choose as one hypothesis for each kind, turned or not, has it."""
    measured, options = validated(outcomes[0]), outcomes[0].cell.config.data.options
    seed, share = options["rotation_seed"], options["rotated"]
    turned = [coin(seed, int(client.name)) < share for client in measured.clients]
    right = fmean(map(eq, turned, measured.chosen))
    return Value(max(right, 1 - right))


@study.measure("hospital")
def hospital(outcomes: Sequence[Outcome], which: str) -> Value:
    """``hospital median | worst | small | large``: RMSE of single validation hospitals.

    Their median and 90% quantile, and the medians of the tenth that treats the fewest cases and of that with the most.
    """
    measured = validated(outcomes[0])
    dataset = measured.dataset
    cases = dict(zip(dataset.owners, dataset.attributes["cases"].tolist(), strict=True))
    by_hospital, sizes = [], []
    for outputs, client in zip(measured.outputs, measured.clients, strict=True):
        differences = outputs.reshape(-1) - client.y
        by_hospital.append(float(differences.square().mean().sqrt()))
        sizes.append(cases[client.name])
    errors, order = np.array(by_hospital), np.argsort(sizes, kind="stable")
    tenth = max(1, len(order) // 10)
    values = {
        "median": np.median(errors),
        "worst": np.quantile(errors, 0.9),
        "small": np.median(errors[order[:tenth]]),
        "large": np.median(errors[order[-tenth:]]),
    }
    return Value(float(values[which]))


@study.measure("noisy choice")
def noisy_choice(outcomes: Sequence[Outcome], argument: str) -> Value:
    """``noisy choice EPSILON``: RMSE of validation hospitals that choose their last model by report-noisy-min.

    Losses are cut at `CUT`, so that any two hospitals' differ by at most that, and each of them gets Laplace noise of
    twice that over epsilon: the choice is epsilon-private (local, replace-one) whatever a hospital's data are.
    Mean over `CHOICES` draws; infinite: the model that fits best; 0: any.
    """
    [outcome], epsilon = outcomes, float(argument)
    losses = validated(outcome).losses.numpy()
    generator = np.random.default_rng(outcome.cell.config.seed)
    noised = losses[None]
    if epsilon < math.inf:
        noise = generator.laplace(0, 2 * CUT, (CHOICES, *losses.shape))
        noised = epsilon * losses.clip(max=CUT) + noise
    chosen = noised.argmin(2)
    return Value(float(np.take_along_axis(losses[None], chosen[..., None], 2).mean()))


def _promised(outcome: Outcome, which: str) -> Mapping[str, Any]:
    promise: Mapping[str, Any] = outcome.summary.values["guarantees"][f"{which} client"]
    return promise


@study.measure("epsilon")
def composed(outcomes: Sequence[Outcome], which: str, distance: float | None = None) -> Value:
    """Of the worst or the median client, composed over all rounds, delta as configured.

    Between models a distance apart in every round, by default the public radius; for any two under local DP.
    """
    [outcome] = outcomes
    promised = _promised(outcome, which)
    if "epsilon" in promised:
        return Value(float(promised["epsilon"]))
    if distance is None:
        distance = float(outcome.cell.config.privacy.options["radius"])
    curve = promised["curve"]
    distances, epsilons = np.log(curve["distance"]), np.log(curve["epsilon"])
    return Value(float(np.exp(np.interp(np.log(float(distance)), distances, epsilons))))


@study.curve("epsilon")
def over_distance(outcomes: Sequence[Outcome], which: str) -> Curve:
    """Composed epsilon against the distance that bounds every round."""
    curve = _promised(outcomes[0], which)["curve"]
    return Curve(curve["distance"], curve["epsilon"])


@study.probe("optima")
class Optima(WholeRun):
    """After every round: how far the nearest hypothesis is from each kind's line, and who leaked most of each kind."""

    name = "optima of the mixture"
    figures = ("distance 0", "distance 1", "most 0", "most 1", "apart")

    def begin(self, setup: Setup) -> None:
        """Count anew; see `fedveil_lab.runs.runner.Judge`."""
        self._made = Counter[int]()

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Distances of the models [k, d], and participations."""
        self._made.update(list(seen.received))
        kinds = {p: int(seen.federation.clients[p].name[0]) for p in seen.received}
        theta = torch.zeros(2, seen.models.shape[1])
        theta[:, :2] = torch.tensor(OPTIMA)
        gaps = torch.cdist(seen.models.double(), theta.double())
        sent = {}
        for partition, releases in seen.received.items():
            for release in releases:
                if release.kind == "model":
                    sent[partition] = release.value
        models = torch.stack(list(sent.values())).double()
        nearest = torch.cdist(models, seen.models.double()).argmin(1).tolist()
        best = gaps.argmin(0).tolist()
        right = [best[kinds[p]] == j for p, j in zip(sent, nearest, strict=True)]
        most = [0, 0]
        for partition, client in enumerate(seen.federation.clients):
            kind = int(client.name[0])
            most[kind] = max(most[kind], self._made[partition])
        apart = 0.5
        if len(set(best)) > 1:
            apart = fmean(right)
        nearest_0, nearest_1 = gaps.min(0).values.tolist()
        return {
            "distance 0": nearest_0,
            "distance 1": nearest_1,
            "most 0": float(most[0]),
            "most 1": float(most[1]),
            "apart": apart,
        }


@study.measure("optimum")
def optimum(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``optimum FIGURE``: mean of a figure of `Optima` over the last five rounds."""
    return Value(fmean(outcomes[0].series(figure)[-5:]))


@study.curve("leaked")
def leaked(outcomes: Sequence[Outcome], kind: str) -> Curve:
    """``leaked 0 | 1``: the largest leakage of a client of a kind so far."""
    values = outcomes[0].series(f"most {kind}")
    each, rounds = _each(outcomes[0]), range(1, len(values) + 1)
    return Curve(list(map(float, rounds)), [each * value for value in values])


TARGET, DELTA = 8.0, 1e-5  # composed guarantee of the comparison of noises


@study.change("laplace")
def at_target(values: dict[str, Any]) -> None:
    """Laplace noise that makes every client's total (TARGET, DELTA) for vectors one radius apart in every round."""
    values["privacy"]["noise_multiplier"] = _laplace(values["data"]["features"], values["rounds"])


@study.change("gaussian")
def gaussian_at_target(values: dict[str, Any]) -> None:
    """Gaussian noise of the same total."""
    sigma = math.sqrt(values["rounds"]) / mu_of_epsilon(TARGET, DELTA)  # in radii
    values["privacy"] |= {
        "distribution": "gaussian",
        "noise_multiplier": sigma * mean_length(values["data"]["features"]),
    }


@study.change("silent")
def silent(values: dict[str, Any]) -> None:
    """No noise."""
    values["privacy"] |= {"noise_multiplier": 0.0}


@lru_cache(maxsize=64)
def _laplace(dimension: int, rounds: int) -> float:
    """The least nu, by a secant in logarithms: epsilon is nearly a power of nu."""
    guess = math.sqrt(rounds * dimension) / mu_of_epsilon(TARGET, DELTA)
    tried: list[tuple[float, float]] = []
    for _ in range(6):
        reached = epsilon([(EuclideanLaplace(dimension, dimension / guess), rounds)], DELTA)
        tried.append((math.log(guess), math.log(reached / TARGET)))
        if abs(tried[-1][1]) < 1e-3:
            break
        slope = -1.2
        if len(tried) > 1:
            slope = (tried[-1][1] - tried[-2][1]) / (tried[-1][0] - tried[-2][0])
        guess = math.exp(tried[-1][0] - tried[-1][1] / slope)
    return guess


@study.measure("multiplier")
def multiplier(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """``multiplier``: nu of the first run."""
    return Value(_multiplier(outcomes[0]))


@study.measure("noise length")
def noise_length(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """``noise length``: root mean square, of Laplace over Gaussian noise at one guarantee."""
    first, second = map(_multiplier, outcomes)
    n = int(outcomes[0].cell.config.data.options["features"])
    return Value(first * math.sqrt((n + 1) / n) / (second / mean_length(n) * math.sqrt(n)))
