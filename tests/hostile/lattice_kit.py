"""Random policies and runs, and two orders: a policy that is at least as strict, and a run that promises no more.

What a policy names is a list of what it allows (trust, methods, relations, kinds of `total`), and no amount: a run
whose kind it does not name is refused however good it is, as is one for persons at fewer silos than it says. So two
runs are compared that cost the same kinds, and one that costs more in each of them promises no more to anybody.
"""

import math
from dataclasses import dataclass, fields, replace

from fedveil.accounting import Gaussian, Guarantee, Limits, Poisson, Policy, Spend, SumPolicy
from fedveil.accounting.bounds import GDP, PLD

UNITS = ("client", "person", "record")
RELATIONS = ("zero-out", "add/remove", "replace-one")
TRUSTS = ("local", "trusted sum", "secure sum")
PEERS = ["ab" * 32, "cd" * 32, "ef" * 32]
KINDS = ("mu", "record_mu", "record_epsilon", "person_mu", "person_epsilon")


@dataclass(frozen=True)
class Run:
    """A release as a node is asked for it."""

    spend: Spend
    trust: str
    method: str = "m"
    deployable: bool = True


def refused(policy, run, past):
    """Why a policy refuses a run, or None."""
    return policy.refusal(run.method, run.trust, run.deployable, run.spend, past)


def spend(unit, relation, trust, bound, silos=1):
    sizes = None if unit == "client" else relation != "add/remove"
    promise = Guarantee(
        unit=unit,
        relation=relation,
        trust=trust,
        scope="round",
        bound=bound,
        public_size=sizes,
        silos_per_person=silos if unit == "person" else 1,
    )
    return Spend(guarantee=promise, mechanism="gaussian")


def random_bound(random, unit, sampled):
    if unit != "client" and random.random() < sampled:
        rate, z = random.choice([0.01, 0.1, 0.5]), random.choice([0.5, 1.0, 2.0, 4.0])
        return PLD(((Poisson(rate, Gaussian(z)), random.choice([1, 5, 20])),))
    return GDP(random.choice([0.05, 0.2, 0.5, 1.0, 2.0, 5.0]) * random.uniform(0.9, 1.1))


def random_run(random, sampled, relation=None, trust=None):
    unit = random.choice(UNITS)
    relation, trust = relation or random.choice(RELATIONS), trust or random.choice(TRUSTS)
    silos = random.choice([1, 1, 2, 3])
    bound = random_bound(random, unit, sampled if trust == "local" else 0)
    return Run(
        spend(unit, relation, trust, bound, silos),
        trust,
        random.choice(["m", "n"]),
        random.random() < 0.9,
    )


def random_limits(random, kinds):
    return Limits(
        **{
            kind: random.choice([0.3, 1.0, 3.0, 10.0, 30.0]) * random.uniform(0.9, 1.1)
            for kind in kinds
        }
    )


def random_policy(random):
    total = [kind for kind in KINDS if random.random() < 0.85]
    release = [kind for kind in KINDS if random.random() < 0.1]
    limits = random_limits(random, total)
    if random.random() < 0.2:
        limits = replace(limits, participations=random.randint(1, 6))
    own = (
        SumPolicy(peers=PEERS, silos_per_person=random.choice([1, 2]))
        if random.random() < 0.2
        else None
    )
    return Policy(
        trust=tuple(t for t in TRUSTS if random.random() < 0.95) or ("local",),
        methods=None if random.random() < 0.93 else ("m",),
        relations=None if random.random() < 0.93 else tuple(random.sample(RELATIONS, 2)),
        release=random_limits(random, release),
        total=limits,
        sum=own,
        delta=random.choice([1e-5, 1e-6]),
        records_per_person=random.choice([None, 1, 2, 5]),
        silos_per_person=random.choice([1, 1, 1, 1, 2, 3]),
        secure_source=random.random() < 0.8,
    )


def stricter(random, policy):
    """A policy that is at least as strict: fewer names, smaller limits, more silos, records and doubts."""

    def fewer(names, every=None):
        given = names if names is not None else every
        kept = tuple(name for name in given if random.random() < 0.8)
        return kept or given[:1]

    def lower(limits, more=()):
        values = {f.name: getattr(limits, f.name) for f in fields(Limits)}
        for name, value in values.items():
            if name == "participations":
                values[name] = value and random.randint(1, value)
            elif value is not None:
                values[name] = value * random.choice([1.0, 0.9, 0.3])
        added = {
            name: random.uniform(0.3, 9.0)
            for name in more
            if values[name] is None and random.random() < 0.2
        }
        return Limits(**{**values, **added})

    changes = {
        "trust": fewer(policy.trust),
        "methods": policy.methods if random.random() < 0.7 else fewer(policy.methods, ("m", "n")),
        "relations": policy.relations
        if random.random() < 0.7
        else fewer(policy.relations, RELATIONS),
        "release": lower(policy.release, KINDS),
        "total": lower(policy.total),
        "silos_per_person": policy.silos_per_person + random.choice([0, 0, 1, 2]),
        "secure_source": policy.secure_source or random.random() < 0.3,
    }
    if policy.records_per_person is not None:
        changes["records_per_person"] = policy.records_per_person + random.choice([0, 0, 1, 5])
    if policy.sum is not None:
        changes["sum"] = replace(
            policy.sum, silos_per_person=policy.sum.silos_per_person + random.choice([0, 1])
        )
    return replace(policy, **changes)


def weaker(random, run, sampled=0.0):
    """A run of the same kind of promise, or one for a part of its unit, that promises no more to anybody."""
    promise = run.spend.guarantee
    unit, bound, silos = promise.unit, promise.bound, promise.silos_per_person
    if (
        random.random() < 0.4 and unit != "record" and isinstance(bound, GDP)
    ):  # for a part alone, what the whole gave it
        part = random.choice(["person", "record"] if unit == "client" else ["record"])
        bound, unit, silos = promise.of_part(part).bound, part, 1
    if isinstance(bound, GDP):
        bound = GDP(bound.mu * random.choice([1.0, 1.01, 1.5, 4.0]))
    else:
        (event, count), times = bound.events[0], random.choice([1.0, 0.9, 0.5])
        louder = Poisson(
            min(1.0, event.rate * random.choice([1, 1.5])),
            Gaussian(event.event.noise_multiplier * times),
        )
        bound = PLD(((louder, count * random.choice([1, 2])),))
    if (
        random.random() < 2 * sampled
        and unit != "client"
        and isinstance(bound, GDP)
        and bound.mu > 0.3
    ):
        # sampled steps whose curve lies above that of the whole: as dear, and without a mu
        bound = PLD(((Poisson(0.999, Gaussian(0.9 / bound.mu)), 1),))
        if promise.relation == "replace-one":
            bound = (
                PLD(((Poisson(0.999, Gaussian(1.8 / promise.mu)), 1),))
                if unit == promise.unit
                else bound.scaled(0.5)
            )
    silos = random.randint(1, silos) if unit == "person" else 1
    made = spend(unit, promise.relation, promise.trust, bound, silos)
    return Run(made, run.trust, run.method, run.deployable and random.random() < 0.9)


def same_kinds(policy, first, second):
    """Whether a policy names every kind of cost that binds the first for the second, too."""
    unit, other = first.spend.guarantee.unit, second.spend.guarantee.unit
    several = max(policy.silos_per_person, 1 if policy.sum is None else policy.sum.silos_per_person)
    if unit == "person" and first.spend.guarantee.silos_per_person < several:
        return False  # what it says of persons is not so here, whatever it costs
    if unit == other and not isinstance(second.spend.guarantee.bound, PLD):
        return True
    named = {
        kind
        for limits in (policy.release, policy.total)
        for kind in KINDS
        if getattr(limits, kind) is not None
    }
    binds = {"client": set(KINDS), "person": set(KINDS[1:]), "record": set(KINDS[1:3])}
    if policy.records_per_person is not None:
        binds["record"] = set(KINDS[1:])
    own = {
        "client": {"mu"},
        "person": {"person_mu", "person_epsilon"},
        "record": {"record_mu", "record_epsilon"},
    }
    admitted = own[unit] & {kind for kind in KINDS if getattr(policy.total, kind) is not None}
    return bool(admitted) and named & binds[unit] <= binds[other]


def world(random, sampled=0.0):
    """A policy, a run, and what its node has spent, under one relation and trust; `sampled` is a share of steps."""
    relation, trust = random.choice(RELATIONS), random.choice(TRUSTS)
    past = [
        random_run(random, sampled, relation, trust).spend
        for _ in range(random.choice([0, 0, 1, 3]))
    ]
    run = random_run(random, sampled, relation, trust=trust)
    return random_policy(random), past, run


def broken(random, sampled=0.0):
    """What breaks the order in one draw: a sentence, or None."""
    policy, past, run = world(random, sampled)
    strict = stricter(random, policy)
    why = refused(policy, run, past)
    if why is not None and refused(strict, run, past) is None:
        return f"a stricter policy admits what another refuses ({why}): {policy}, {strict}, {run}, {past}"
    less = weaker(random, run, sampled)
    if why is not None and same_kinds(policy, run, less) and refused(policy, less, past) is None:
        return f"a policy refuses a run ({why}) and admits a weaker one: {policy}, {run}, {less}, {past}"
    return None


def outcome(random):
    """Whether a random policy admits a random run: both have to be frequent."""
    policy, past, run = world(random)
    return refused(policy, run, past) is None and math.isfinite(run.spend.guarantee.bound.cost)
