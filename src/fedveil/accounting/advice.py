"""Advice: methods that reach a privacy target, and whether a federation can still learn with them.

Noise is compared with signal: the expected length of the noise of all rounds, divided by the largest possible length of
all their means (the clipping norm times the rounds). As a rule of thumb, training works up to a ratio of 1, and
hardly above `1 / ENOUGH` (`fedveil.accounting.planning`). For images the rule is too strict: results/first-settings has
the runs.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from fedveil.accounting.events import FACTOR, Relation
from fedveil.accounting.guarantee import (
    Guarantee,
    Trust,
    Unit,
    collusion_condition,
    dropout_condition,
    promise_of_mu,
    silos_condition,
    size_condition,
)
from fedveil.accounting.planning import judged, least_noise
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.gdp import epsilon_of_mu, rounded_up
from fedveil.units import UNITS

Verdict = Literal["possible", "hard", "hopeless", "no promise"]

_HEURISTIC: tuple[tuple[str, Trust, str], ...] = (
    (
        "metric",
        "central",
        "at equal noise it was no more accurate than global DP: results/metric-privacy",
    ),
    ("group", "local", "what its releases leak: results/guarantees"),
    ("fedre", "local", "what its releases leak: results/guarantees"),
    (
        "sga-ldp",
        "local",
        "where clients memorise, a server that compares them recognises members: results/sga-ldp",
    ),
)


_EVIDENCE = {  # accuracy at a total epsilon, and of the same training without privacy
    "trusted sum": "4 silos, blood cells: .916 at epsilon 2, .934 without; "
    "10 silos of digits: .948 at epsilon 4, .959 without (results/record-level)",
    "local": "4 silos, blood cells: .908 at epsilon 2, .934 without; "
    "10 silos of digits: .917 at epsilon 4, .959 without (results/record-level)",
    "secure sum": "as with a trusted sum: the model is that of the same sum (docs/secure-sum.md)",
    "global": "10 clients on digits: .356 at epsilon 4, .959 without (README)",
    "fedre": "printed and sound variants at equal noise: results/guarantees",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One piece of advice: a method that reaches the target, its settings, and a judgement.

    Attributes
    ----------
    method : str
        Name of the method in a configuration.
    unit, trust : str
        Protected unit and trusted party.
    verdict : {"possible", "hard", "hopeless", "no promise"}
        Judgement by `noise_to_signal`; "no promise" for heuristics.
    noise_to_signal : float, optional
        Expected length of the noise of all rounds, divided by the clipping norm and the number of rounds.
    noise_multiplier : float, optional
        Least z that reaches the target.
    guarantee : Guarantee, optional
        Promise over all rounds.
    lines : tuple of str
        Lines for ``[privacy]`` of the configuration.
    evidence : str
        Measured accuracy, and where it is reported.
    """

    method: str
    unit: Unit
    trust: Trust
    verdict: Verdict
    noise_to_signal: float | None = None
    noise_multiplier: float | None = None
    guarantee: Guarantee | None = None
    lines: tuple[str, ...] = ()
    evidence: str = ""


def advise(
    *,
    clients: int,
    examples: int,
    dimension: int,
    rounds: int,
    epsilon: float,
    delta: float = 1e-5,
    unit: Unit | None = None,
    trust: Trust | None = None,
    relation: Relation = "zero-out",
    tolerated: int = 1,
    records_per_person: int | None = None,
    people: int | None = None,
    silos_per_person: int = 1,
) -> tuple[Choice, ...]:
    """Rank the methods that reach a target, and judge whether training can work with them.

    Parameters
    ----------
    clients, examples : int
        Number of clients in each round, and of training examples of one client.
    dimension : int
        Number of trainable parameters.
    rounds : int
        Number of rounds; at record level each is one noisy step.
    epsilon, delta : float
        Target of the promise over all rounds.
    unit : {"client", "record", "person"}, optional
        Unit to be protected. By default clients and records are tried, and persons if `records_per_person` is given.
        Choices for persons include promises to whole clients, restated for one person of a client
        (`Guarantee.of_part`).
    trust : {"central", "local", "trusted sum", "secure sum"}, optional
        Only trust model to try; by default all are tried.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs of the promises. For whole clients under local trust it is always replace-one.
    tolerated : int
        Number of silos in a trusted sum that may drop out, lie or collude; in a secure sum, that may collude.
    records_per_person : int, optional
        Most records of one person, as declared; a count of the data would be a release.
    people : int, optional
        Planned number of people of one client; by default the fewest people who can have `examples` records.
    silos_per_person : int
        Largest number of clients at which one person may have records.

    Returns
    -------
    tuple of Choice
        Choices in the order of their noise, the least first; heuristics last.

    Raises
    ------
    FieldError
        For a value out of range, or an epsilon that no noise reaches.
    """
    clients, examples = require_count("clients", clients), require_count("examples", examples)
    length, rounds = (
        math.sqrt(require_count("dimension", dimension)),
        require_count("rounds", rounds),
    )
    if unit is not None:
        require_choice("unit", unit, UNITS)
    if unit == "person" and records_per_person is None:
        raise FieldError(
            "records_per_person",
            None,
            "it is needed for persons: declare the most records that one has",
        )
    records = require_count("records_per_person", records_per_person or 1)
    people = max(1, examples // records) if people is None else require_count("people", people)
    require_choice("trust", "local" if trust is None else trust, get_args(Trust))
    silos = _Silos(
        clients=clients,
        tolerated=require_count("tolerated", tolerated),
        rounds=rounds,
        relation=relation,
        noise=least_noise(epsilon, delta, rounds, relation=relation),
        length=length,
        target=(f"epsilon = {float(epsilon)}", f"delta = {float(delta)}"),
        silos_per_person=require_count("silos_per_person", silos_per_person),
    )
    options = _for_clients(silos, epsilon, delta, unit == "person")
    planned = (f"examples = {examples}",)
    if records_per_person is not None:
        named: tuple[str, ...] = (
            'unit = "person"',
            f"people = {people}",
            f"records_per_person = {records}",
        )
        if silos_per_person > 1:
            named = (*named, f"silos_per_person = {silos_per_person}")
        options += silos.choices("person", people, named)
        if records > 1:
            options += silos.choices("record", examples, planned, group=records)
    options += silos.choices("record", examples, planned)
    fit = [choice for choice in options if trust in (None, choice.trust) and _covers(choice, unit)]
    fit.sort(key=_noise_to_signal)
    return (*fit, *_heuristics(trust, unit))


def _for_clients(
    silos: "_Silos",
    epsilon: float,
    delta: float,
    for_person: bool,
) -> list[Choice]:
    """List the choices that protect whole clients; with `for_person` the target is that of one person of a client."""
    n, rounds, spread, target = silos.clients, silos.rounds, silos.silos_per_person, silos.target
    z = silos.noise
    local_z = least_noise(epsilon, delta, rounds, relation="replace-one")
    promise = silos.promise("client", "central", z)
    local = promise_of_mu(
        "client",
        "local",
        "replace-one",
        "total",
        2 * math.sqrt(rounds) / local_z,
    )
    if for_person:
        promise, z = _for_person(promise, z, spread)
        local, local_z = _for_person(local, local_z, spread)
        if spread > 1:
            least = epsilon_of_mu(2 * math.sqrt(rounds) / local_z, delta) * (1 - 1e-9)
            target = (f"epsilon = {least}", f"delta = {float(delta)}")
    asked = (*silos.target, f"rounds = {rounds}")
    if for_person:  # a configuration's epsilon is for the client
        asked = (f"noise_multiplier = {rounded_up(z, 6)}",)
    noise = (*asked, *silos.relation_line)
    return [
        _choice("global", promise, z, z * silos.length / n / math.sqrt(rounds), noise),
        _choice(
            "fedre",
            local,
            local_z,
            local_z * silos.length / math.sqrt(n * rounds),
            ('scores = "public"', *target),
        ),
    ]


def _heuristics(trust: Trust | None, unit: Unit | None) -> list[Choice]:
    """List the heuristics, which exist only for clients."""
    choices = []
    for name, its_trust, evidence in _HEURISTIC:
        if trust in (None, its_trust) and unit in (None, "client"):
            choices.append(
                Choice(
                    method=name,
                    unit="client",
                    trust=its_trust,
                    verdict="no promise",
                    evidence=evidence,
                )
            )
    return choices


def _noise_to_signal(choice: Choice) -> float:
    return choice.noise_to_signal or 0.0


def _for_person(promise: Guarantee, z: float, silos: int) -> tuple[Guarantee, float]:
    """Raise the noise on whole clients, so that a person at up to `silos` clients gets a client's promise.

    Returns
    -------
    (Guarantee, float)
        Promise to that person, and the raised z.
    """
    part = promise.of_part("person").of_silos(silos)
    client_mu, person_mu = promise.mu or 0.0, part.mu or 0.0
    return replace(part, bound=promise.bound), z * person_mu / client_mu


@dataclass(frozen=True, kw_only=True)
class _Silos:
    """Federation of silos that each add noise, with the noise for a target.

    Attributes
    ----------
    noise : float
        Least noise multiplier that reaches the target.
    length : float
        Expected length of noise of deviation 1.
    target : tuple of str
        Lines of a configuration that ask for the target.
    """

    clients: int
    tolerated: int
    rounds: int
    relation: Relation
    noise: float
    length: float
    target: tuple[str, ...]
    silos_per_person: int = 1

    @property
    def relation_line(self) -> tuple[str, ...]:
        """Line of a configuration with the relation; none for the default."""
        return () if self.relation == "zero-out" else (f'relation = "{self.relation}"',)

    def promise(
        self,
        unit: Unit,
        trust: Trust,
        z: float,
        *conditions: tuple[str, ...],
    ) -> Guarantee:
        """Return the promise of the total over all rounds."""
        mu = FACTOR[self.relation] * math.sqrt(self.rounds) / z
        return promise_of_mu(unit, trust, self.relation, "total", mu, *conditions)

    def choices(
        self,
        unit: Unit,
        count: int,
        planned: tuple[str, ...],
        group: int = 1,
    ) -> list[Choice]:
        """List the choices that protect `group` units of a silo together, one for each trust model.

        Parameters
        ----------
        unit : {"record", "person"}
            Protected unit.
        count : int
            Units of one silo.
        planned : tuple of str
            Lines of a configuration that state the planned number of units.
        group : int
            Units that are protected together.
        """
        n, tolerated = self.clients, self.tolerated
        asked = self.target
        if (
            group > 1
        ):  # epsilon is for the whole group, but a configuration states epsilon for one unit
            asked = (f"noise_multiplier = {rounded_up(self.noise * group, 6)}",)
        lines = (*asked, f"rounds = {self.rounds}", *planned, *self.relation_line)
        sizes: tuple[str, ...] = ()
        if self.relation == "add/remove":
            lines = (*lines, f"most = {2 * count}")
            sizes = (size_condition(2 * count, "people" if unit == "person" else "examples"),)
        made = partial(self._choice, unit, count, group)
        choices = [made("local", n, lines, sizes)]
        if n > tolerated:
            trusted = ('sum = "trusted"', *lines, f"silos = {n}", f"tolerated = {tolerated}")
            conditions = (dropout_condition(n, tolerated), *sizes)
            choices.append(made("trusted sum", n / (n - tolerated), trusted, conditions))
        if n - tolerated >= 2:  # without dropouts a share has the noise of a trusted sum's share
            secure = ('sum = "secure"', *lines, f"least_sites = {n}", f"colluding = {tolerated}")
            conditions = (collusion_condition(tolerated, n), *sizes)
            choices.append(made("secure sum", n / (n - tolerated), secure, conditions))
        return choices

    def _choice(
        self,
        unit: Unit,
        count: int,
        group: int,
        trust: Trust,
        spread: float,
        lines: tuple[str, ...],
        conditions: tuple[str, ...],
    ) -> Choice:
        """Make the choice for one trust model; `spread` is the variance of all silos' noise over that of the target."""
        z = self.noise * group
        first = (silos_condition(1),) if unit == "person" else ()
        guarantee = self.promise(unit, trust, z, first, conditions).of_group(group)
        if (
            unit == "person" and self.silos_per_person > 1
        ):  # all her silos together promise her what one silo promised
            whole = guarantee.of_silos(self.silos_per_person)
            z *= (whole.mu or 0.0) / (guarantee.mu or 1.0)
            guarantee = replace(whole, bound=guarantee.bound)
        ratio = z * self.length * math.sqrt(spread / self.rounds) / (self.clients * count)
        return _choice("record", guarantee, z, ratio, lines)


def _covers(choice: Choice, unit: Unit | None) -> bool:
    """Whether a choice protects the unit."""
    alone = choice.guarantee is None or choice.guarantee.group == 1
    if unit == "person":
        return choice.unit == "person" or not alone
    return alone and unit in (None, choice.unit)


def _choice(
    method: str,
    guarantee: Guarantee,
    z: float,
    ratio: float,
    lines: tuple[str, ...],
) -> Choice:
    evidence = ""
    if guarantee.group == 1 and guarantee.unit != "person":
        evidence = _EVIDENCE[guarantee.trust if method == "record" else method]
    return Choice(
        method=method,
        unit=guarantee.unit,
        trust=guarantee.trust,
        verdict=judged(ratio),
        noise_to_signal=ratio,
        noise_multiplier=z,
        guarantee=guarantee,
        lines=(f'method = "{method}"', *lines),
        evidence=evidence,
    )
