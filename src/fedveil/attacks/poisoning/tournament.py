"""Every attack against every rule: a defence is as good as its worst attack leaves it.

The worst attack of a rule is chosen on validation data and its figures are those on test data, so that the choice
itself adds no luck. (The habit is that of ByzFL, arXiv 2505.24802.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, nn

from fedveil.aggregation import Aggregator, FedAvg
from fedveil.attacks.poisoning.goal import Goal, Poisoned, measure, with_shares
from fedveil.attacks.poisoning.scaling import goal_of
from fedveil.attacks.poisoning.selection import SelectionProbe, rare_clients
from fedveil.engines.behaviour import Behaviour
from fedveil.engines.local import Federation
from fedveil.errors import FieldError
from fedveil.learning import ClientData, LocalTraining
from fedveil.methods import ClientSide, paired

Examples = tuple[Tensor, Tensor]
Figures = Mapping[str, float]
Attacks = Mapping[str, Callable[[Aggregator], Behaviour]]  # what a malicious client does against a rule

CLEAN = "nobody"  # the attack of runs in which everybody is honest


@dataclass(frozen=True, eq=False, kw_only=True)
class Arena:
    """One federation in which rules and attacks meet.

    Parameters
    ----------
    model : callable
        Builds the first model.
    clients : sequence of ClientData
        All of them; the malicious ones' data too.
    malicious : sequence of int
        Their partitions.
    validation, test : tuple of Tensor
        x [N, ...] and y [N].
    classes : int
        Number of classes.
    rounds : int
        Of each run.
    local : LocalTraining
        What an honest client does.
    public : ClientData, optional
        The server's own data, for FLTrust.
    privacy : callable, optional
        Makes the client side of local privacy, such as static LDP, for each run.
    """

    model: Callable[[], nn.Module]
    clients: Sequence[ClientData]
    malicious: Sequence[int]
    validation: Examples
    test: Examples
    classes: int
    rounds: int = 20
    local: LocalTraining = field(default_factory=LocalTraining)
    public: ClientData | None = None
    privacy: Callable[[], ClientSide] | None = None

    def __post_init__(self) -> None:
        """Refuse an arena without an honest client."""
        if len(set(self.malicious)) >= len(self.clients):
            raise FieldError("malicious", len(self.malicious), f"must leave an honest one of {len(self.clients)}")

    def run(self, rule: Aggregator, behaviour: Behaviour | None, seed: int) -> tuple[Federation, list[Figures]]:
        """One run, and the rule's choices in each of its rounds; without a behaviour all clients are honest."""
        foul = list(self.malicious)
        honest = [p for p in range(len(self.clients)) if p not in foul]
        probe = SelectionProbe(rule, foul if behaviour else (), rare_clients(self.clients, honest, self.classes))
        federation = Federation(
            model=self.model,
            clients=self.clients,
            method=paired(self.privacy(), rule) if self.privacy else rule,
            local=self.local,
            seed=seed,
            public_data=self.public,
            behaviours=dict.fromkeys(foul, behaviour) if behaviour else {},
            probes=[probe],
        )
        records = federation.run(self.rounds).rounds
        return federation, [dict(r.figures) for r in records if r.figures]


@dataclass(frozen=True, kw_only=True)
class Match:
    """One attack against one rule in one run, measured on both parts; `targeted` says that it wants one class."""

    rule: str
    attack: str
    seed: int
    targeted: bool
    validation: Poisoned
    test: Poisoned


def play(arena: Arena, rules: Mapping[str, Aggregator], attacks: Attacks, seeds: Sequence[int]) -> list[Match]:
    """Play every attack, and nobody, against every rule.

    A clean run is measured on every targeted attack's goal, under the attack's name with ``"nobody: "`` before it.

    Raises
    ------
    FieldError
        If a rule bears fewer malicious clients than there are and says so, or a goal has no example.
    """
    matches = []
    for seed in seeds:
        for name, rule in rules.items():
            made = {attack: make(rule) for attack, make in attacks.items()}
            federation, figures = arena.run(rule, None, seed)
            clean = _Measured(federation, arena, figures)
            matches.append(clean.match(name, CLEAN, seed, None))
            for attack, behaviour in made.items():
                if goal_of(behaviour, *arena.test) is not None:
                    matches.append(clean.match(name, f"{CLEAN}: {attack}", seed, behaviour))
                federation, figures = arena.run(rule, behaviour, seed)
                matches.append(_Measured(federation, arena, figures).match(name, attack, seed, behaviour))
    return matches


@dataclass(frozen=True, eq=False)
class _Measured:
    """A finished run, to be measured on goals."""

    federation: Federation
    arena: Arena
    figures: Sequence[Figures]

    def match(self, rule: str, attack: str, seed: int, behaviour: Behaviour | None) -> Match:
        """Both parts, on the goal of a behaviour."""
        parts = (self.arena.validation, self.arena.test)
        goals = [None if behaviour is None else goal_of(behaviour, *part) for part in parts]
        validation, test = (
            with_shares(self._outcome(examples, goal), self.figures)
            for examples, goal in zip(parts, goals, strict=True)
        )
        return Match(
            rule=rule, attack=attack, seed=seed, targeted=goals[1] is not None, validation=validation, test=test
        )

    def _outcome(self, examples: Examples, goal: Goal | None) -> Poisoned:
        made = self.federation
        return measure(made.learner.model, made.layout, made.models[0], *examples, goal)


@dataclass(frozen=True)
class Worst:
    """The worst attack on a rule: its name, and its test figures averaged over seeds."""

    attack: str
    accuracy: float
    success: float
    recall: float


def worst(matches: Sequence[Match], by: str = "accuracy") -> dict[str, Worst]:
    """The worst attack per rule, chosen on validation data, with its figures on test data.

    Parameters
    ----------
    matches : sequence of Match
        As from `play`.
    by : {"accuracy", "success"}
        The attack that leaves the least accuracy, or the targeted one with the highest success rate.
    """
    found = {}
    for rule in dict.fromkeys(m.rule for m in matches):
        names = {m.attack: None for m in matches if m.rule == rule and not m.attack.startswith(CLEAN)}
        if by == "success":
            names = {m.attack: None for m in matches if m.rule == rule and m.attack in names and m.targeted}
        if not names:
            raise FieldError("by", by, "needs a targeted attack among the matches")

        def harm(attack: str, rule: str = rule) -> float:
            of = [m.validation for m in matches if (m.rule, m.attack) == (rule, attack)]
            return float(np.mean([o.success if by == "success" else -o.accuracy for o in of]))

        attack = max(names, key=harm)
        of = [m.test for m in matches if (m.rule, m.attack) == (rule, attack)]
        mean = [float(np.mean([getattr(o, f) for o in of])) for f in ("accuracy", "success", "recall")]
        found[rule] = Worst(attack, *mean)
    return found


@dataclass(frozen=True)
class HeatCell:
    """What the worst attack leaves of a rule at one malicious share and one heterogeneity."""

    rule: str
    share: float
    alpha: float
    worst: Worst | None
    refused: str = ""


def heat_map(
    arena: Callable[[float, float], Arena],
    rules: Callable[[int, int], Mapping[str, Aggregator]],
    attacks: Attacks,
    shares: Sequence[float],
    alphas: Sequence[float],
    seeds: Sequence[int],
) -> list[HeatCell]:
    """Least accuracy under the worst attack, over the malicious share and the heterogeneity.

    Parameters
    ----------
    arena : callable
        ``share, alpha -> Arena`` (Dirichlet alpha; small is uneven).
    rules : callable
        ``clients, malicious -> rules`` that are told how many malicious clients to expect. One that cannot bear them
        refuses, and its cell says why.
    attacks, seeds
        As for `play`.
    shares, alphas : sequence of float
        The two axes.
    """
    cells = []
    for share in shares:
        for alpha in alphas:
            place = arena(share, alpha)
            for name, rule in rules(len(place.clients), len(place.malicious)).items():
                try:
                    found = worst(play(place, {name: rule}, attacks, seeds))[name]
                    cells.append(HeatCell(name, share, alpha, found))
                except FieldError as error:
                    cells.append(HeatCell(name, share, alpha, None, str(error)))
    return cells


def rules_against(malicious: int, n: int, clip: float) -> dict[str, Aggregator]:
    """Every rule of the house, told how many malicious clients of n to expect; those that cannot bear them left out.

    Parameters
    ----------
    malicious, n : int
        f and n.
    clip : float
        Length of an ordinary update: the radius of centred clipping and the bound of norm bounding.
    """
    from fedveil.aggregation import (
        NNM,
        Bucketing,
        Bulyan,
        CentredClipping,
        FedMedian,
        FLTrust,
        GeometricMedian,
        Krum,
        MultiKrum,
        NormBounding,
        TrimmedMean,
    )

    trimmed = TrimmedMean((malicious + 0.5) / n) if 2 * malicious + 1 < n else FedMedian()
    rules: dict[str, Aggregator] = {
        "mean": FedAvg(),
        "median": FedMedian(),
        "trimmed mean": trimmed,
        "krum": Krum(malicious=malicious),
        "multi-krum": MultiKrum(malicious=malicious, selected=n - malicious),
        "bulyan": Bulyan(malicious=malicious),
        "geometric median": GeometricMedian(),
        "centred clipping": CentredClipping(clip),
        "norm bounding": NormBounding(clip),
        "fltrust": FLTrust(),
        "nnm + trimmed mean": NNM(trimmed, malicious=malicious),
        "nnm + krum": NNM(Krum(malicious=malicious), malicious=malicious),
        "nnm + geometric median": NNM(GeometricMedian(), malicious=malicious),
        "buckets + geometric median": Bucketing(GeometricMedian(), size=2),
    }
    bounded = ("mean", "norm bounding")  # they claim to bear nobody
    return {name: rule for name, rule in rules.items() if name in bounded or rule.bears(n) >= malicious}
