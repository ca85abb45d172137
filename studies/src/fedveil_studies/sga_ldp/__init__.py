"""The study of the SGA-LDP paper (Beyat et al. 2025): similarity-guided adaptive local DP among malicious clients.

The measures that it adds: the loss-threshold membership inference of the paper's table IV, and stronger attacks; the
noise that clients added, by its mean power over clients and rounds; and what the cosine with the last global update is
worth.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

import scipy
import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.calibration import cosine
from fedveil.engines import Seen
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.mechanisms import gaussian_sigma
from fedveil.methods import SGALDP
from fedveil_lab.attacks.membership import confidence, loss_of_confidence
from fedveil_lab.attacks.statistics import auc
from fedveil_lab.games.membership import MembershipView
from fedveil_lab.games.shadows import ShadowView
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.prepare import Setup
from fedveil_studies.frame import Curve, Reproduction, Study, Value
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.frame.measure import WholeRun
from fedveil_studies.frame.models import held_out
from fedveil_studies.frame.samples import samples
from fedveil_studies.frame.standard import tested

if TYPE_CHECKING:
    from fedveil_lab.report.plotting import Figure

study = Study.of(__name__)
GROUPS = ("honest", "malicious", "common", "rare")
ATTACKED = 300  # clients, of which the phase diagram tells members
ACCURATE, TOLD, FLIPPED = (
    0.5,
    0.05,
    0.15,
)  # at least, at most, at most: the three that are to hold together
LOSSES = tuple(k / 4 for k in range(41))  # nats


@study.adjust
def on_imagenet(values: dict[str, Any], _scale: ScaleOf, flags: frozenset[str]) -> None:
    """Train the head of EfficientNet-Lite0 on ImageNet's features, under the reading "imagenet"."""
    data = values["data"]
    if "imagenet" not in flags or "patches" not in data or "components" in data:
        return  # tables over the number of parameters are about components of our own features
    del data["patches"]
    values["model"] = {
        "name": "efficientnet_lite0",
        "pixels": 112,
        "train": ["head"],
        "cached": True,
    }


@study.picture("1")
def by_class(reproduction: Reproduction) -> "Figure":
    """Images of the training set by class."""
    return samples(reproduction, "blood")


@study.probe("watch")
class Watch(WholeRun):
    """Probe of the noise in every round, and of the final loss on training and held-out examples."""

    name = "sga-ldp, losses"
    figures: Collection[str] = ("noise power",)
    _model: Tensor | None = None

    def begin(self, setup: Setup) -> None:
        """Store the records to be attacked, before the run."""
        self._setup, self._model = setup, None
        self._clients: Sequence[ClientData] = setup.clients

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the variance of a coordinate's noise, averaged over clients."""
        self._model = seen.models[0]
        scales = [scale[0] for scale in seen.record.client_scales.values() if scale]
        report = seen.record.round.report
        if "sigma" in report:  # section B: of the mean of all clients' noise
            scales = [report["sigma"] * math.sqrt(report["clients"])]
        return {"noise power": mean_or_zero([scale * scale for scale in scales])}

    def concluded(self) -> dict[str, Any]:
        """``membership``: AUC of the loss of the last model; shares of losses up to each of `LOSSES`, of both kinds."""
        if self._model is None:
            return {}
        trained, others = [], []
        for client in self._clients:
            trained.append((client.x, client.y))
            if client.test_x is not None:
                others.append(held_out(client))
        inside, outside = self._losses(trained), self._losses(others)
        concluded: dict[str, Any] = {"membership": auc(-inside, -outside)}
        for name, losses in (("members", inside), ("others", outside)):
            concluded[name] = [float((losses <= most).double().mean()) for most in LOSSES]
        return concluded

    def _losses(self, examples: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the losses of examples under the last model."""
        assert self._model is not None
        learner, pairs = self._setup.learner, zip(*examples, strict=True)
        x, y = map(torch.cat, pairs)
        told = confidence(learner.model, learner.layout, self._model[None], x, y)
        return loss_of_confidence(told)[0]


class SomeMembers(MembershipView):
    """`MembershipView` for the first clients of honest runs only, as it needs every client's model on every record."""

    name = f"membership, the first {ATTACKED} clients"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Keep the releases of the first clients."""
        if self._setup.poisoning is None or not self._setup.poisoning.behaviours:
            super().__call__(seen)
            kept = []
            for sent in self._view.received:  # FedMIA asks for two records of each client
                if sent.partition < ATTACKED and len(self._clients[sent.partition].x) > 1:
                    kept.append(sent)
            self._view.received = kept
        return {}

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Judge the attacks; empty if some clients are malicious."""
        concluded = []
        for judge in judges:
            found: dict[str, Any] = {}
            if judge._globals:
                [found] = super().conclude([judge])
            concluded.append(found)
        return concluded


study.probe("server")(lambda _config: MembershipView())
study.probe("some")(lambda _config: SomeMembers())
study.probe("shadows")(lambda _config: ShadowView())


@study.probe("premise")
class Premise(WholeRun):
    """Reads each client's cosine off the size of its noise, and measures how far the global model moved."""

    name = "premise"
    figures: Collection[str] = ("cosine", "step", "sigma")

    def begin(self, setup: Setup) -> None:
        """Store the budgets, before the run."""
        side = setup.method.client
        if not isinstance(side, SGALDP):
            raise FieldError("privacy.method", setup.config.privacy.method, "must be 'sga-ldp'")
        self._widest = gaussian_sigma(side.epsilon_min, side.delta, side.clip)
        self._least = gaussian_sigma(side.epsilon_max, side.delta, side.clip)

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Mean of max(0, cosine) over the clients; the ends of the budget are so close that sigma is linear in it."""
        scales = [scale[0] for scale in seen.record.client_scales.values() if scale]
        cosine = fmean((self._widest - s) / (self._widest - self._least) for s in scales)
        step = float((seen.models[0] - seen.broadcast.models[0]).norm())
        return {"cosine": cosine, "step": step, "sigma": self._widest}


@study.probe("trust")
class Trust(WholeRun):
    """Probe of clients' cosines with the last global update, and with an update from the server's public data.

    The second is FLTrust's reference, which carries no noise. For releases without noise it is the cosine that
    SGA-LDP's clients would find. Rare clients are the third of the honest ones whose labels are farthest from all
    clients'.
    """

    name = "cosines with two references"
    figures: Collection[str] = tuple(
        f"{kind} {g}" for kind in ("last", "public", "sigma") for g in GROUPS
    )
    _before: Tensor | None = None

    def begin(self, setup: Setup) -> None:
        """Store the public examples and the rare clients, before the run."""
        if setup.dealt.public is None:
            raise FieldError("data.public_examples", 0, "the server's own update needs some")
        config, clients = setup.config, setup.dealt.clients
        self._setup, self._public = setup, setup.dealt.public
        wrong = set[int]()
        if config.malicious is not None:
            wrong.update(config.malicious.who(len(clients), config.seed))
        classes = int(self._public.y.max()) + 1
        by_client = [torch.bincount(client.y, minlength=classes) for client in clients]
        counts = torch.stack(by_client).double()
        apart = (counts / counts.sum(1, keepdim=True) - counts.sum(0) / counts.sum()).abs().sum(1)
        order = torch.argsort(apart, stable=True).tolist()
        honest = [partition for partition in order if partition not in wrong]
        third = len(honest) // 3
        self._groups = dict(
            zip(GROUPS, (honest, sorted(wrong), honest[:third], honest[-third:]), strict=True)
        )

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Means of max(0, cosine), and of the noise's deviation, over the clients of a group."""
        start, scales = seen.broadcast.models[0], seen.record.client_scales
        key = (self._setup.config.seed, seen.broadcast.public.round, len(seen.federation.clients))
        [learned] = seen.federation.learner.learn(start[None], [self._public], [key])
        if isinstance(learned, Exception):
            raise learned
        own, last = learned.trained.model - start, torch.zeros_like(start)
        if self._before is not None:
            last = start - self._before
        self._before = start.clone()
        sent = {}
        for partition, releases in seen.received.items():
            model = model_of(releases)
            if model is not None:
                sent[partition] = model - start
        figures = dict[str, float]()
        for name, group in self._groups.items():
            members = [p for p in group if p in sent]
            for kind, reference in (("last", last), ("public", own)):
                worths = [max(0.0, cosine(sent[p], reference)) for p in members]
                figures[f"{kind} {name}"] = mean_or_zero(worths)
            sigmas = [scales[p][0] for p in members if scales.get(p)]
            figures[f"sigma {name}"] = mean_or_zero(sigmas)
        return figures


def mean_or_zero(values: Sequence[float]) -> float:
    """Return the mean, or 0 of no values."""
    if not values:
        return 0.0
    return fmean(values)


SETTLED = 5  # rounds that are left out before the cosine is averaged


def worth(plain: float, step: float, noise: float, dimension: int) -> float:
    """Compute the expected max(0, cosine) with a reference of length `step` plus noise of length `noise`.

    Without noise the cosine is c (`plain`). With r = step / sqrt(step^2 + noise^2) it is normal with mean r c and
    deviation s = sqrt((1 - r^2) / d). So its positive part has mean r c Phi(r c / s) + s phi(r c / s).
    """
    r = step / math.hypot(step, noise)
    mean, s = r * plain, math.sqrt((1 - r * r) / dimension)
    if s == 0:
        return max(0.0, mean)
    return float(mean * scipy.stats.norm.cdf(mean / s) + s * scipy.stats.norm.pdf(mean / s))


def _noise(outcome: Outcome) -> float:
    """Length of the noise in a global update: sigma sqrt(d / n)."""
    values = outcome.summary.values
    return outcome.series("sigma")[0] * math.sqrt(
        values["dimension"] / int(outcome.cell.config.data.clients)
    )


@study.curve("premise measured")
def measured_worth(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """Mean of max(0, cosine) against the length of the reference's noise."""
    cosines = [settled([outcome], "cosine").value for outcome in outcomes]
    return Curve(list(map(_noise, outcomes)), cosines)


@study.curve("premise expected")
def expected_worth(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """The same by `worth`, from the cosine and the step of the run with the least noise."""
    quiet = min(outcomes, key=_noise)
    plain, step = settled([quiet], "cosine").value, settled([quiet], "step").value
    d = int(quiet.summary.values["dimension"])
    xs = list(map(_noise, outcomes))
    return Curve(xs, [worth(plain, step, x, d) for x in xs])


@study.measure("membership loss")
def membership(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """AUC of minus the loss, for all clients' training examples against all held-out ones."""
    return Value(float(outcomes[0].summary.values["concluded"][Watch.name]["membership"]))


@study.measure("attack")
def attack(outcomes: Sequence[Outcome], name: str, at: str = "") -> Value:
    """AUC of one of `MEMBERSHIPS`, or its true positive rate at a false positive rate."""
    views = outcomes[0].summary.values["concluded"].values()
    view: Mapping[str, Any] = next(
        (v for v in views if name in v["figures"] or name in v["refused"]), {}
    )
    if name in view["refused"]:
        return Value(math.nan)
    if at:
        return Value(float(view["rates"][name].get(at, math.nan)))
    return Value(float(view["figures"][name]))


@study.measure("phase")
def phase(outcomes: Sequence[Outcome], name: str) -> Value:
    """Of a run with all honest, and of others in which some flip, the last without a clip: see the names below."""
    honest, *_ = outcomes
    [view] = honest.summary.values["concluded"].values()
    flips = [float(o.summary.values["malicious"]["success"]) for o in outcomes]
    figures = {
        "accuracy": tested([honest], "accuracy").value,
        "told": max(rates["0.01"] for rates in view["rates"].values()),
        "nobody": flips[0],
        "kept": max(flips[:-1]),
        "worst": max(flips),
    }
    useful = figures["accuracy"] >= ACCURATE and figures["told"] <= TOLD
    figures["all"] = float(useful and figures["kept"] <= FLIPPED)
    figures["three"] = float(useful and figures["worst"] <= FLIPPED)
    return Value(figures[name])


@study.curve("phase")
def over_clients(outcomes: Sequence[Outcome], name: str) -> Curve:
    """`phase` against the number of clients."""
    return Curve([int(outcomes[0].cell.config.data.clients)], [phase(outcomes, name).value])


@study.curve("losses")
def losses(outcomes: Sequence[Outcome], kind: str) -> Curve:
    """Distribution function of the loss, for ``losses members`` or ``losses others``."""
    return Curve(LOSSES, outcomes[0].summary.values["concluded"][Watch.name][kind])


@study.measure("settled")
def settled(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Figure of a probe, ``settled FIGURE``, averaged over all rounds after the first five."""
    return Value(fmean(outcomes[0].series(figure)[SETTLED:]))


@study.measure("noise")
def noise(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Root of the mean power of the noise of one coordinate, over clients and rounds."""
    return Value(math.sqrt(fmean(row["figures"]["noise power"] for row in outcomes[0].rows)))
