"""Membership attacks with shadow models on the models of one run.

There are three targets. They are the last global model, the last update of each of a few clients, and a client's
updates of the last rounds (mean of the scores). Shadow models of the global model begin at the first model. They train
on half of all records in question, or on all records of half of the persons. Shadow models of updates begin at the
broadcast. They train on half of the client's training records and half of equally many held-out ones. Shadow models are
trained and clipped like clients. Gaussian noise like that of the attacked model is added. If the noise is inside
training, each shadow model is the last model of a whole federation.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedveil.clipping import clip
from fedveil.engines import Evaluation, Execution, Seen
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.mechanisms import ReproducibleSource, keyed_seed
from fedveil_lab.attacks import ServerView
from fedveil_lab.attacks.inversion.knowledge import deviations_of
from fedveil_lab.attacks.membership import (
    MEMBERSHIPS,
    Signals,
    balanced,
    by_round_and_client,
    signals,
    train_shadows,
)
from fedveil_lab.attacks.membership.records import Pairs, concluded, of_people
from fedveil_lab.attacks.membership.scores import PEOPLE, ShadowScore
from fedveil_lab.runs.prepare import Setup

MODELS, LAST, CLIENTS = (
    64,
    3,
    5,
)  # shadow models of each target; rounds of a trajectory; clients that are attacked


class RecordsView:
    """Probe that keeps what the server sees, and judges attacks on single records after the run."""

    name: ClassVar[str]
    figures: Collection[str] = ()
    shadowed: ClassVar[bool]  # whether its attacks need shadow models

    def begin(self, setup: Setup) -> None:
        """Take the records to be attacked; see `fedveil_lab.runs.runner.Judge`."""
        self._setup, self._clients, self._view = setup, list(setup.clients), ServerView()

    def load(self, setup: Setup) -> int:
        """Return the number of parameter vectors that the probe keeps of a run: every release."""
        return setup.config.rounds * (len(setup.dealt.clients) + 1)

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Judge each attack, as `fedveil_lab.attacks.membership.records.concluded` does."""
        own = [name for name in MEMBERSHIPS if shadowed(name) is cls.shadowed]
        conclusions = []
        for judge in judges:
            attacks = {name: partial(judge._attacked, MEMBERSHIPS[name]) for name in own}
            conclusions.append(concluded(attacks))
        return conclusions

    def _attacked(self, attack: Any) -> Pairs | float:
        raise NotImplementedError


def shadowed(name: str) -> bool:
    """Whether an attack needs shadow models."""
    return isinstance(MEMBERSHIPS.get(name), ShadowScore)


class ShadowView(RecordsView):
    """Probe that keeps the last models, and judges each attack with shadow models after the run."""

    name = "membership by shadow models, trained round by round"
    shadowed = True

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        self._power, self._noise = 0.0, dict[tuple[int, int], Any]()
        self._last, self._signals_of = torch.zeros(()), dict[str, list[tuple[list[Signals], int]]]()

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Keep one round's releases, and the size of their noise."""
        self._view(seen)
        self._last, layout, side = seen.models[0], seen.federation.layout, self._setup.method.client
        if side.trust == "central":
            self._power += float(seen.record.round.report.get("sigma", 0.0)) ** 2
            return {}
        number = seen.broadcast.public.round
        scales = {p: scale for p, scale in seen.record.client_scales.items() if scale}
        for partition, scale in scales.items():
            sigma = side.noise([scale], layout).get("sigma", 0.0)
            self._power += (sigma / len(scales)) ** 2
            self._noise[number, partition] = sigma
            if len(scale) > 1:
                layers = layout.groups("module")
                self._noise[number, partition] = dict(zip(layers, scale, strict=True))
        return {}

    def _attacked(self, attack: ShadowScore) -> Pairs:
        if attack.target not in self._signals_of:
            last = {"-update": 1, "-trajectory": LAST}.get(attack.target)
            if last is None:
                self._signals_of[attack.target] = self._whole(attack.target == PEOPLE)
            else:
                self._signals_of[attack.target] = self._sent(last)
        pairs = attack(self._signals_of[attack.target])
        if attack.target != PEOPLE:
            return pairs
        by_person = []
        for members, others in pairs:
            who, elsewhere = self._who[: len(members)], self._who[len(members) :]
            by_person.append((of_people(members, who), of_people(others, elsewhere)))
        return by_person

    def _whole(self, people: bool) -> list[tuple[list[Signals], int]]:
        """Compute signals of the last global model."""
        held_out(self._clients)
        inside, place = _together(self._clients)
        outside, away = _together([_away(client) for client in self._clients])
        asked = torch.arange(outside.examples) % 2 == 0
        others = torch.ones_like(asked)
        if people:
            if inside.person is None or outside.person is None:
                raise FieldError("data.person", None, "clients do not say whose their records are")
            even = torch.unique(outside.person, return_inverse=True)[1] % 2 == 0
            gone = ~torch.isin(outside.person, inside.person)
            asked, others = gone & even, gone & ~even
        known, population = _together([inside, _some(outside, asked)])[0], _some(outside, others)
        if people and known.person is not None:
            self._who = known.person
        first, config = self._setup.starts, self._setup.config
        start, rounds = first[0], range(1, config.rounds + 1)
        given = (self._last, start, known, population, rounds, sqrt(self._power), None)
        signals = self._signals(*given, torch.cat([place, away[asked]]), people)
        return [([signals], inside.examples)]

    def _sent(self, last: int) -> list[tuple[list[Signals], int]]:
        """Compute signals of the last rounds' updates, for the clients with most records."""
        method = self._setup.method
        if method.noisy is not None:
            raise FieldError(
                "privacy.method",
                method.name,
                "noises every step: shadow updates would have to, too",
            )
        partitions, table = by_round_and_client(self._view.received)
        rounds_signals = []
        for partition in sorted(partitions, key=lambda p: -self._clients[p].examples)[:CLIENTS]:
            client = self._clients[partition]
            out_x, out_y = held_out([client])
            n = min(client.examples, len(out_x) // 2)
            x, y = torch.cat([client.x[:n], out_x[:n]]), torch.cat([client.y[:n], out_y[:n]])
            asked, bound, rounds = ClientData(x, y), None, []
            if method.client.trust == "local":
                bound = method.client_clip
            for row in table[-last:]:
                sent = row[partitions.index(partition)]
                noise = self._noise.get((sent.round, partition), 0.0)
                given = (asked, ClientData(out_x[n:], out_y[n:]), [sent.round], noise, bound)
                rounds.append(self._signals(sent.model, sent.start, *given))
            rounds_signals.append((rounds, n))
        return rounds_signals

    def _signals(
        self,
        attacked: Tensor,
        start: Tensor,
        asked: ClientData,
        others: ClientData,
        rounds: Sequence[int],
        noise: Any,
        bound: Any,
        places: Tensor | None = None,
        people: bool = False,
    ) -> Signals:
        """Train shadow models, and query them and the attacked model; `places` [N] is the client of each record."""
        learner, seed = self._setup.learner, self._setup.config.seed
        model, layout = learner.model, learner.layout
        if people and asked.person is not None:
            who = torch.unique(asked.person, return_inverse=True)[1]
            inside = balanced(MODELS, int(who.max()) + 1, seed)[:, who]
        else:
            inside = balanced(MODELS, asked.examples, seed)
        if places is not None and self._setup.method.noisy is not None:
            played = [self._played(i, asked, places, mine) for i, mine in enumerate(inside)]
            vectors = torch.stack(played)
        else:
            vectors = train_shadows(
                model, layout, learner.local, start, asked, inside, seed, rounds=rounds
            )
            vectors = self._noised(vectors, start, noise, bound)
        return signals(model, layout, attacked, vectors, inside, asked, others)

    def _played(self, number: int, asked: ClientData, places: Tensor, inside: Tensor) -> Tensor:
        """Run the federation on the records of one shadow model, and return its last model."""
        config = self._setup.config
        clients = [_some(asked, inside & (places == i)) for i in range(len(self._clients))]
        federation = self._setup.made(
            clients=clients,
            evaluation=Evaluation(metrics=self._setup.evaluation.metrics),
            execution=Execution(learner=self._setup.learner, tell=lambda text: None),
            source=ReproducibleSource(keyed_seed("shadow federation", config.seed, number)),
        )
        federation.run(config.rounds)
        return federation.models[0]

    def _noised(self, vectors: Tensor, start: Tensor, noise: Any, bound: Any) -> Tensor:
        """Clip and noise shadow models [m, d] as clients do."""
        layout = self._setup.learner.layout
        if isinstance(noise, dict) and isinstance(bound, float):
            # noised layer by layer, each is clipped to this norm
            bound = dict.fromkeys(noise, bound)
        if bound is not None:
            vectors = start + clip(vectors - start, bound, layout)
        generator = torch.Generator().manual_seed(
            keyed_seed("noise of shadow models", self._setup.config.seed)
        )
        drawn = torch.randn(vectors.shape, generator=generator, dtype=vectors.dtype)
        return vectors + drawn * deviations_of(noise, layout).to(vectors.dtype)


def _together(clients: Sequence[ClientData]) -> tuple[ClientData, Tensor]:
    """Join all training records; also return their persons (if all clients name them) and the client of each record."""
    named = [client.person for client in clients if client.person is not None]
    person = None
    if len(named) == len(clients):
        person = torch.cat(named)
    places = torch.repeat_interleave(torch.tensor([client.examples for client in clients]))
    x, y = torch.cat([client.x for client in clients]), torch.cat([client.y for client in clients])
    return ClientData(x, y, person=person), places


def _away(client: ClientData) -> ClientData:
    """Return the client's held-out records."""
    if client.test_x is None or client.test_y is None:
        return _some(client, torch.zeros(client.examples))
    return ClientData(client.test_x, client.test_y, person=client.test_person)


def _some(data: ClientData, chosen: Tensor) -> ClientData:
    """Return the records for which `chosen` [N] is not 0."""
    rows = chosen.nonzero()[:, 0]
    person = data.person
    if person is not None:
        person = person[rows]
    return ClientData(data.x[rows], data.y[rows], person=person)


def held_out(clients: Sequence[ClientData]) -> tuple[Tensor, Tensor]:
    """Join the clients' held-out records."""
    x, y = list[Tensor](), list[Tensor]()
    for client in clients:
        if client.test_x is not None and client.test_y is not None and len(client.test_x):
            x.append(client.test_x)
            y.append(client.test_y)
    if sum(map(len, x)) < 2:
        raise FieldError("data.holdout", 0, "non-members are what clients hold out: hold out more")
    return torch.cat(x), torch.cat(y)
