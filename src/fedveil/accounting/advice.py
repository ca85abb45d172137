"""What shall I turn on? What is possible for a federation.

Noise is compared with the signal it drowns: the expected length of the noise on a round's mean, over the clipping norm,
which is the longest the mean can be. The federation trains at all below about `1 / ENOUGH` (a rule of thumb, see
`fedveil.accounting.planning`).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fedveil.accounting.events import FACTOR, Relation
from fedveil.accounting.guarantee import (
    Guarantee,
    Trust,
    Unit,
    at_most,
    few_colluding,
    few_silos,
    promise_of_mu,
    whole_noise,
)
from fedveil.accounting.planning import ENOUGH, least_noise
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.gdp import epsilon_of_mu, rounded_up

Verdict = Literal["possible", "hard", "hopeless", "no promise"]

_HEURISTIC = (
    ("metric", "central", "at equal noise it was no more accurate than global DP: results/metric-privacy"),
    ("group", "local", "what its releases leak: results/guarantees"),
    ("fedre", "local", "what its releases leak: results/guarantees"),
    ("sga-ldp", "local", "where clients memorise, a server that compares them recognises members: results/sga-ldp"),
)


_EVIDENCE = {  # accuracy at a total epsilon, beside the same training without privacy
    "trusted sum": "4 silos, blood cells: .916 at 2, .934 without; 10 on digits: .948 at 4, .959 "
    "(results/record-level)",
    "local": "4 silos, blood cells: .908 at 2, .934 without; 10 on digits: .917 at 4, .959 (results/record-level)",
    "secure sum": "as the trusted sum: the model is the same sum's (docs/secure-sum.md)",
    "global": "10 clients on digits: .356 at 4, .959 without (README)",
    "fedre": "printed and sound variants at equal noise: results/guarantees",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing to turn on.

    Attributes
    ----------
    method : str
        Its name in a configuration.
    unit, trust : str
        What is protected, and who is trusted.
    verdict : {"possible", "hard", "hopeless", "no promise"}
        From `noise_to_signal`; heuristics promise nothing.
    noise_to_signal : float, optional
        Expected length of the noise on a round's mean over the clipping norm.
    noise_multiplier : float, optional
        z for the target.
    guarantee : Guarantee, optional
        The total.
    lines : tuple of str
        For the configuration's ``[privacy]``.
    evidence : str
        What was measured, and where that stands.
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
    """Rank what reaches a target, and say what is hopeless.

    Parameters
    ----------
    clients, examples : int
        Clients of every round, and training examples of one.
    dimension : int
        Trainable parameters.
    rounds : int
        Rounds, of one noisy step each at the record level.
    epsilon, delta : float
        Target of the total.
    unit : {"client", "record", "person"}, optional
        What has to be protected; by default clients and records are looked at, and persons where it is said how many
        records one has. A person is protected as such, by a promise for all her records together, and by one for
        clients, which is listed with what it promises her (`Guarantee.of_part`).
    trust : {"central", "local", "trusted sum", "secure sum"}, optional
        The only trust model there is; by default all are looked at.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs of the promises; without trust at the client level it is replace-one in any case.
    tolerated : int
        Silos of a trusted sum that may drop out, lie or collude; of a secure one, that may collude.
    records_per_person : int, optional
        The most records of one person, as declared; a count of the data would be a release.
    people : int, optional
        People of one client, as planned; by default as few as `examples` can be of.
    silos_per_person : int
        The most clients at which one person may be.

    Returns
    -------
    tuple of Choice
        The least noise first; heuristics last.

    Raises
    ------
    FieldError
        For a value out of range, or an epsilon that no noise reaches.
    """
    n, each = require_count("clients", clients), require_count("examples", examples)
    length, rounds = math.sqrt(require_count("dimension", dimension)), require_count("rounds", rounds)
    require_choice("unit", "client" if unit is None else unit, ("client", "record", "person"))
    if unit == "person" and records_per_person is None:
        raise FieldError("records_per_person", None, "it is needed for persons: declare the most records that one has")
    k = require_count("records_per_person", records_per_person or 1)
    people = max(1, each // k) if people is None else require_count("people", people)
    spread = require_count("silos_per_person", silos_per_person)
    require_choice("trust", "local" if trust is None else trust, get_args(Trust))
    twice = least_noise(epsilon, delta, rounds, relation="replace-one")
    silos = _Silos(
        clients=n,
        tolerated=require_count("tolerated", tolerated),
        rounds=rounds,
        relation=relation,
        noise=least_noise(epsilon, delta, rounds, relation=relation),
        length=length,
        target=(f"epsilon = {float(epsilon)}", f"delta = {float(delta)}"),
        silos_per_person=spread,
    )
    promise, z = silos.promise("client", "central", silos.noise), silos.noise
    twofold = promise_of_mu("client", "local", "replace-one", "total", 2 * math.sqrt(rounds) / twice)
    asked = silos.target
    if unit == "person":  # noise for a client is raised until it promises her as much
        promise, z = _for_person(promise, z, spread)
        twofold, twice = _for_person(twofold, twice, spread)
        if spread > 1:
            least = epsilon_of_mu(2 * math.sqrt(rounds) / twice, delta) * (1 - 1e-9)
            asked = (f"epsilon = {least}", f"delta = {float(delta)}")
    options = [
        _choice("global", promise, z, z * length / n, (f"noise_multiplier = {rounded_up(z, 6)}", *silos.under)),
        _choice("fedre", twofold, twice, twice * length / math.sqrt(n), ('scores = "public"', *asked)),
    ]
    planned = (f"examples = {each}",)
    if records_per_person is not None:
        several = (f"silos_per_person = {spread}",) if spread > 1 else ()
        named = ('unit = "person"', f"people = {people}", f"records_per_person = {k}", *several)
        options += silos.choices("person", people, named)
        options += silos.choices("record", each, planned, group=k) if k > 1 else []
    options += silos.choices("record", each, planned)
    fit = [c for c in options if trust in (None, c.trust) and _covers(c, unit)]
    fit.sort(key=lambda c: c.noise_to_signal or 0.0)
    heuristics = [
        Choice(method=name, unit="client", trust=where, verdict="no promise", evidence=seen)  # type: ignore[arg-type]
        for name, where, seen in _HEURISTIC
        if trust in (None, where) and unit in (None, "client")
    ]
    return (*fit, *heuristics)


def _for_person(promise: Guarantee, z: float, silos: int) -> tuple[Guarantee, float]:
    """What noise for clients promises a person at so many, and z: raised until she pays what one client paid."""
    part = promise.of_part("person").of_silos(silos)
    own, hers = promise.mu or 0.0, part.mu or 0.0
    return replace(part, bound=promise.bound), z * hers / own


@dataclass(frozen=True, kw_only=True)
class _Silos:
    """A federation whose clients are asked for noise of their own; see `advise`.

    `noise` is the least multiplier that reaches the target, `length` the expected length of noise of deviation 1, and
    `target` the lines of a configuration that ask for it.
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
    def under(self) -> tuple[str, ...]:
        """The line that names the relation, where it is not the usual one."""
        return () if self.relation == "zero-out" else (f'relation = "{self.relation}"',)

    def promise(self, unit: Unit, trust: Trust, z: float, *conditions: tuple[str, ...]) -> Guarantee:
        """The total over all rounds."""
        mu = FACTOR[self.relation] * math.sqrt(self.rounds) / z
        return promise_of_mu(unit, trust, self.relation, "total", mu, *conditions)

    def choices(self, unit: Unit, count: int, planned: tuple[str, ...], group: int = 1) -> list[Choice]:
        """What protects `group` units of a silo together, of which it has `count`: one choice for each trust.

        `planned` are the lines that say how many a silo is planned to have.
        """
        n, tolerated, z = self.clients, self.tolerated, self.noise * group
        # of a group the epsilon asked for is that of all its units together
        own = self.target if group == 1 else (f"noise_multiplier = {rounded_up(z, 6)}",)
        own, sizes = (*own, f"rounds = {self.rounds}", *planned, *self.under), tuple[str, ...]()
        if self.relation == "add/remove":
            own = (*own, f"most = {2 * count}")
            sizes = (at_most(2 * count, "people" if unit == "person" else "examples"),)
        ways: list[tuple[Trust, float, tuple[str, ...], tuple[str, ...]]] = [("local", n, own, sizes)]
        if n > tolerated:
            shares = ('sum = "trusted"', *own, f"silos = {n}", f"tolerated = {tolerated}")
            ways.append(("trusted sum", n / (n - tolerated), shares, (whole_noise(n, tolerated), *sizes)))
        if n - tolerated >= 2:  # shares are as loud, where nobody drops out
            shares = ('sum = "secure"', *own, f"least_sites = {n}", f"colluding = {tolerated}")
            ways.append(("secure sum", n / (n - tolerated), shares, (few_colluding(tolerated, n), *sizes)))
        person, choices = unit == "person", []
        for trust, spread, lines, more in ways:
            guarantee, loud = self.promise(unit, trust, z, (few_silos(1),) if person else (), more).of_group(group), z
            if person and self.silos_per_person > 1:  # all that she is in together promises what one alone did
                held = guarantee.of_silos(self.silos_per_person)
                loud *= (held.mu or 0.0) / (guarantee.mu or 1.0)
                guarantee = replace(held, bound=guarantee.bound)
            ratio = loud * self.length * math.sqrt(spread) / (n * count)
            choices.append(_choice("record", guarantee, loud, ratio, lines))
        return choices


def _covers(choice: Choice, unit: Unit | None) -> bool:
    """Whether a choice protects what has to be protected."""
    alone = choice.guarantee is None or choice.guarantee.group == 1
    if unit == "person":
        return choice.unit == "person" or not alone
    return alone and unit in (None, choice.unit)


def _choice(method: str, guarantee: Guarantee, z: float, ratio: float, lines: tuple[str, ...]) -> Choice:
    verdict: Verdict = "possible" if ratio <= 1 else "hard" if ratio <= 1 / ENOUGH else "hopeless"
    measured = guarantee.group == 1 and guarantee.unit != "person"
    return Choice(
        method=method,
        unit=guarantee.unit,
        trust=guarantee.trust,
        verdict=verdict,
        noise_to_signal=ratio,
        noise_multiplier=z,
        guarantee=guarantee,
        lines=(f'method = "{method}"', *lines),
        evidence=_EVIDENCE[guarantee.trust if method == "record" else method] if measured else "",
    )
