"""Record- and person-level privacy: clipped gradients with noise inside each silo's local training.

Source: Abadi et al. 2016 (arXiv 1607.00133), DP-SGD. Every step of a silo sums its examples' gradients, each clipped to
C, over the whole silo or a Poisson sample. It adds Gaussian noise and divides by a *fixed* number, because the noise
would not hide the size of the sample. Momentum, the server's rule and the model are post-processing.

With ``unit="person"`` the mean gradient of all images of one person is clipped. One person then moves a sum by at most
C, however many images she has, and Poisson samples draw persons.

With ``unit="region"`` a gradient has two parts. The gradient of the example with its marked coordinates blanked has no
noise, as everything unmarked is taken as public. The difference that the marked coordinates make is clipped and noised
(proof: `fedveil.learning.regions`).

Three trust models:

* ``sum="none"``. Each silo adds all the noise that its own promise needs, z C a step. Local steps are free, and any
  rule may combine the models.
* ``sum="trusted"``. n silos add noise of deviation z C / sqrt(n - t), so that any n - t of them together add the noise
  of one sum. The other t may drop out, lie about their noise, or pool what they know. t is at least 1, because a silo
  can subtract its own share. The promise is about the *sum* of one step, and the receiver of single shares is trusted.
  A round is one step, because a second local step would have the noise of one share only. It is a step of SGD. Adam's
  first step would be the sign of the share, and a sum of signs keeps hardly any noise of other silos.
* ``sum="secure"``. The same without a trusted receiver. Shares are masked integers (`fedveil.secure`), with noise for m
  - c honest sites of any roster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar

from fedveil.accounting import REGIONS, Spend, SpendFilter, Trust, nothing
from fedveil.aggregation import Aggregator, NoState, require_rule
from fedveil.checks import Blank, Count, Parameters, PlannedUnits, RecordsOfPerson, SumRate
from fedveil.errors import FieldError, ReplyError
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.contract import ClientDefaults
from fedveil.methods.facts import Broadcast, ClientFacts, NoisySteps, Protected, Refusal, Releases
from fedveil.methods.plain import Plain
from fedveil.methods.record_promise import OF_PERSONS, RecordPromise, require_own_sum
from fedveil.methods.replies import figures_of
from fedveil.methods.sums import NoSum, SecureShares, TrustedShares
from fedveil.secure import SumContext

SUMS: dict[str, type[NoSum]] = {"none": NoSum, "trusted": TrustedShares, "secure": SecureShares}


@dataclass(frozen=True, kw_only=True)
class RecordDP(RecordPromise, ClientDefaults):
    """Method for record- and person-level privacy: DP-SGD in each silo.

    `fedveil.methods.RecordPromise` describes the parameters of the promise, such as `epsilon`, `clip`, `sum` and `unit`. The
    parameters below change only models, not the promise.
    Under ``relation="add/remove"`` the default of `most` is twice the planned number of a silo.

    Parameters
    ----------
    aggregator : Aggregator, optional
        Rule of the server, applied to noised models; FedAvg by default.
    examples : float
        Planned number of examples of a silo, public and the same for all silos; required. A step's sum is divided by
        `rate` times this number, so a silo with more examples has more weight.
    people : float
        With ``unit="person"`` or ``"person region"``: planned number of persons of a silo, in place of `examples`.
    blank : float
        With ``unit="region"`` or ``"person region"``: value of a blanked coordinate, as the model takes it; a public
        constant, never a mean of the data.
    records_per_person : int
        With ``unit="person"`` or ``"person region"``, required: most examples used of one person (her first ones). A
        larger number makes steps slower.
    lr : float, optional
        With ``sum="secure"``: learning rate of the server's step; by default that of local training, if the engine
        knows it.
    units : int
        With ``sum="secure"``: public upper limit on a site's number of examples (persons), so that sums do not
        overflow.

    Examples
    --------
    >>> private = fv.RecordDP(examples=40, epsilon=4, delta=1e-5, rounds=5, clip=1.0)
    >>> run = fv.Federation(model=model, clients=clients, method=private, seed=1).run(5)
    >>> run.guarantee.unit, round(run.guarantee.epsilon(1e-5), 3)
    ('record', 4.0)
    >>> fv.RecordDP(
    ...     fv.FedAvgM(), sum="trusted", examples=40, epsilon=4, rounds=5, silos=3
    ... ).promise.trust
    'trusted sum'
    """

    aggregator: Aggregator | None = field(default=None, kw_only=False)
    examples: PlannedUnits | None = None
    people: PlannedUnits | None = None
    records_per_person: RecordsOfPerson | None = None
    blank: Blank = 0.0
    units: Count = 1_000_000
    lr: SumRate | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"noisy_steps"})
    outside_promise: ClassVar[frozenset[str]] = frozenset(
        {"aggregator", "examples", "people", "records_per_person", "blank", "units", "lr"}
    )

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        if self.aggregator is not None:
            require_rule("aggregator", self.aggregator)
        for name in ("units", "lr"):
            if getattr(self, name) != getattr(RecordDP, name):
                require_own_sum(self.sum, name, getattr(self, name))
        if self.blank and self.unit not in REGIONS:
            raise FieldError("blank", self.blank, 'goes with unit = "region" or "person region"')
        self._check_sizes()
        super().__post_init__()
        self._shares.check()

    def _check_sizes(self) -> None:
        sizes = {
            "people": self.people,
            "records_per_person": self.records_per_person,
            "examples": self.examples,
        }
        needed: tuple[str, ...] = ("examples",)
        if self.unit in OF_PERSONS:
            needed = ("people", "records_per_person")
        for name, value in sizes.items():
            if name not in needed and value is not None:
                raise FieldError(
                    name,
                    value,
                    f'does not belong to unit = "{self.unit}": give {", ".join(needed)}',
                )
            if name in needed and value is None:
                raise FieldError(
                    name,
                    None,
                    "it is needed: a planned, public number, such as the mean over the silos",
                )

    @cached_property
    def promise(self) -> RecordPromise:
        """The parameters on which the method's promise depends."""
        own = {field.name: getattr(self, field.name) for field in fields(RecordPromise)}
        own["most"] = self.most_units or None
        return RecordPromise(**own)

    @property
    def trust(self) -> Trust:  # type: ignore[override]
        """Trust model, determined by `sum`."""
        return self.promise.trust

    @cached_property
    def _shares(self) -> NoSum:
        """Implementation of the chosen `sum` over the silos' steps."""
        return SUMS[self.sum](self.promise, self.denominator, self.units)

    @property
    def server(self) -> type[Plain]:
        """Class of the server side for the chosen `sum`."""
        return self._shares.server

    @property
    def planned(self) -> float:
        """Planned number of examples, or persons, of a silo."""
        units = self.people if self.unit in OF_PERSONS else self.examples
        return float(units or 0.0)

    @property
    def denominator(self) -> float:
        """Divisor of a silo's step: rate times the planned number."""
        return self.rate * self.planned

    @property
    def most_units(self) -> int:
        """Most examples (persons) of a silo, if their number is private; 0 if it is public."""
        if self.relation != "add/remove":
            return 0
        return math.ceil(2 * self.planned) if self.most is None else self.most

    @property
    def noisy_steps(self) -> NoisySteps:
        """Noisy steps of the silo's trainer."""
        noisy = NoisySteps(
            steps=self.steps,
            rate=self.rate,
            clip=self.clip,
            deviation=self.deviation,
            denominator=self.denominator,
            public_size=self.relation != "add/remove",
            most=self.most_units,
            images=self.records_per_person or 0,
            by_app=self.loop == "app",
            regions=self.unit in REGIONS,
            blank=self.blank,
        )
        return self._shares.steps(noisy)

    def noise_on_mean(self, silos: int) -> float:
        """Return the deviation of the noise on a step's mean gradient over `silos`; that mean has length at most C."""
        return self.deviation / (self.denominator * math.sqrt(silos))

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Return figures of the noise on a step's mean gradient over the silos."""
        sigma = self.noise_on_mean(len(scales))
        ratio = sigma * math.sqrt(layout.size) / self.clip
        return {"sigma": sigma, "noise_to_clip": ratio, "signal_to_noise": 1 / ratio}

    def spend(self) -> Spend:
        """Return the cost of a round."""
        return self.promise.spend()

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Return filters on the planned steps and on the total."""
        return self.promise.budgets(epsilon, delta)

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend | Refusal:
        """Return the cost of a round's steps; decline a round beyond the plan, or a cohort of another size than the sum's."""
        reason = self._shares.refusal(broadcast.public)
        if reason:
            return Refusal(reason)
        if self.rounds is not None and broadcast.public.round > self.rounds:
            return Refusal(
                f"round {broadcast.public.round} lies beyond the {self.rounds} rounds planned"
            )
        return self.spend()

    def protect(
        self, releases: Releases, facts: ClientFacts, state: NoState, source: Source
    ) -> Protected:
        """Release the model that was trained with this noise, or the silo's share of the sum, and nothing else."""
        leaving = self._shares.leaving(releases, facts, self.noisy_steps)
        return Protected(leaving, self.spend() if leaving else nothing("local"), state)

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext | None:
        """Return the question of a broadcast to the sites of a secure sum; None for other sums."""
        return self._shares.question(broadcast, layout)

    def agreed(self, dimension: int) -> str:
        """Return the terms that all sites of a secure sum have to agree on; "" for other sums."""
        return self._shares.agreed(dimension)

    def require_sites(self, sites: int, field: str) -> None:
        """Refuse a number of clients in a round with which the chosen sum cannot be made."""
        self._shares.require_sites(sites, field)

    def terms(self, noised: NoisySteps) -> Releases:
        """Return the public parameters that all silos of a trusted sum must share; none for other sums."""
        return self._shares.terms(noised)

    def require_terms(self, releases: Releases) -> None:
        """Refuse a share that was made with other parameters; its silo then counts as dropped out.

        Raises
        ------
        ReplyError
            For the first parameter that differs or is missing; the text names it.
        """
        given = figures_of(releases)
        for term in self.terms(replace(self.noisy_steps, lr=given.get("lr", 0.0))):
            stated = given.get(term.name)
            if stated != float(term.value):
                accepted = f"must be the same in every silo of a sum: {float(term.value):g}"
                raise ReplyError(str(FieldError(term.name, stated, accepted)))
