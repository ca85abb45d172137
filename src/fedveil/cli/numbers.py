"""Commands `fedveil plan` and `fedveil advise` from numbers; a configuration is passed on to the package that reads it."""

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedveil.checks import require_unit
from fedveil.cli.pieces import Command, argument
from fedveil.cli.shared import say, show
from fedveil.errors import FedVeilError, FieldError, nearest
from fedveil.reading import toml_of
from fedveil.registry import Registry
from fedveil.units import UNITS

if TYPE_CHECKING:
    from fedveil.accounting import Choice

DELTA = 1e-5  # default
CHOSEN = (
    "epsilon",
    "delta",
    "examples",
    "dimension",
    "reach",
)  # options that may be given beside an experiment's file
RELATIONS = ("zero-out", "add/remove", "replace-one")


def read_by(command: str, config: str) -> Callable[..., Any]:
    """Find the function of another package that runs a command on a configuration file.

    It is an entry point of the group `fedveil.configurations`, with the command's name.

    Raises
    ------
    FedVeilError
        If no installed package reads configurations.
    """
    readers = Registry[Callable[..., Any]]("command", {}, group="fedveil.configurations")
    if command not in readers:
        needed = "pip install fedveil-lab (in a checkout: pip install ./lab)"
        raise FedVeilError(
            f"CONFIG = {config!r}: the package that reads configurations is not there: {needed}"
        )
    return readers[command]


@click.command("plan", cls=Command)
@argument("config", "[CONFIG]", "A TOML file, a run folder, or a preset's name.", required=False)
@click.option(
    "--delta", type=float, help="[promise] Failure probability of the total, such as 1e-5."
)
@click.option(
    "--rounds",
    type=int,
    help="[promise] Number of rounds. Without it, --epsilon and --noise-multiplier give the most rounds.",
)
@click.option(
    "--clients",
    type=int,
    help="Clients of a round (default: 1). 0: find the smallest number with which a model can learn.",
)
@click.option(
    "--epsilon", type=float, help="[promise] Epsilon of the total; the answer is the noise."
)
@click.option(
    "--noise-multiplier",
    type=float,
    help="[promise] Noise over sensitivity; the answer is the epsilon.",
)
@click.option(
    "--clip",
    type=float,
    help="[promise] Length to which an update is clipped; default: --update-norm, or 1.",
)
@click.option("--update-norm", type=float, help="Typical length of an update before clipping.")
@click.option("--dimension", type=int, help="Number of the model's parameters.")
@click.option(
    "--relation",
    type=click.Choice(RELATIONS),
    help="[promise] How two neighbouring data sets differ: zero-out (default), add/remove or replace-one.",
)
def plan(config: str | None, **options: Any) -> None:
    """Compute the noise that a server adds for an epsilon, or the epsilon of that noise (method "global").

    It also says whether a model of that size can still learn. For other methods: fedveil advise.

    A CONFIG gives rounds, clients, clip, noise (or epsilon) and relation; options replace them. A configuration is refused
    if its run also releases other things, such as metrics, or may stop early.

    The options marked [promise] decide what is promised.
    """
    from fedveil.accounting import plan as make
    from fedveil.evidence import plan_table

    values: dict[str, Any] = {}
    conditions: tuple[str, ...] = ()
    if config is not None:
        values, conditions = read_by("plan", config)(config)
    if options["epsilon"] is not None:  # a requested epsilon replaces the noise of the file
        values.pop("noise_multiplier", None)
    values |= {name: value for name, value in options.items() if value is not None}
    if "delta" not in values:
        raise FieldError("--delta", None, "the failure probability of the total, e.g. 1e-5")
    planned = make(**{**values, "clients": values.get("clients", 1) or None})
    show([plan_table(planned, conditions)])


@click.command("advise", cls=Command)
@argument(
    "config",
    "[CONFIG]",
    "A TOML file, a run folder, or a preset's name; or a file with tables [advise] and [existing] whose keys are the options.",
    required=False,
)
@click.option("--clients", type=int, help="Number of clients in every round.")
@click.option("--examples", type=int, help="Number of training examples of a client.")
@click.option("--dimension", type=int, help="Number of trainable parameters.")
@click.option("--rounds", type=int, help="[promise] Number of rounds.")
@click.option("--epsilon", type=float, help="[promise] Epsilon of the total that is wanted.")
@click.option(
    "--delta",
    type=float,
    help="[promise] Failure probability of every epsilon; default: the file's, or 1e-5.",
)
@click.option(
    "--unit",
    help="[promise] Unit to protect: client, record or person; default: all that the numbers allow.",
)
@click.option("--records-per-person", type=int, help="Most records of one person, as declared.")
@click.option(
    "--trust",
    help="[promise] Trust model: central, local, trusted sum or secure sum; default: all.",
)
@click.option(
    "--relation",
    help="[promise] How two neighbouring data sets differ: zero-out (default), add/remove or replace-one.",
)
@click.option("--clip", type=float, help="[promise] Clipping norm of existing noise.")
@click.option("--sigma", type=float, help="[promise] Standard deviation of existing noise.")
@click.option(
    "--sensitivity",
    type=float,
    help="[promise] Sensitivity of existing noise, if it is not the clip.",
)
@click.option(
    "--rate",
    type=float,
    help="[promise] Existing noise: probability that a record is in a step, by a coin of its own.",
)
@click.option("--steps", type=int, help="[promise] Noisy steps of a round of existing noise.")
@click.option("--reach", type=float, help="Score that is possible without privacy; needs a CONFIG.")
def advise(
    config: str | None,
    clients: int | None,
    examples: int | None,
    dimension: int | None,
    unit: str | None,
    records_per_person: int | None,
    clip: float | None,
    sigma: float | None,
    sensitivity: float | None,
    rate: float | None,
    steps: int | None,
    delta: float | None,
    reach: float | None,
    **common: Any,
) -> None:
    """Say which protection can work, and what a given noise promises.

    From numbers, or from a configuration. --clip and --sigma describe noise that somebody else uses.

    The options marked [promise] decide what is promised; the others change what can be learned.
    """
    from fedveil.accounting import advise as choices
    from fedveil.accounting import reading
    from fedveil.evidence import reading_table

    if unit is not None:
        said, unit = unit, require_unit("--unit", unit, UNITS)
        if unit != said:
            say(f"--unit {said}: taken as {unit}")
    base = {**common, "delta": delta, "unit": unit}
    target = {**base, "clients": clients, "examples": examples, "dimension": dimension}
    target |= {"records_per_person": records_per_person, "reach": reach}
    existing = {**base, "clip": clip, "sigma": sigma, "sensitivity": sensitivity}
    existing |= {"rate": rate, "steps": steps}
    tables = _tables(config)
    if config is not None and not tables.keys() & {"advise", "existing"}:
        _refuse_unused({**target, **existing})
        read_by("advise", config)(config, target)
        return
    if "existing" in tables or clip is not None:
        options = _called(reading, existing, tables.get("existing", {}))
        show([reading_table(options)])
    if "advise" in tables or clip is None or clients is not None:
        asked = tables.get("advise", {})
        show_choices(_called(choices, target, asked), asked.get("delta", delta or DELTA))


def _tables(config: str | None) -> dict[str, Any]:
    """Read a TOML file as tables; empty for a folder, a preset, or an unreadable file."""
    if config is None or not Path(config).is_file():
        return {}
    try:
        return toml_of(Path(config).read_text(encoding="utf-8"))
    except ValueError:
        return {}


def _refuse_unused(options: Mapping[str, Any]) -> None:
    """Refuse options whose values the given configuration already has."""
    for name, value in options.items():
        if value is not None and name not in CHOSEN:
            accepted = f"is what CONFIG says: change it there, or leave CONFIG out. Beside it go --{', --'.join(CHOSEN)}"
            raise FieldError(f"--{name.replace('_', '-')}", value, accepted)


def show_choices(choices: "tuple[Choice, ...]", delta: float) -> None:
    """Print the available choices, the least noise first."""
    from fedveil.evidence import advice_tables

    tables = advice_tables(choices, delta)
    show(tables, tables[-1].notes)


def _called(function: Callable[..., Any], options: dict[str, Any], table: dict[str, Any]) -> Any:
    """Call a function with options and the file's keys; refuse unknown and missing ones."""
    values = {**{k: v for k, v in options.items() if v is not None}, **table}
    accepted = signature(function).parameters
    for key, value in values.items():
        if key not in accepted:
            raise FieldError(key, value, nearest(key, accepted))
    needed = [
        f"--{name}" for name, p in accepted.items() if p.default is p.empty and name not in values
    ]
    if needed:
        raise FieldError(
            ", ".join(needed), None, "they are needed, as options or as keys of the TOML file"
        )
    return function(**values)
