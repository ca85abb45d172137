"""The command line. Everything that needs PyTorch is imported by the command that uses it: ``--help`` is fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

REFUSED, STOPPED, NO_REPLY, INTERRUPTED = 2, 3, 4, 130

app = typer.Typer(
    name="fedveil",
    help="Privacy-preserving federated learning with calibrated noise, and a truthful account of what it bought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Data sets: what there is, and how to prepare it.", no_args_is_help=True)
app.add_typer(data_app, name="data")


class Engine(StrEnum):
    """Engines by name."""

    LOCAL = "local"
    FLOWER = "flower"


class Device(StrEnum):
    """Devices by name."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class RelationName(StrEnum):
    """Neighbouring relations by name."""

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add/remove"
    REPLACE_ONE = "replace-one"


Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, a run folder, or a preset's name.")]
Assign = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set one key, e.g. local.epochs=2; repeatable.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to write; default: runs/<name>.")]
EngineOption = Annotated[Engine | None, typer.Option("--engine", help="Who moves the messages.")]
DeviceOption = Annotated[Device | None, typer.Option("--device", help="Where clients train.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of data split, models, training and reproducible noise.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]


@app.command()
def run(
    config: Config,
    assign: Assign = None,
    out: Out = None,
    engine: EngineOption = None,
    device: DeviceOption = None,
    seed: Seed = None,
    resume: Resume = False,
) -> None:
    """Run one experiment. Exit code 2: refused; 3: the server's budget ended it; 4: no client replied."""
    with _told() as told:
        from fedveil import experiments
        from fedveil.report.progress import progress_for
        from fedveil.report.tables import run_table

        spec = experiments.load(config, assign or [], engine=engine, device=device, seed=seed)
        folder = out or _folder(config, spec.name)
        told.folder, told.command = folder, f"fedveil run {folder} --resume"
        console = _console()
        _quiet(spec.engine)
        summary = experiments.run(spec, folder, resume=resume, progress=progress_for(console))
        console.print(run_table(summary))
        console.print(f"written to {folder}", markup=False, highlight=False, soft_wrap=True)
        _stop_early([summary.stopped])


@app.command()
def compare(
    config: Annotated[
        str, typer.Argument(metavar="[CONFIG]", help="A TOML file, a folder, or a preset's name.", show_default=True)
    ] = "digits-compare",
    assign: Assign = None,
    out: Out = None,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="Repetitions under successive seeds.")] = 1,
    engine: EngineOption = None,
    device: DeviceOption = None,
    seed: Seed = None,
    resume: Resume = False,
) -> None:
    """Compare privacy settings side by side: table, curves, accuracy against noise."""
    with _told() as told:
        from fedveil import experiments
        from fedveil.report.figures import draw
        from fedveil.report.progress import progress_for
        from fedveil.report.tables import comparison_notes, comparison_tables

        spec = experiments.load(config, assign or [], engine=engine, device=device, seed=seed)
        folder = out or (_folder(config, spec.name) if resume else _fresh(_folder(config, spec.name)))
        told.folder, told.command = folder, f"fedveil compare {folder} --resume" + f" --seeds {seeds}" * (seeds > 1)
        console = _console()
        _quiet(spec.engine)
        found = experiments.compare(spec, folder, seeds=seeds, resume=resume, progress=progress_for(console))
        files = draw(found, folder)
        for table in comparison_tables(found, console.width):
            console.print(table)
        for note in comparison_notes(found):
            console.print(note, markup=False, highlight=False)
        names = ", ".join(["comparison.json", *(f.name for f in files)])
        console.print(f"written to {folder}: {names}", markup=False, highlight=False, soft_wrap=True)
        _stop_early([s.stopped for s in found])


@app.command()
def plan(
    delta: Annotated[float, typer.Option("--delta", help="Failure probability of the total.")],
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Rounds; left out with --epsilon and --noise-multiplier: the most.")
    ] = None,
    clients: Annotated[
        int, typer.Option("--clients", help="Clients n of the cohort, all in every round; 0: as many as it takes.")
    ] = 1,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Target for the total: gives the noise.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option("--noise-multiplier", help="z: gives epsilon.")] = None,
    clip: Annotated[
        float | None, typer.Option("--clip", help="C, the longest update of a client; default: --update-norm, or 1.")
    ] = None,
    update_norm: Annotated[
        float | None, typer.Option("--update-norm", help="Typical length of an update before clipping.")
    ] = None,
    dimension: Annotated[int | None, typer.Option("--dimension", help="Parameters of the model.")] = None,
    relation: Annotated[RelationName, typer.Option("--relation", help="Neighbours.")] = RelationName.ZERO_OUT,
) -> None:
    """Plan central noise: the noise for a budget or the budget of a noise, and the signal-to-noise ratio to expect."""
    with _told():
        from fedveil.accounting import plan as make
        from fedveil.report.tables import plan_table

        found = make(
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            clients=clients or None,
            clip=clip,
            update_norm=update_norm,
            dimension=dimension,
            noise_multiplier=noise_multiplier,
            relation=relation.value,
        )
        _console().print(plan_table(found))


@app.command()
def presets() -> None:
    """List the packaged configurations, for `run` and `compare`."""
    with _told():
        from fedveil import experiments
        from fedveil.report.tables import facts

        _console().print(facts(list(experiments.presets().items()), ("preset", "what it is")))


@data_app.command("list")
def data_list() -> None:
    """List the data sets, and whether they can be loaded on this machine."""
    with _told():
        from fedveil.data import SOURCES
        from fedveil.report.tables import facts

        rows = [
            (name, info.description, info.size, info.licence, "yes" if info.available else f"no: needs {info.file}")
            for name, info in SOURCES.items()
        ]
        _console().print(facts(rows, ("name", "what it is", "size", "licence", "here")))


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of `fedveil data list`.")],
    assign: Assign = None,
) -> None:
    """Decode a data set and keep the copy, so that runs start faster."""
    with _told():
        from fedveil.data import prepare
        from fedveil.experiments.loading import assign as put

        options: dict[str, Any] = {}
        for assignment in assign or []:
            put(options, assignment)
        path = prepare(name, **options)
        text = f"prepared: {path}" if path else f"{name} needs no preparation"
        _console().print(text, markup=False, highlight=False, soft_wrap=True)


class _GoOn:
    """How to go on after an interruption."""

    folder: Path | None = None
    command = ""

    def __str__(self) -> str:
        begun = self.folder is not None and (self.folder / "config.toml").exists()
        return f"; go on with: {self.command}" if begun else ""


@contextmanager
def _told() -> Iterator[_GoOn]:
    """Turn refusals into one clear line each on stderr, and an exit code."""
    from fedveil.errors import FedVeilError, NoReplyError

    told = _GoOn()
    try:
        yield told
    except NoReplyError as error:
        _fail(f"{error}{told}", NO_REPLY)
    except FedVeilError as error:
        _fail(str(error), REFUSED)
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", REFUSED)
    except KeyboardInterrupt:
        _fail(f"interrupted{told}", INTERRUPTED)


def _fail(text: str, code: int) -> None:
    for line in text.splitlines():
        sys.stderr.write(f"fedveil: {line}\n")
    raise typer.Exit(code)


def _stop_early(reasons: list[str]) -> None:
    found = [reason for reason in reasons if reason]
    if found:
        _fail(f"stopped early: {found[0]}", STOPPED)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 180))


def _folder(config: str, name: str) -> Path:
    """The folder that was named as the configuration, or runs/<name>."""
    path = Path(config)
    return path if (path / "config.toml").is_file() else Path("runs") / name


def _fresh(path: Path) -> Path:
    """The first of path, path-2, path-3, ... that holds nothing."""
    candidate, number = path, 1
    while candidate.exists() and (not candidate.is_dir() or any(candidate.iterdir())):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _quiet(engine: str) -> None:
    """Keep Flower's own log out of the way of ours."""
    if engine == "flower":
        import logging

        logging.getLogger("flwr").setLevel(logging.WARNING)


def main() -> None:
    """Entry point of the command ``fedveil``."""
    app()


if __name__ == "__main__":
    main()
