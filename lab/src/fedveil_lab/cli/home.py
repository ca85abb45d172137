"""`fedveil export` and `fedveil predict`: take the model of a run home, and ask it."""

import csv
import io
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedveil_lab.cli.shared import folder, fresh_file, say, show

Folder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, a comparison's cell, or an export.")
]
Describing = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Whose [data] and [model] describe a server's folder."),
]
Hypothesis = Annotated[
    int | None, typer.Option(metavar="N", help="Which model, of a run that trained several.")
]


def export(
    run: Folder,
    to: Annotated[
        Literal["safetensors", "pt"], typer.Option(help="pt: for programs that read nothing else.")
    ] = ("safetensors"),
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", callback=folder, help="New; default: RUN/export.")
    ] = None,
    config: Describing = None,
    hypothesis: Hypothesis = None,
) -> None:
    """Write the model of a run to hand on: weights, model.json (network, scaling, classes, promise), a card.

    Nothing that was measured on private data goes along, and no threshold; what was read off them is named.
    """
    from fedveil.home import export as write
    from fedveil_lab.runs.described import described

    where = out or run / "export"
    about = described(run, config)
    files = write(run, where, to=to, about=about, hypothesis=hypothesis)
    say(f"written to {where}: {', '.join(file.name for file in files)}", whole=True)
    if about.read_off:
        keys = ", ".join(about.read_off)
        say(
            f"before it leaves: {keys} were read off the private data, and stand in it; agree on values, and run again"
        )


def predict(
    run: Folder,
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="CSV, parquet, a picture, a folder of pictures, npz."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: predicted.csv, here.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="P", help="Of two classes: from which the positive one is named."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="The site's own rows, where each site scaled by its own."),
    ] = None,
    config: Describing = None,
    module: Annotated[
        str | None, typer.Option(metavar="MODULE:NET", help="The network's code, of an export.")
    ] = None,
    hypothesis: Hypothesis = None,
) -> None:
    """Ask the model of a run about new rows or pictures; a line each in a CSV file, as private as what was asked."""
    from fedveil.errors import FieldError
    from fedveil.files import write_atomic
    from fedveil.home import load
    from fedveil.tables import Table
    from fedveil_lab.runs.described import described

    about = described(run, config)
    code = module or _code_of(run, about.network, known=config is not None)
    model = load(run, model=code, hypothesis=hypothesis, about=about)
    where = out or fresh_file(Path("predicted.csv"))
    if where.exists():
        raise FieldError("--out", str(where), "is there already: give another file")
    answer = model.read(data, reference=reference, threshold=threshold)
    header = ["row", "predicted", *answer.classes]
    chances: list[list[float]] = [[] for _ in answer.names]
    if answer.probabilities is not None:
        chances = answer.probabilities.tolist()
    rows = [
        (name, str(label), *(f"{chance:.6g}" for chance in own_chances))
        for name, label, own_chances in zip(
            answer.names, answer.labels.tolist(), chances, strict=True
        )
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomic(where, text.getvalue().encode())  # for its owner alone
    positive = f"{about.positive}{'' if about.positive_named else ' (the second; nobody named it)'}"
    facts = [
        ("network", f"{about.network}, {list(about.input_shape)} to {about.outputs}"),
        ("classes", ", ".join(about.classes)),
        ("positive class", positive if about.positive else ""),
        ("asked", f"{len(rows)} of {data.name}"),
        ("threshold", "" if threshold is None else f"{threshold:g}, as you gave it"),
        ("promise", model.promise),
        ("trained with", f"FedVeil {about.version}, {about.method}"),
    ]
    values = {"promise": dict(about.promise), "classes": list(about.classes), "file": str(where)}
    show([Table.facts([fact for fact in facts if fact[1]], values)])
    say(
        f"written to {where}: {len(rows)} answers, as private as the rows that were asked about",
        whole=True,
    )


def threshold(
    run: Folder,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Labelled rows that are public, or made up.")
    ],
    public: Annotated[
        str, typer.Option(metavar="SOURCE", help="They are public: where they are from.")
    ] = "",
    made_up: Annotated[
        bool, typer.Option("--made-up", help="They are made up: the threshold is rehearsed.")
    ] = False,
    sensitivity: Annotated[
        float | None,
        typer.Option(metavar="P", help="The highest that finds this share; default: the best sum."),
    ] = None,
    module: Annotated[
        str | None, typer.Option(metavar="MODULE:NET", help="The network's code, of an export.")
    ] = None,
) -> None:
    """Choose where to cut the positive class's probability, on public or made-up rows; nothing stores it.

    Private rows are refused: a threshold is a figure of theirs that no promise covers.
    """
    from fedveil.home import choose_threshold, load
    from fedveil.tables import Table
    from fedveil_lab.runs.described import described, refuse_own_rows

    about = described(run)
    model = load(run, model=module or _code_of(run, about.network), about=about)
    refuse_own_rows(run, about, data)
    chosen = choose_threshold(model, data, public=public, made_up=made_up, sensitivity=sensitivity)
    figures = [
        (name, str(chosen.found.figures[name]))
        for name in ("sensitivity", "specificity", "balanced_accuracy")
    ]
    facts = [("threshold", str(chosen)), ("positive class", about.positive), *figures]
    facts.append(
        ("", "figures on the rows that it was chosen on, which flatters it; 95% over rows")
    )
    values = {"threshold": chosen.value, "kind": chosen.kind, "source": chosen.source}
    show([Table.facts(facts, {**values, "found": chosen.found.to_dict()})])
    say(
        f"use it as you see fit: fedveil predict {run} NEW.csv --threshold {chosen.value:.4g}",
        whole=True,
    )


def _code_of(run: Path, network: str, known: bool = False) -> str | None:
    """The place of a network of one's own: a run's folder is trusted with it as by `fedveil run`, an export is not."""
    from fedveil.files import CONFIG
    from fedveil.learning import MODELS

    own = known or (run / CONFIG).is_file()
    return network if own and network not in MODELS else None
