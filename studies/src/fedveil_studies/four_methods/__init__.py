"""All four methods on one federation: what they cost, and what an outsider, another client or the server still learns.

Two adversaries are played in every run. One reads the broadcast models alone (another client, or anybody) and asks
whether a client that it has the data of takes part; candidates that do not are dealt from the set's own test half.
The other is the server: it reads what each client sent, asks which records the client trained on, and rebuilds the
client's mean input from the first dense layer. Under central trust nothing is hidden from it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn import functional as F

from fedveil.engines import Seen, Watched
from fedveil.learning import ClientData
from fedveil_lab.attacks.statistics import auc
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.deal import clients_of
from fedveil_lab.runs.prepare import Setup
from fedveil_studies.frame import Study, Value
from fedveil_studies.frame.measure import WholeRun
from fedveil_studies.frame.models import held_out

study = Study.of(__name__)
OUTSIDE = 26  # candidates that take no part


def alignment(federation: Watched, model: Tensor, move: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """How fast the loss of each example [n] falls along a move [d] of unit length, at a model [d]."""
    module, layout = federation.learner.model, federation.layout

    def losses(vector: Tensor) -> Tensor:
        return F.cross_entropy(
            functional_call(module, layout.unflatten(vector), (x,)), y, reduction="none"
        )

    slope: Tensor = jvp(losses, (model,), (F.normalize(move, dim=0),))[1]
    return -slope


def rebuilt(federation: Watched, move: Tensor) -> Tensor:
    """The input [m] that best explains a move [d] of a first dense layer: its weights' part is bias times input."""
    weight, bias, *_ = federation.layout.unflatten(move).values()
    if weight.dim() != 2:
        weight, bias = bias, weight
    return bias @ weight / bias.square().sum().clamp_min(1e-30)


def of_their_class(scores: Tensor, y: Tensor) -> Tensor:
    """Subtract the mean score of its class from each score [n]."""
    classes = torch.arange(int(y.max()) + 1)
    members = (y == classes[:, None]).to(scores)
    return scores - (members @ scores / members.sum(1).clamp_min(1))[y]


def member_area(scores: Tensor, client: ClientData) -> float:
    """AUC of a client's training examples over those that it holds out, each less the mean of its class in both."""
    level = of_their_class(scores, torch.cat([client.y, held_out(client)[1]]))
    return auc(level[: client.examples], level[client.examples :])


@study.probe("watch")
class AttackedRun(WholeRun):
    """Probe that plays both adversaries; see the module."""

    name = "four-methods"
    figures: Collection[str] = ("noise power",)

    def begin(self, setup: Setup) -> None:
        """Deal out the candidates that take no part; see `fedveil_lab.runs.runner.Judge`."""
        whole, config = setup.dealt.dataset, setup.config
        x, y = held_out(whole)
        spec = config.data.model_copy(update={"clients": OUTSIDE, "holdout": 0.0})
        self._outside = clients_of(
            replace(whole, x=x, y=y, test_x=None, test_y=None), spec, config.seed
        )
        clients: Sequence[ClientData] = setup.clients
        bad = set[int]()
        if setup.poisoning is not None:
            bad.update(setup.poisoning.behaviours)
        self._honest = {}
        for partition, client in enumerate(clients):
            if partition not in bad and client.test_x is not None and len(client.test_x) > 1:
                self._honest[partition] = client
        self._side = setup.method.client
        self._inside: list[Tensor] = []
        self._members: list[tuple[int, Tensor]] = []
        self._recognised: list[float] = []

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Score every candidate by the broadcast models, and every record and client by what the server received."""
        start, federation = seen.broadcast.models[0], seen.federation
        candidates = [*self._honest.values(), *self._outside]
        x = torch.cat([candidate.x for candidate in candidates])
        y = torch.cat([candidate.y for candidate in candidates])
        scores = of_their_class(alignment(federation, start, seen.models[0] - start, x, y), y)
        parts = torch.split(scores, [c.examples for c in candidates])
        self._inside.append(torch.stack([part.mean() for part in parts]))
        moves = {}
        for partition in self._honest:
            release = next((r for r in seen.received.get(partition, ()) if r.kind == "model"), None)
            if release is not None and float((release.value - start).norm()) > 0:
                moves[partition] = F.normalize(release.value - start, dim=0)
        everything = sum(moves.values(), torch.zeros(()))
        for partition, move in moves.items():
            client, others = self._honest[partition], (everything - move) / max(1, len(moves) - 1)
            held_x, held_y = held_out(client)
            x, y = torch.cat([client.x, held_x]), torch.cat([client.y, held_y])
            self._members.append((partition, alignment(federation, start, move - others, x, y)))
        if moves:
            means = torch.stack([self._honest[p].x.flatten(1).mean(0) for p in moves])
            guesses = torch.stack([rebuilt(federation, move) for move in moves.values()])
            alike = F.normalize(guesses, dim=1) @ F.normalize(means, dim=1).T
            right = alike.argmax(1) == torch.arange(len(means))
            self._recognised.append(float(right.double().mean()))
        return {"noise power": self._power(seen)}

    def _power(self, seen: Seen) -> float:
        """Variance of one coordinate of the global model; under local trust of the mean of the clients' noise."""
        if self._side.trust == "central":
            return float(seen.record.round.report.get("sigma", 0.0)) ** 2
        powers = []
        for scale in seen.record.client_scales.values():
            if scale:
                sigma = self._side.noise([scale], seen.federation.layout).get("sigma", 0.0)
                powers.append(sigma**2)
        if not powers:
            return 0.0
        return fmean(powers) / len(powers)

    def concluded(self) -> dict[str, Any]:
        """AUC of client inference and of membership, and the share of clients that were recognised."""
        scores, inside = torch.stack(self._inside).sum(0), len(self._honest)
        by_client: dict[int, Tensor] = {}
        for partition, record_scores in self._members:
            by_client[partition] = by_client.get(partition, torch.zeros(())) + record_scores
        areas = []
        for partition, record_scores in by_client.items():
            client = self._honest[partition]
            if client.examples > 1:
                areas.append(member_area(record_scores, client))
        return {
            "participation": auc(scores[:inside], scores[inside:]),
            "membership": fmean(areas or [math.nan]),
            "recognised": fmean(self._recognised or [math.nan]),
            "clients": inside,
        }


@study.measure("attack")
def attack(outcomes: Sequence[Outcome], figure: str) -> Value:
    """Result of an attack: ``attack participation``, ``attack membership`` (AUC) or ``attack recognised`` (a share)."""
    return Value(float(outcomes[0].summary.values["concluded"][AttackedRun.name][figure]))


@study.measure("model noise")
def model_noise(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Root of the mean power of the noise of one coordinate of the global model, over rounds."""
    return Value(math.sqrt(fmean(row["figures"]["noise power"] for row in outcomes[0].rows)))
