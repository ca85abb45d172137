"""`fedveil data`: list, prepare and show data sets; `fedveil apply`: mark what a model finds on pages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil_lab.cli.shared import Assign, Out, Seed, folder, say, show

if TYPE_CHECKING:
    from fedveil_lab.config import Config

app = typer.Typer(
    help="List, show and prepare data sets.",
    no_args_is_help=True,
    suggest_commands=False,
)


@app.command("list")
def data_list(
    where: Annotated[
        bool, typer.Option("--where", help="Say where the official files are.")
    ] = False,
) -> None:
    """List data sets, and whether this machine can load them."""
    from fedveil.data import SOURCES
    from fedveil.tables import Table

    rows = [
        (name, info.description, info.size, info.licence, info.here)
        for name, info in SOURCES.items()
    ]
    header = ("name", "what it is", "size", "licence", "here")
    show([Table(header, rows, wraps=header[1:])])
    official = [f"{name}: {info.official}" for name, info in SOURCES.items() if info.official]
    say(*(official if where else ()), whole=True)


@app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of `fedveil data list`.")],
    assign: Assign = None,
) -> None:
    """Decode a data set once, so that runs start faster."""
    from fedveil.data import prepare
    from fedveil_lab.config.loading import assign as put

    options: dict[str, Any] = {}
    for assignment in assign or []:
        put(options, assignment)
    path = prepare(name, **options)
    say(f"prepared: {path}" if path else f"{name} needs no preparation", whole=True)


@app.command("show")
def data_show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|NAME", help="A TOML file, a run folder, a preset, or a data set's name."
        ),
    ],
    assign: Assign = None,
    out: Out = None,
    seed: Seed = None,
) -> None:
    """Show which client holds what.

    Prints a table, and writes partition.png and partition.csv (default: runs/<name>-data).
    """
    from fedveil.files import refuse_strangers
    from fedveil_lab.report.partition import FILES, VIEW, headline, tables, write
    from fedveil_lab.runs.deal import deal_out

    spec = _configuration(what, assign or [], seed)
    where = out or Path("runs") / f"{spec.name}-data"
    refuse_strangers(where, FILES)
    dealt = deal_out(spec.data, spec.seed)
    held = dealt.holdings()
    say(headline(held, dealt.dataset), whole=True)
    show(tables(held, dealt.dataset))
    say(*filter(None, (*dealt.warnings(), dealt.dataset.note, VIEW)), whole=True)
    names = ", ".join(file.name for file in write(held, dealt.dataset, where))
    say(f"written to {where}: {names}", whole=True)


@app.command("forge")
def data_forge(
    pages: Annotated[
        Path,
        typer.Argument(metavar="PAGES", help="Folder of genuine pages: dark text on light paper."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", callback=folder, help="New folder to write.")],
    words: Annotated[int, typer.Option(metavar="N", help="Words to forge on each page.")] = 4,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of forgery: copy-move, splice, erase or retype; repeatable; default: all."
        ),
    ] = None,
    seed: Seed = None,
) -> None:
    """Forge words on your own pages, with masks.

    The result is a folder for the data set "documents".

    PAGES/boxes.json may say where text stands: {"a.png": [[left, top, right, bottom], ...]}.
    """
    from fedveil.data.tamper import KINDS, forge_pages

    done = forge_pages(pages, out, words=words, kinds=kind or KINDS, seed=seed or 0)
    say(f"written to {out}: {len(done)} pages with {sum(done.values())} forged words", whole=True)


def _configuration(what: str, assignments: list[str], seed: int | None) -> "Config":
    """Make the configuration of a file or preset; a data set's name is dealt out to its natural clients, or to ten."""
    from fedveil.data import SOURCES
    from fedveil.errors import FieldError, nearest
    from fedveil_lab.config import load, parse, presets
    from fedveil_lab.config.loading import assign as put

    if Path(what).exists() or what in presets():
        return load(what, assignments, seed=seed)
    if what not in SOURCES:
        accepted = f"is neither a file nor a run folder, preset or data set; {nearest(what, [*presets(), *SOURCES])}"
        raise FieldError("CONFIG", what, accepted)
    dealt = any(a.partition("=")[0].strip() == "data.partition" for a in assignments)
    clients = "natural" if SOURCES[what].natural and not dealt else 10
    values: dict[str, Any] = {"name": what, "rounds": 1, "model": {"name": "logistic"}}
    values["data"] = {"name": what, "clients": clients}
    for assignment in assignments:
        put(values, assignment)
    return parse(values if seed is None else {**values, "seed": seed})


def apply(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run on documents.")],
    pages: Annotated[Path, typer.Argument(metavar="PAGES", help="A scan, or a folder of scans.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", callback=folder, help="New folder to write; default: RUN/applied."
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(metavar="P", help="Probability from which a pixel counts as tampered.")
    ] = 0.5,
) -> None:
    """Mark the forgeries that a run's model finds on scans.

    Writes drawings with tampered pixels in red, masks, and boxes in found.json.

    The files show the scans: they are as private as these.
    """
    from fedveil.tables import Table
    from fedveil_lab.report.applied import apply_model

    where = out or run / "applied"
    rows = []
    for page in apply_model(run, pages, where, threshold):
        share = f"{float((page.score >= threshold).mean()):.2%}"
        best = "-"
        if page.boxes:
            best = f"{page.boxes[0][-1]:.3f}"
        rows.append((page.name, share, str(len(page.boxes)), best))
    show([Table(("page", "of its pixels", "places", "surest"), rows)])
    say(f"written to {where}: a drawing and a mask a page, found.json", whole=True)
