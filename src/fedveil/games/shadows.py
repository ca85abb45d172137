"""Membership with shadow models: what the scores of `fedveil.attacks.membership` find in the models of one run.

Three targets: the last global model, what each of a few clients sent last, and what it sent in its last rounds (the
mean of the scores). Shadow models of the first begin at the first model and see half of all records in question; those
of the others begin at the broadcast and see half of the client's records and of as many that it held out. They are
trained as clients are, clipped as they clip, and noised as the attacked model was, as far as a Gaussian can be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any, Self

import torch
from torch import Tensor

from fedveil.attacks import ServerView
from fedveil.attacks.membership import (
    MEMBERSHIPS,
    Shadows,
    Signals,
    balanced,
    by_round_and_client,
    signals,
    train_shadows,
)
from fedveil.attacks.membership.registry import Pairs, concluded
from fedveil.attacks.membership.scores import ShadowScore
from fedveil.clipping import clip
from fedveil.engines.probe import Seen
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.mechanisms import keyed_seed
from fedveil.runs.prepare import Setup

MODELS, LAST, CLIENTS = 64, 3, 5  # shadow models of each target; rounds of a trajectory; clients that are attacked


class ShadowView:
    """A probe that keeps the last models and, after the run, says how well each attack with shadow models did."""

    name = "membership by shadow models, trained round by round"
    figures: Collection[str] = ()

    def begin(self, setup: Setup) -> None:
        """Take the records in question; see `fedveil.runs.runner.Judge`."""
        self._setup, self._clients = setup, list[ClientData](setup.arguments["clients"])
        self._view, self._power, self._noise = ServerView(), 0.0, dict[tuple[int, int], Any]()
        self._last, self._signals_of = torch.zeros(()), dict[str, list[tuple[list[Signals], int]]]()

    def load(self, setup: Setup) -> tuple[int, int]:
        """Every release, and what the shadow models are trained on."""
        epochs = setup.config.rounds * setup.config.local.epochs
        seen = MODELS * epochs * sum(c.examples for c in setup.dealt.clients)
        return setup.config.rounds * (len(setup.dealt.clients) + 1), seen

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """One round: its releases, and the size of their noise."""
        self._view(seen)
        self._last, layout, side = seen.models[0], seen.federation.layout, self._setup.method.client
        if side.trust == "central":
            self._power += float(seen.record.round.report.get("sigma", 0.0)) ** 2
            return {}
        number, scales = seen.broadcast.public.round, {p: s for p, s in seen.record.client_scales.items() if s}
        for partition, scale in scales.items():
            sigma = side.noise([scale], layout).get("sigma", 0.0)
            self._power += (sigma / len(scales)) ** 2
            self._noise[number, partition] = sigma if len(scale) == 1 else scale
        return {}

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """What `fedveil.attacks.membership.registry.concluded` says of every score of shadow models."""
        attacks = {name: attack for name, attack in MEMBERSHIPS.items() if isinstance(attack, ShadowScore)}
        return [concluded({name: partial(judge._attacked, a) for name, a in attacks.items()}) for judge in judges]

    def _attacked(self, attack: ShadowScore) -> Pairs:
        if attack.target not in self._signals_of:
            last = {"-update": 1, "-trajectory": LAST}.get(attack.target)
            self._signals_of[attack.target] = self._whole() if last is None else self._sent(last)
        return attack(self._signals_of[attack.target])

    def _whole(self) -> list[tuple[list[Signals], int]]:
        """Of the last global model."""
        x, y = torch.cat([c.x for c in self._clients]), torch.cat([c.y for c in self._clients])
        out_x, out_y = held_out(self._clients)
        asked = ClientData(torch.cat([x, out_x[::2]]), torch.cat([y, out_y[::2]]))
        first, config = self._setup.arguments["initial"], self._setup.config
        start, rounds = first if first.dim() == 1 else first[0], range(1, config.rounds + 1)
        return [([self._signals(self._last, start, asked, out_x, out_y, rounds, sqrt(self._power), None)], len(x))]

    def _sent(self, last: int) -> list[tuple[list[Signals], int]]:
        """Of what the clients with most records sent in their last rounds."""
        method = self._setup.method
        if method.noisy is not None:
            raise FieldError("privacy.method", method.name, "noises every step: shadow updates would have to, too")
        partitions, table = by_round_and_client(self._view.received)
        found = []
        for partition in sorted(partitions, key=lambda p: -self._clients[p].examples)[:CLIENTS]:
            client = self._clients[partition]
            out_x, out_y = held_out([client])
            n = min(client.examples, len(out_x) // 2)
            asked = ClientData(torch.cat([client.x[:n], out_x[:n]]), torch.cat([client.y[:n], out_y[:n]]))
            rounds = []
            for row in table[-last:]:
                sent = row[partitions.index(partition)]
                noise = self._noise.get((sent.round, partition), 0.0)
                bound = method.client_clip if method.client.trust == "local" else None
                given = (asked, out_x[n:], out_y[n:], [sent.round], noise, bound)
                rounds.append(self._signals(sent.model, sent.start, *given))
            found.append((rounds, n))
        return found

    def _signals(
        self,
        attacked: Tensor,
        start: Tensor,
        asked: ClientData,
        out_x: Tensor,
        out_y: Tensor,
        rounds: Sequence[int],
        noise: Any,
        bound: Any,
    ) -> Signals:
        """Train shadow models and ask them and the attacked one."""
        learner, seed = self._setup.learner, self._setup.config.seed
        model, layout = learner.model, learner.layout
        inside = balanced(MODELS, asked.examples, seed)
        vectors = train_shadows(model, layout, learner.local, start, asked, inside, seed, rounds=rounds).vectors
        modules = layout.groups("module")
        deviations = torch.full((layout.size,), noise if isinstance(noise, float) else 0.0, dtype=vectors.dtype)
        if not isinstance(noise, float):  # who noises layer by layer clips so, each to this norm
            bound = dict.fromkeys(modules, bound) if isinstance(bound, float) else bound
            for slices, one in zip(modules.values(), noise, strict=True):
                for part in slices:
                    deviations[part] = one
        if bound is not None:
            vectors = start + clip(vectors - start, bound, layout)
        generator = torch.Generator().manual_seed(keyed_seed("noise of shadow models", seed))
        vectors = vectors + torch.randn(vectors.shape, generator=generator, dtype=vectors.dtype) * deviations
        return signals(model, layout, attacked, Shadows(vectors, inside), asked, ClientData(out_x, out_y))


def held_out(clients: Sequence[ClientData]) -> tuple[Tensor, Tensor]:
    """What clients hold out."""
    pairs = [(c.test_x, c.test_y) for c in clients if c.test_x is not None and c.test_y is not None and len(c.test_x)]
    if not pairs or sum(len(a) for a, _ in pairs) < 2:
        raise FieldError("data.holdout", 0, "non-members are what clients hold out: hold out more")
    return torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs])
