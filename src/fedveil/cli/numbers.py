"""`fedveil plan` and `fedveil advise`, from numbers. Of a configuration they ask the package that reads one."""

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

if TYPE_CHECKING:
    from fedveil.accounting import Choice

DELTA = 1e-5  # where nobody says one
CHOSEN = ("epsilon", "delta", "examples", "dimension", "reach")  # beside an experiment's file
RELATIONS = ("zero-out", "add/remove", "replace-one")


def read_by(command: str, config: str) -> Callable[..., Any]:
    """Command of another package for a configuration.

    It is an entry point of the group `fedveil.configurations`, under the command's name.

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
@argument("config", "[CONFIG]", "A file, run folder or preset.", required=False)
@click.option("--delta", type=float, help="[promise] Failure probability of the total.")
@click.option(
    "--rounds", type=int, help="[promise] Without, of --epsilon and --noise-multiplier: the most."
)
@click.option("--clients", type=int, help="n, of each round (default: 1); 0: as many as it takes.")
@click.option("--epsilon", type=float, help="[promise] Target for the total: gives the noise.")
@click.option("--noise-multiplier", type=float, help="[promise] z: gives epsilon.")
@click.option(
    "--clip", type=float, help="[promise] C, the longest update; default: --update-norm, or 1."
)
@click.option("--update-norm", type=float, help="Typical length of an update before clipping.")
@click.option("--dimension", type=int, help="Parameters of the model.")
@click.option(
    "--relation", type=click.Choice(RELATIONS), help="[promise] Neighbours; default: zero-out."
)
def plan(config: str | None, **options: Any) -> None:
    """Plan central noise: the noise for a budget or the budget of a noise, and the signal-to-noise ratio to expect.

    Of a configuration rounds, clients, clip, noise (or epsilon) and relation are taken; options come before them. One
    whose run releases more than noised means, or stops before its rounds are over, is refused.

    What is promised follows from the options marked [promise].
    """
    from fedveil.accounting import plan as make
    from fedveil.evidence import plan_table

    values: dict[str, Any] = {}
    conditions: tuple[str, ...] = ()
    if config is not None:
        values, conditions = read_by("plan", config)(config)
    if options["epsilon"] is not None:  # what is asked for takes the place of what follows from it
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
    "A TOML file, run folder or preset; or a file with the tables [advise] and [existing], keys as the options.",
    required=False,
)
@click.option("--clients", type=int, help="Clients of every round.")
@click.option("--examples", type=int, help="Training examples of a client.")
@click.option("--dimension", type=int, help="Trainable parameters.")
@click.option("--rounds", type=int, help="[promise] Rounds.")
@click.option("--epsilon", type=float, help="[promise] Target of the total.")
@click.option(
    "--delta", type=float, help="[promise] Of every epsilon; default: the file's, or 1e-5."
)
@click.option("--unit", help="[promise] client, record or person; default: what is known.")
@click.option("--records-per-person", type=int, help="The most records of one person, as declared.")
@click.option("--trust", help="[promise] central, local, trusted sum or secure sum; default: all.")
@click.option("--relation", help="[promise] Neighbours; default: zero-out.")
@click.option(
    "--clip", type=float, help="[promise] Existing: the clipping norm. Reads a configuration."
)
@click.option("--sigma", type=float, help="[promise] Existing: deviation of its noise.")
@click.option(
    "--sensitivity", type=float, help="[promise] Existing: what sigma is for, if not the clip."
)
@click.option(
    "--reach", type=float, help="The score that is possible without privacy. Beside a CONFIG."
)
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
    delta: float | None,
    reach: float | None,
    **common: Any,
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
    base = {**common, "delta": delta, "unit": unit}
    target = {**base, "clients": clients, "examples": examples, "dimension": dimension}
    target |= {"records_per_person": records_per_person, "reach": reach}
    existing = {**base, "clip": clip, "sigma": sigma, "sensitivity": sensitivity}
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
    """Read a file; nothing of a folder or preset, or of a file that the loader refuses."""
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
            accepted = f"is what CONFIG says: change it there, or leave CONFIG out. Beside it go --{', --'.join(CHOSEN)}"
            raise FieldError(f"--{name.replace('_', '-')}", value, accepted)


def show_choices(choices: "tuple[Choice, ...]", delta: float) -> None:
    """Show what there is to turn on, the least noise first."""
    from fedveil.evidence import advice_tables

    tables = advice_tables(choices, delta)
    show(tables, tables[-1].notes)


def _called(function: Callable[..., Any], options: dict[str, Any], table: dict[str, Any]) -> Any:
    """Call with the options given and the file's keys, refusing what the function does not know or still needs."""
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
