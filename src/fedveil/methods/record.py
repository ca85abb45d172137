"""Record- and person-level privacy in the silos: clipped gradients with noise, inside local training.

Source: Abadi et al. 2016 (arXiv 1607.00133), DP-SGD. Every step of a silo sums its examples' gradients, each clipped to
C, over the whole silo or over a Poisson sample, adds Gaussian noise and divides by a *fixed* number: one that followed
the size of the sample would not be covered by the noise. Everything that comes after is post-processing: momentum, the
server's rule, the model.

With ``unit="person"`` what is clipped is the mean gradient of all images of one person: one person moves a sum by at
most C however many images she has, and Poisson samples draw persons.

Two trust models:

* *No trust* (`RecordDP`). Each silo adds all the noise that its own promise needs, z C a step. Local steps are free,
  and any rule may combine the models.
* *Trusted sum* (`RecordShares`). n silos add shares of z C / sqrt(n - t), so that any n - t of them make up the noise
  of one sum, whichever t drop out, lie about their noise, or pool what they know. t = 1 is the least: a silo can
  subtract its own share. The promise is about the *sum* of one step: whoever receives single shares is trusted, and a
  second local step before the sum would rest on a share alone, so a round is one step of SGD: Adam's first
  step is the sign of the share, and a sum of signs has hardly any of the other silos' noise. (Secure aggregation is
  not built here.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from fedveil.accounting import (
    Guarantee,
    Relation,
    Release,
    Spend,
    SpendFilter,
    StepFilter,
    Trust,
    least_noise,
    model_of,
    nothing,
    step_event,
)
from fedveil.accounting.conditions import LIVENESS, NO_FAILURE, SUM_IS_TRUSTED, at_most, few_silos, whole_noise
from fedveil.accounting.events import FACTOR, Gaussian
from fedveil.aggregation import NoState, WeightedMean
from fedveil.errors import (
    FieldError,
    NoReplyError,
    ReplyError,
    Suggesting,
    require_choice,
    require_count,
    require_delta,
    require_noise,
    require_positive,
    require_rounds,
)
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.facts import (
    Broadcast,
    ClientFacts,
    Combined,
    NoisySteps,
    Protected,
    Refusal,
    Releases,
    ServerFacts,
)
from fedveil.methods.plain import Plain

TERMS = ("clip", "deviation", "denominator", "rate", "images", "silos_per_person", "silos", "tolerated", "lr")


@dataclass(frozen=True, kw_only=True)
class RecordDP(Suggesting):
    """Client side of record-level privacy without trust in anybody.

    Parameters
    ----------
    examples : float
        Examples planned for a silo, a public number and the same for all; needed. `rate` times it is the denominator of
        every step, so that a silo with more of them weighs more.
    unit : {"record", "person"}
        Whose contribution is clipped, and protected.
    people : float
        With ``unit="person"``, in the place of `examples`: persons planned for a silo.
    records_per_person : int
        With ``unit="person"``, needed: the most examples of one person that are used, the first of hers; a step costs
        time for so many of each.
    silos_per_person : int
        The most silos at which one person may be; the noise is raised so that the promise holds for her in all.
    clip : float
        C, the longest gradient of one example, or of one person.
    noise_multiplier : float, optional
        z: the noise on a step's sum has deviation z * C.
    epsilon, delta : float, optional
        Target of the total over `rounds` instead: z is the least noise that meets it.
    rounds : int, optional
        Rounds planned; needed with `epsilon`. A broadcast beyond them is declined.
    steps : int
        Noisy steps of a silo in a round.
    rate : float
        Poisson sampling rate of a step: each example takes part with this probability; 1 is the full batch.
    relation : {"zero-out", "add/remove", "replace-one"}
        Which silos are neighbours. Under ``"add/remove"`` a silo's size is private, and nothing depends on it; it is
        public under the others.
    most : int, optional
        Under ``"add/remove"``, the most examples (persons) that a silo may have, a condition of the promise; a full
        batch has so many places, and costs so much. Twice what is planned by default.

    Raises
    ------
    FieldError
        For a value out of range, both or neither of `noise_multiplier` and `epsilon`, or an epsilon out of reach.
    """

    examples: float | None = None
    unit: Literal["record", "person"] = "record"
    people: float | None = None
    records_per_person: int | None = None
    silos_per_person: int = 1
    clip: float = 1.0
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    rounds: int | None = None
    steps: int = 1
    rate: float = 1.0
    relation: Relation = "zero-out"
    most: int | None = None

    trust: ClassVar[Trust] = "local"
    needs: ClassVar[frozenset[str]] = frozenset({"noisy_steps"})
    most_models: ClassVar[int | None] = 1
    composed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check all."""
        require_choice("unit", self.unit, ("record", "person"))
        self._check_unit()
        require_positive("clip", self.clip)
        require_count("steps", self.steps)
        require_delta("delta", self.delta)
        require_choice("relation", self.relation, FACTOR)
        if self.rounds is not None:
            require_rounds("rounds", self.rounds)
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise FieldError("noise_multiplier", self.noise_multiplier, "give either it or epsilon")
        if self.epsilon is not None and self.rounds is None:
            raise FieldError("rounds", None, "is needed with epsilon, which is the total over the rounds planned")
        if self.most is not None and self.relation != "add/remove":
            raise FieldError("most", self.most, 'goes with relation = "add/remove": sizes are public under the others')
        if self.most is not None:
            require_count("most", self.most)
        step_event(self.multiplier, self.rate)

    def _check_unit(self) -> None:
        person = {"people": self.people, "records_per_person": self.records_per_person}
        needed = person if self.unit == "person" else {"examples": self.examples}
        for name, value in {**person, "examples": self.examples}.items():
            if name not in needed and value is not None:
                raise FieldError(name, value, f'does not belong to unit = "{self.unit}": give {", ".join(needed)}')
            if name in needed and value is None:
                raise FieldError(name, None, "is needed: a planned, public number, such as the mean over the silos")
        require_positive(self._counted, self._planned)
        if self.unit == "person":
            require_count("records_per_person", self.records_per_person)
        if require_count("silos_per_person", self.silos_per_person) > 1 and self.unit != "person":
            raise FieldError("silos_per_person", self.silos_per_person, 'goes with unit = "person"')
        if self._together > 1 and self.rate < 1:
            accepted = "cannot be above 1 in a sum of sampled steps: set rate to 1, or sum nothing"
            raise FieldError("silos_per_person", self.silos_per_person, accepted)

    @property
    def _counted(self) -> str:
        return "people" if self.unit == "person" else "examples"

    @property
    def _planned(self) -> float:
        return float((self.people if self.unit == "person" else self.examples) or 0.0)

    @property
    def _together(self) -> int:
        """Shares of one sum that one unit may be in: they add up, while separate releases compose."""
        return self.silos_per_person if self.trust == "trusted sum" else 1

    @property
    def _sums(self) -> int:
        """Releases of a whole run."""
        return self.rounds or 0

    @property
    def _counts(self) -> int:
        """Noisy steps of a round that one unit may be in."""
        return self.steps * self.silos_per_person // self._together

    @property
    def multiplier(self) -> float:
        """Noise that the promise counts: its deviation over what one unit can contribute to a sum."""
        if self.noise_multiplier is not None:
            return require_noise("noise_multiplier", self.noise_multiplier) / self._together
        count = self._sums * self._counts
        return least_noise(self.epsilon or 0.0, self.delta, count, rate=self.rate, relation=self.relation)

    @property
    def noisy_steps(self) -> NoisySteps:
        """What the silo's trainer is to do."""
        return NoisySteps(
            steps=self.steps,
            rate=self.rate,
            clip=self.clip,
            deviation=self._added * self.clip,
            denominator=self.rate * self._planned,
            public_size=self.relation != "add/remove",
            summed=self.trust == "trusted sum",
            most=self._most,
            images=self.records_per_person or 0,
        )

    @property
    def _most(self) -> int:
        """The most examples of a silo whose number is private."""
        if self.relation != "add/remove":
            return 0
        return math.ceil(2 * self._planned) if self.most is None else self.most

    @property
    def _added(self) -> float:
        """The noise that one silo adds, in units of C."""
        return self.multiplier * self._together

    def noise_on_mean(self, silos: int) -> float:
        """Deviation of the noise on a step's mean gradient over so many silos; the signal is at most C."""
        return self._added * self.clip / (self.rate * self._planned * math.sqrt(silos))

    def budget(self) -> StepFilter | None:
        """A filter that holds a silo to the steps planned; None without a plan."""
        event = step_event(self.multiplier, self.rate)
        return None if self.rounds is None else StepFilter(event, self._sums * self._counts)

    def within(self, epsilon: float, delta: float) -> StepFilter:
        """A filter that holds a silo to a total."""
        return StepFilter.within(step_event(self.multiplier, self.rate), epsilon, delta, self.relation)

    def init(self) -> NoState:
        """Nothing to remember."""
        return NoState()

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Of a step's mean gradient over the silos, whose length is at most the clip."""
        sigma = self.noise_on_mean(len(scales))
        ratio = sigma * math.sqrt(layout.size) / self.clip
        return {"sigma": sigma, "noise_to_clip": ratio, "signal_to_noise": 1 / ratio}

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """On the steps planned, and on the total."""
        own = None if epsilon is None else self.within(epsilon, delta)
        return [f for f in (self.budget(), own) if f is not None]

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend | Refusal:
        """The cost of a round's steps, which nothing in the broadcast changes."""
        if self.rounds is not None and broadcast.public.round > self.rounds:
            return Refusal(f"round {broadcast.public.round} lies beyond the {self.rounds} rounds planned")
        return self._spend()

    def protect(self, releases: Releases, facts: ClientFacts, state: NoState, source: Source) -> Protected:
        """Pass on a model that was trained with this method's noise; everything else stays on the client."""
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        if facts.noised is None or replace(facts.noised, lr=0.0) != self.noisy_steps:
            accepted = (
                "the model was not trained with this method's noise: train it with fedveil.learning.PrivateTrainer"
            )
            raise FieldError("noised", facts.noised, accepted)
        return Protected((Release("model", model), *self._terms(facts.noised)), self._spend(), state)

    def require_terms(self, releases: Releases) -> None:
        """Admit any reply: a silo's noise is its own affair."""

    def _terms(self, noised: NoisySteps) -> Releases:
        return ()

    def _conditions(self) -> tuple[str, ...]:
        return (*self._sizes(), LIVENESS, NO_FAILURE)

    def _sizes(self) -> tuple[str, ...]:
        sizes = (at_most(self._most, self._counted),) if self._most else ()
        return (few_silos(self.silos_per_person), *sizes) if self.unit == "person" else sizes

    def _spend(self) -> Spend:
        event, added = step_event(self.multiplier, self.rate), self._added * self.clip
        full = isinstance(event, Gaussian)
        guarantee = Guarantee(
            unit=self.unit,
            relation=self.relation,
            trust=self.trust,
            status="conditional",
            scope="round",
            mu=FACTOR[self.relation] * math.sqrt(self._counts) / self.multiplier if full else None,
            events=() if full else ((event, self._counts),),
            public_size=self.relation != "add/remove",
            conditions=self._conditions(),
        )
        return Spend(
            guarantee=guarantee, mechanism="gaussian", scale=(added,), sensitivity=FACTOR[self.relation] * self.clip
        )


@dataclass(frozen=True, kw_only=True)
class RecordShares(RecordDP):
    """Client side of record-level privacy for a trusted sum; see `RecordDP` for the other parameters.

    Parameters
    ----------
    silos : int
        n, the silos of every sum; needed.
    tolerated : int
        t: silos that may drop out, lie about their noise, or pool what they know, all together. Whoever reads the
        result and holds a share counts, so it is at least 1.
    """

    silos: int = 0
    tolerated: int = 1

    trust: ClassVar[Trust] = "trusted sum"

    def __post_init__(self) -> None:
        """Refuse what one sum cannot promise."""
        super().__post_init__()
        if self.steps != 1:
            accepted = (
                "a trusted sum needs every noisy step summed before the next: set it to 1, or use the method 'record'"
            )
            raise FieldError("steps", self.steps, accepted)
        if require_count("silos", self.silos, least=0) < 2:
            raise FieldError("silos", self.silos, "a sum needs at least 2 silos; a single one uses the method 'record'")
        if require_count("tolerated", self.tolerated) >= self.silos:
            raise FieldError("tolerated", self.tolerated, f"must leave one of the {self.silos} silos to add noise")

    @property
    def _added(self) -> float:
        return self.multiplier * self._together / math.sqrt(self.silos - self.tolerated)

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend | Refusal:
        """Decline a sum of another number of silos."""
        if broadcast.public.cohort != self.silos:
            return Refusal(f"shares are sized for {self.silos} silos, the server plans {broadcast.public.cohort}")
        return super().quote(broadcast, state)

    def require_terms(self, releases: Releases) -> None:
        """Refuse a share that was made on other terms than these: it counts as a silo that dropped out.

        Raises
        ------
        ReplyError
            Naming the first term that differs or is missing.
        """
        given = {r.name: float(r.value) for r in releases if r.kind == "metric"}
        for term in self._terms(replace(self.noisy_steps, lr=given.get("lr", 0.0))):
            if given.get(term.name) != float(term.value):
                accepted = f"must be the same in every silo of a sum: {float(term.value):g}"
                raise ReplyError(f"{term.name} = {given.get(term.name)} {accepted}")

    def _terms(self, noised: NoisySteps) -> Releases:
        """What all silos of a sum have to agree on, all of it public."""
        known = {**vars(noised), **vars(self)}
        return tuple(Release("metric", torch.tensor(float(known[k]), dtype=torch.float64), k) for k in TERMS)

    def _conditions(self) -> tuple[str, ...]:
        whole = whole_noise(self.silos, self.tolerated)
        return (SUM_IS_TRUSTED, whole, *self._sizes(), LIVENESS, NO_FAILURE)


@dataclass(frozen=True)
class TrustedSum(Plain):
    """Server side of `RecordShares`: the mean of all shares, and then any optimiser.

    The server leaves out a share that was made on other terms (`RecordShares.require_terms`). Nothing is released if a
    rule is not linear in the shares, or if so many silos are missing that one curious silo more would leave too little
    noise.
    """

    def __post_init__(self) -> None:
        """Refuse rules that read single shares."""
        rule = self.aggregator
        if not isinstance(rule, WeightedMean) or rule.weighting != "uniform":
            accepted = (
                'the promise is about the sum of all shares: use a mean with weighting="uniform", such as FedAvgM'
            )
            raise FieldError("aggregator", type(rule).__name__, accepted)

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: Any, source: Source) -> Combined:
        """Check that the noise is whole, and average the shares."""
        found = [{r.name: float(r.value) for r in releases if r.name in TERMS} for releases in replies]
        alike = max(found, key=found.count)
        replies = [r for r, terms in zip(replies, found, strict=True) if terms == alike]
        if set(alike) != set(TERMS):
            raise ReplyError("shares of one sum name the terms on which they are made")
        silos, tolerated = int(alike["silos"]), int(alike["tolerated"])
        gone = silos - len(replies)
        if gone > tolerated - 1:
            raise NoReplyError(
                f"{gone} of {silos} silos dropped out or have other terms ({', '.join(TERMS)}) than most, and the "
                f"shares tolerate {tolerated} together with one curious silo: nothing is released. Raise tolerated, "
                "or run without that silo"
            )
        return super().combine(replies, facts, state, source)
