"""Record- and person-level privacy in the silos: clipped gradients with noise, inside local training.

Source: Abadi et al. 2016 (arXiv 1607.00133), DP-SGD. Every step of a silo sums its examples' gradients, each clipped to
C, over the whole silo or over a Poisson sample, adds Gaussian noise and divides by a *fixed* number: one that followed
the size of the sample would not be covered by the noise. Everything that comes after is post-processing: momentum, the
server's rule, the model.

With ``unit="person"`` what is clipped is the mean gradient of all images of one person: one person moves a sum by at
most C however many images she has, and Poisson samples draw persons.

Three trust models:

* ``sum="none"``. Each silo adds all the noise that its own promise needs, z C a step. Local steps are free, and any
  rule may combine the models.
* ``sum="trusted"``. n silos add shares of z C / sqrt(n - t), so that any n - t of them make up the noise of one sum,
  whichever t drop out, lie about their noise, or pool what they know. t = 1 is the least: a silo can subtract its own
  share. The promise is about the *sum* of one step: whoever receives single shares is trusted, and a second local step
  before the sum would rest on a share alone, so a round is one step of SGD: Adam's first step is the sign of the share,
  and a sum of signs has hardly any of the other silos' noise.
* ``sum="secure"``. The same with nobody to be trusted: shares are masked integers (`fedveil.secure`), sized for m - c
  honest sites of any roster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedveil.accounting import Spend, SpendFilter, StepFilter, Trust, nothing, of_round, step_event
from fedveil.accounting.bounds import GDP, PLD, Bound
from fedveil.accounting.events import FACTOR, Gaussian
from fedveil.accounting.guarantee import LIVENESS, NO_FAILURE, at_most, few_silos
from fedveil.aggregation import NoState
from fedveil.errors import ReplyError
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.contract import ClientDefaults
from fedveil.methods.facts import Broadcast, ClientFacts, NoisySteps, Protected, Refusal, Releases
from fedveil.methods.plain import Plain
from fedveil.methods.record_terms import RecordTerms
from fedveil.methods.replies import figures_of
from fedveil.methods.sums import NoSum, SecureShares, TrustedShares
from fedveil.secure import SumContext

SUMS: dict[str, type[NoSum]] = {"none": NoSum, "trusted": TrustedShares, "secure": SecureShares}


@dataclass(frozen=True, kw_only=True)
class RecordDP(RecordTerms, ClientDefaults):
    """Client side of record- and person-level privacy; `RecordTerms` has its parameters.

    Examples
    --------
    >>> side = fv.RecordDP(examples=40, epsilon=4, delta=1e-5, rounds=5, clip=1.0)
    >>> run = fv.Federation(model=model, clients=clients, method=side, seed=1).run(5)
    >>> run.guarantee.unit, round(run.guarantee.epsilon(1e-5), 3)
    ('record', 4.0)
    """

    needs: ClassVar[frozenset[str]] = frozenset({"noisy_steps"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sum.check()

    @property
    def _sum(self) -> NoSum:
        return SUMS[self.sum](self)

    @property
    def trust(self) -> Trust:  # type: ignore[override]
        """Who is trusted follows the sum."""
        return self._sum.trust

    @property
    def server(self) -> type[Plain]:
        """The server side that understands it."""
        return self._sum.server

    @property
    def noisy_steps(self) -> NoisySteps:
        """What the silo's trainer is to do."""
        noisy = NoisySteps(
            steps=self.steps,
            rate=self.rate,
            clip=self.clip,
            deviation=self._added * self.clip,
            denominator=self.denominator,
            public_size=self.relation != "add/remove",
            most=self.most_units,
            images=self.records_per_person or 0,
        )
        return self._sum.steps(noisy)

    @property
    def _added(self) -> float:
        """The noise that one silo adds, in units of C."""
        return self.multiplier * self.together / math.sqrt(self._sum.adding)

    def noise_on_mean(self, silos: int) -> float:
        """Deviation of the noise on a step's mean gradient over so many silos; the signal is at most C."""
        return self._added * self.clip / (self.denominator * math.sqrt(silos))

    def budget(self) -> StepFilter | None:
        """A filter that holds a silo to the steps planned; None without a plan."""
        event = step_event(self.multiplier, self.rate)
        return None if self.rounds is None else StepFilter(event, self.sums * self.counts)

    def within(self, epsilon: float, delta: float) -> StepFilter:
        """A filter that holds a silo to a total."""
        return StepFilter.within(step_event(self.multiplier, self.rate), epsilon, delta, self.relation)

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Figures of the noise on a step's mean gradient over the silos, whose length is at most the clip."""
        sigma = self.noise_on_mean(len(scales))
        ratio = sigma * math.sqrt(layout.size) / self.clip
        return {"sigma": sigma, "noise_to_clip": ratio, "signal_to_noise": 1 / ratio}

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """On the steps planned, and on the total."""
        own = None if epsilon is None else self.within(epsilon, delta)
        return [f for f in (self.budget(), own) if f is not None]

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend | Refusal:
        """The cost of a round's steps, which nothing in the broadcast changes; a sum of other silos is declined."""
        if reason := self._sum.refusal(broadcast.public):
            return Refusal(reason)
        if self.rounds is not None and broadcast.public.round > self.rounds:
            return Refusal(f"round {broadcast.public.round} lies beyond the {self.rounds} rounds planned")
        return self._spend()

    def protect(self, releases: Releases, facts: ClientFacts, state: NoState, source: Source) -> Protected:
        """Pass on what was trained with this method's noise, or its share; everything else stays on the client."""
        leaving = self._sum.leaving(releases, facts, self.noisy_steps)
        return Protected(leaving, self._spend() if leaving else nothing("local"), state)

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext | None:
        """What the sites of a secure sum are asked by a broadcast, in this side's own terms; None of the others."""
        return self._sum.question(broadcast, layout)

    def agreed(self, dimension: int) -> str:
        """What all sites of a secure sum have to agree on; "" of the others."""
        return self._sum.agreed(dimension)

    def require_sites(self, sites: int, field: str) -> None:
        """Refuse a number of clients in a round that makes no sum of this kind."""
        self._sum.require_sites(sites, field)

    def require_terms(self, releases: Releases) -> None:
        """Refuse a share that was made on other terms than these: it counts as a silo that dropped out.

        Raises
        ------
        ReplyError
            Naming the first term that differs or is missing.
        """
        given = figures_of(releases)
        for term in self._sum.terms(replace(self.noisy_steps, lr=given.get("lr", 0.0))):
            if given.get(term.name) != float(term.value):
                accepted = f"must be the same in every silo of a sum: {float(term.value):g}"
                raise ReplyError(f"{term.name} = {given.get(term.name)} {accepted}")

    def _spend(self) -> Spend:
        event, added = step_event(self.multiplier, self.rate), self._added * self.clip
        bound: Bound = PLD(((event, self.counts),))
        if isinstance(event, Gaussian):
            bound = GDP(FACTOR[self.relation] * math.sqrt(self.counts) / self.multiplier)
        sizes = (at_most(self.most_units, self.counted),) if self.most_units else ()
        if self.unit == "person":
            sizes = (few_silos(self.silos_per_person), *sizes)
        promise = of_round(bound, self.trust, self.relation, *self._sum.conditions, *sizes, LIVENESS, NO_FAILURE)
        promise = replace(promise, unit=self.unit, public_size=self.relation != "add/remove")
        promise = replace(promise, silos_per_person=self.silos_per_person)
        moved = FACTOR[self.relation] * self.clip
        return Spend(guarantee=promise, mechanism="gaussian", scale=(added,), sensitivity=moved)
