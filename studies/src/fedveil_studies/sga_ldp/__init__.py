"""The study of the SGA-LDP paper (Beyat et al. 2025): similarity-guided adaptive local DP among malicious clients.

The measures that it adds: the loss-threshold membership inference of the paper's table IV, and stronger attacks; the
noise that clients added, by its mean power over clients and rounds; and what the cosine with the last global update is
worth.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any, Self

import scipy
import torch
from torch import Tensor

from fedveil.attacks.membership import confidence, loss_of_confidence
from fedveil.attacks.statistics import auc
from fedveil.config import Config
from fedveil.engines.probe import Seen
from fedveil.errors import FieldError
from fedveil.games.membership import MembershipView
from fedveil.games.shadows import ShadowView
from fedveil.grid import Outcome
from fedveil.learning import ClientData
from fedveil.mechanisms import gaussian_sigma
from fedveil.methods import SGALDP
from fedveil.runs.prepare import Setup
from fedveil_studies.frame import Curve, Study, Value

study = Study.of(__name__)


@study.probe("watch")
class Watch:
    """Measures the noise of every round, and after the run the loss of training and of held-out examples."""

    name = "sga-ldp"
    figures: Collection[str] = ("noise power",)

    def __init__(self, _config: Config) -> None:
        self._model: Tensor | None = None

    def begin(self, setup: Setup) -> None:
        """Take the records in question; see `fedveil.runs.runner.Judge`."""
        self._setup, self._model = setup, None
        self._clients: Sequence[ClientData] = setup.arguments["clients"]

    def load(self, setup: Setup) -> tuple[int, int]:
        return 1, 0

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Mean over the clients of the variance of a coordinate's noise."""
        self._model = seen.models[0]
        scales = [scale[0] for scale in seen.record.client_scales.values() if scale]
        report = seen.record.round.report
        if "sigma" in report:  # section B: of the mean of all clients' noise
            scales = [report["sigma"] * math.sqrt(report["clients"])]
        return {"noise power": fmean(s * s for s in scales) if scales else 0.0}

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """``membership``: AUC of the loss of the last model."""
        return [judge._concluded() for judge in judges]

    def _concluded(self) -> dict[str, Any]:
        if self._model is None:
            return {}
        learner, held = self._setup.learner, [c for c in self._clients if c.test_x is not None and c.test_y is not None]
        x, y = torch.cat([c.x for c in self._clients]), torch.cat([c.y for c in self._clients])
        other_x = torch.cat([c.test_x for c in held if c.test_x is not None])
        other_y = torch.cat([c.test_y for c in held if c.test_y is not None])
        inside, outside = (
            -loss_of_confidence(confidence(learner.model, learner.layout, self._model[None], a, b))[0]
            for a, b in ((x, y), (other_x, other_y))
        )
        return {"membership": auc(inside, outside)}


study.probe("server")(lambda _config: MembershipView())
study.probe("shadows")(lambda _config: ShadowView())


@study.probe("premise")
class Premise:
    """Reads each client's cosine off the size of its noise, and measures how far the global model moved."""

    name = "premise"
    figures: Collection[str] = ("cosine", "step", "sigma")

    def __init__(self, config: Config) -> None:
        pass

    def begin(self, setup: Setup) -> None:
        """Take the budgets; see `fedveil.runs.runner.Judge`."""
        side = setup.method.client
        if not isinstance(side, SGALDP):
            raise FieldError("privacy.method", setup.config.privacy.method, "must be 'sga-ldp'")
        ends = (gaussian_sigma(e, side.delta, side.clip) for e in (side.epsilon_min, side.epsilon_max))
        self._widest, self._least = ends

    def load(self, setup: Setup) -> tuple[int, int]:
        return 0, 0

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Mean of max(0, cosine) over the clients; the ends of the budget are so close that sigma is linear in it."""
        scales = [scale[0] for scale in seen.record.client_scales.values() if scale]
        cosine = fmean((self._widest - s) / (self._widest - self._least) for s in scales)
        step = float((seen.models[0] - seen.broadcast.models[0]).norm())
        return {"cosine": cosine, "step": step, "sigma": self._widest}

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Nothing: its figures stand in the rounds."""
        return [{} for _ in judges]


SETTLED = 5  # rounds that are left out before the cosine is averaged


def worth(plain: float, step: float, noise: float, dimension: int) -> float:
    """Expected max(0, cosine) with a reference of length `step` to which noise of length `noise` is added.

    Without noise the cosine would be c (`plain`). With r = step / sqrt(step^2 + noise^2) it is normal around r c with
    deviation s = sqrt((1 - r^2) / d), so that its positive part is r c Phi(r c / s) + s phi(r c / s).
    """
    r = step / math.hypot(step, noise)
    mean, s = r * plain, math.sqrt((1 - r * r) / dimension)
    if s == 0:
        return max(0.0, mean)
    return float(mean * scipy.stats.norm.cdf(mean / s) + s * scipy.stats.norm.pdf(mean / s))


def _noise(outcome: Outcome) -> float:
    """Length of the noise of a global update: sigma sqrt(d / n)."""
    values = outcome.summary.values
    return outcome.series("sigma")[0] * math.sqrt(values["dimension"] / outcome.cell.config.data.number)


@study.curve("premise measured")
def measured_worth(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """Mean of max(0, cosine), over the length of the reference's noise."""
    found = [(_noise(o), fmean(o.series("cosine")[SETTLED:])) for o in outcomes]
    return Curve([x for x, _ in found], [y for _, y in found])


@study.curve("premise expected")
def expected_worth(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """The same by `worth`, from the cosine and the step of the run with the least noise."""
    quiet = min(outcomes, key=_noise)
    plain, step = (fmean(quiet.series(name)[SETTLED:]) for name in ("cosine", "step"))
    d = int(quiet.summary.values["dimension"])
    xs = [_noise(o) for o in outcomes]
    return Curve(xs, [worth(plain, step, x, d) for x in xs])


@study.measure("membership loss")
def membership(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """AUC of minus the loss, of all clients' training examples against all that they hold out."""
    return Value(float(outcomes[0].summary.values["concluded"][Watch.name]["membership"]))


@study.measure("attack")
def attack(outcomes: Sequence[Outcome], argument: str) -> Value:
    """``attack NAME``: AUC of one of `MEMBERSHIPS`; ``attack NAME RATE``: true positives at that rate of false ones."""
    name, _, rate = argument.partition(" ")
    views = outcomes[0].summary.values["concluded"].values()
    found = (view for view in views if name in view["figures"] or name in view["refused"])
    view: Mapping[str, Any] = next(found, {})
    if name in view["refused"]:
        return Value(math.nan)
    return Value(float(view["rates"][name].get(rate, math.nan) if rate else view["figures"][name]))


@study.curve("membership of clients")
def membership_of_clients(outcomes: Sequence[Outcome], argument: str) -> Curve:
    """That area above the number of clients."""
    return Curve([float(outcomes[0].cell.config.data.number)], [membership(outcomes, argument).value])


@study.measure("noise")
def noise(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Root of the mean power of the noise of one coordinate, over clients and rounds."""
    return Value(math.sqrt(fmean(row["figures"]["noise power"] for row in outcomes[0].rows)))
