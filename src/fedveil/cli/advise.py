"""``fedveil advise``: what to turn on, and what an existing configuration promises."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil.checks import require_unit
from fedveil.cli.shared import say, show, width
from fedveil.errors import FieldError, nearest
from fedveil.reading import toml_of

if TYPE_CHECKING:
    from fedveil.accounting import Choice


DELTA = 1e-5  # where nobody says one
CHOSEN = ("epsilon", "delta", "examples", "dimension")  # beside an experiment's file
WHOSE = 'the data say whose each example is, and this promises single examples: unit = "person" promises people'


def advise(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A TOML file, run folder or preset; or a file with the tables [advise] and [existing], keys as the "
            "options.",
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients of every round.")] = None,
    examples: Annotated[int | None, typer.Option(help="Training examples of a client.")] = None,
    dimension: Annotated[int | None, typer.Option(help="Trainable parameters.")] = None,
    rounds: Annotated[int | None, typer.Option(help="[promise] Rounds.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="[promise] Target of the total.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="[promise] Of every epsilon; default: the file's, or 1e-5.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="[promise] client, record or person; default: what is known.")
    ] = None,
    records_per_person: Annotated[int | None, typer.Option(help="The most records of one person, as declared.")] = None,
    trust: Annotated[
        str | None, typer.Option(help="[promise] central, local, trusted sum or secure sum; default: all.")
    ] = None,
    relation: Annotated[str | None, typer.Option(help="[promise] Neighbours; default: zero-out.")] = None,
    clip: Annotated[
        float | None, typer.Option(help="[promise] Existing: the clipping norm. Reads a configuration.")
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="[promise] Existing: deviation of its noise.")] = None,
    sensitivity: Annotated[
        float | None, typer.Option(help="[promise] Existing: what sigma is for, if not the clip.")
    ] = None,
) -> None:
    """Say what is possible and what is hopeless for a federation, or what an existing configuration really promises.

    What is promised follows from the options marked [promise]; the others change what can be learned.
    """
    from fedveil.accounting import advise as choices
    from fedveil.accounting import reading
    from fedveil.evidence import reading_table

    if unit is not None:
        said, unit = unit, require_unit("--unit", unit, ("client", "record", "person"))
        if unit != said:
            say(f"--unit {said}: taken as {unit}")
    base = {
        "rounds": rounds,
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "unit": unit,
        "trust": trust,
    }
    target = {**base, "clients": clients, "examples": examples, "dimension": dimension}
    target["records_per_person"] = records_per_person
    existing = {**base, "clip": clip, "sigma": sigma, "sensitivity": sensitivity}
    tables = _tables(config)
    if config is not None and not tables.keys() & {"advise", "existing"}:
        _refuse_unused({**target, **existing})
        _experiment(config, target)
        return
    if "existing" in tables or clip is not None:
        options = _called(reading, existing, tables.get("existing", {}))
        show([reading_table(options)])
    if "advise" in tables or clip is None or clients is not None:
        asked = tables.get("advise", {})
        _show(_called(choices, target, asked), asked.get("delta", delta or DELTA))


def _tables(config: str | None) -> dict[str, Any]:
    """What a file holds; nothing of a folder or preset, or of a file that the loader refuses."""
    if config is None or not Path(config).is_file():
        return {}
    try:
        return toml_of(Path(config).read_text(encoding="utf-8"))
    except ValueError:
        return {}


def _refuse_unused(options: Mapping[str, Any]) -> None:
    """Refuse options of which an experiment's own file says what they are."""
    for name, value in options.items():
        if value is not None and name not in CHOSEN:
            accepted = (
                f"is what CONFIG says: change it there, or leave CONFIG out. Beside it go --{', --'.join(CHOSEN)}"
            )
            raise FieldError(f"--{name.replace('_', '-')}", value, accepted)


def _experiment(name: str, target: Mapping[str, Any]) -> None:
    """Say what an experiment's run promises, and rank what else reaches its epsilon or the one asked for."""
    from fedveil.accounting.guarantee import VACUOUS
    from fedveil.config import load
    from fedveil.report.planning import promise_table
    from fedveil.runs.promised import choices, prepared, promised

    config = load(name)
    setup, delta = prepared(config), target["delta"] or config.privacy.budget.delta
    promise = promised(setup)
    guarantee = promise.guarantee
    show([promise_table(config.privacy.method, promise, delta)])
    proven = guarantee.proven and not guarantee.by_distance
    own = float(f"{guarantee.epsilon(delta):.6g}") if proven else None
    epsilon = target["epsilon"] or (own if own is not None and own <= VACUOUS else None)
    if epsilon is None:
        say("--epsilon 4, say, ranks what reaches that total for this federation")
        return
    ranked = choices(setup, promise, epsilon, target["examples"], target["dimension"], delta)
    _show(ranked, delta)
    if setup.dealt.public is not None:
        say(beside_public(ranked, config.model.start == "public"))
    if guarantee.unit == "record" and any(client.person is not None for client in setup.clients):
        say(WHOSE)
    if setup.config.publish.metrics != "off" or setup.config.stopping is not None:
        say("these totals are of the models alone: what [publish] and [stopping] release comes on top")


def beside_public(ranked: "Sequence[Choice]", begun: bool) -> str:
    """What to do where public examples with labels are there; `begun`: whether training begins with their model."""
    if all(choice.verdict in ("hopeless", "no promise") for choice in ranked):
        return "nothing above leaves much to learn: take the model of the public examples alone; it protects everybody"
    start = "" if begun else 'begin with the public model, which costs nothing: model.start = "public"; '
    return f"{start}fedveil compare names settings that end below it: in their place take the public model"


def _show(choices: "tuple[Choice, ...]", delta: float) -> None:
    from fedveil.evidence import advice_tables

    tables = advice_tables(choices, delta, width())
    show(tables, tables[-1].notes)


def _called(function: Callable[..., Any], options: dict[str, Any], table: dict[str, Any]) -> Any:
    """Call with the options given and the file's keys, refusing what the function does not know or still needs."""
    values = {**{k: v for k, v in options.items() if v is not None}, **table}
    accepted = signature(function).parameters
    for key, value in values.items():
        if key not in accepted:
            raise FieldError(key, value, nearest(key, accepted))
    needed = [f"--{name}" for name, p in accepted.items() if p.default is p.empty and name not in values]
    if needed:
        raise FieldError(", ".join(needed), "missing", "needed, as options or as keys of the TOML file")
    return function(**values)
