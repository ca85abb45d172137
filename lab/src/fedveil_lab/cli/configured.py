"""`fedveil plan CONFIG` and `fedveil advise CONFIG`: the library's commands ask this module about a configuration."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedveil.cli.numbers import show_choices
from fedveil_lab.cli.shared import say, show

if TYPE_CHECKING:
    from fedveil.accounting import Choice

WHOSE = 'the data say whose each example is, and this promises single examples: unit = "person" promises people'


def planned(config: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the central noise of a configuration and the conditions of its promise; refuse a run that costs more."""
    from math import isclose

    from fedveil.accounting import plan as make
    from fedveil.errors import FieldError
    from fedveil_lab.config import load
    from fedveil_lab.runs.promised import prepared, promised

    spec = load(config)
    server: Any = spec.privacy.build(spec.aggregator).server
    if spec.privacy.method != "global" or server.public_clip is None:
        raise FieldError(
            "privacy.method",
            spec.privacy.method,
            f"fedveil plan knows only 'global'; fedveil advise {config} says what this one promises",
        )
    setup = prepared(spec)
    promise, clients = promised(setup), setup.cohort
    values = {
        "delta": spec.privacy.budget.delta,
        "rounds": spec.rounds,
        "clients": clients,
        "clip": server.public_clip,
        "noise_multiplier": server.noise_multiplier,
        "relation": server.relation,
    }
    plain, mu = make(**values), promise.guarantee.mu
    other = mu is None or not isclose(mu, plain.mu, rel_tol=1e-9) or promise.validation is not None
    if other or not isclose(server.multiplier_for(plain.sigma, clients), server.noise_multiplier):
        accepted = f"noise on the mean of {spec.rounds} rounds is not all of it; fedveil advise {config} says what is"
        raise FieldError("CONFIG", promise.guarantee.describe(spec.privacy.budget.delta), accepted)
    return values, promise.guarantee.conditions


def advised(config: str, target: Mapping[str, Any]) -> None:
    """Print what an experiment's run promises, and rank other ways to its epsilon or to the target."""
    from fedveil.accounting import VACUOUS
    from fedveil_lab.config import load
    from fedveil_lab.report.planning import promise_table
    from fedveil_lab.runs.foreseen import foreseen
    from fedveil_lab.runs.promised import choices, prepared, promised
    from fedveil_lab.runs.region_map import advice_on_regions

    spec = load(config)
    lines = foreseen(spec, target["reach"])
    setup, delta = prepared(spec), target["delta"] or spec.privacy.budget.delta
    promise = promised(setup)
    guarantee = promise.guarantee
    show([promise_table(spec.privacy.method, promise, delta)])
    for line in lines:
        say(line)
    proven = guarantee.proven and not guarantee.by_distance
    if proven:
        own = float(f"{guarantee.epsilon(delta):.6g}")
        for line in advice_on_regions(setup, own):
            say(line)
    else:
        own = None
    epsilon = target["epsilon"] or (own if own is not None and own <= VACUOUS else None)
    if epsilon is None:
        say("--epsilon 4, say, ranks what reaches that total for this federation")
        return
    ranked = choices(setup, promise, epsilon, target["examples"], target["dimension"], delta)
    show_choices(ranked, delta)
    if setup.dealt.public is not None:
        say(beside_public(ranked, spec.model.start == "public"))
    if guarantee.unit == "record" and any(client.person is not None for client in setup.clients):
        say(WHOSE)
    if setup.config.publish.metrics != "off" or setup.config.stopping is not None:
        say(
            "these totals are of the models alone: what [publish] and [stopping] release comes on top"
        )


def beside_public(ranked: "Sequence[Choice]", begun: bool) -> str:
    """Advise on public labelled examples; `begun` says whether training begins with a model of these examples."""
    if all(choice.verdict in ("hopeless", "no promise") for choice in ranked):
        return "nothing above leaves much to learn: take the model of the public examples alone; it protects everybody"
    start = 'begin with the public model, which costs nothing: model.start = "public"; '
    if begun:
        start = ""
    return f"{start}fedveil compare names settings that end below it: in their place take the public model"
