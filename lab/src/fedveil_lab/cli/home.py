"""`fedveil export` and `fedveil predict`: take the model of a run home, and ask it."""

import csv
import io
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedveil_lab.cli.shared import folder, fresh_file, say, show

Folder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Folder of a run, of a comparison's cell, or of an export."),
]
Describing = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Configuration whose [data] and [model] describe a deployed server's folder.",
    ),
]
Hypothesis = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of the model, of a run that trained several."),
]


def export(
    run: Folder,
    to: Annotated[
        Literal["safetensors", "pt"],
        typer.Option(help="File format of the weights; pt for programs that read nothing else."),
    ] = ("safetensors"),
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", callback=folder, help="New folder to write; default: RUN/export."
        ),
    ] = None,
    config: Describing = None,
    hypothesis: Hypothesis = None,
) -> None:
    """Write a run's model to hand on.

    Writes weights, model.json (network, scaling, classes, promise) and a card.

    It writes no threshold, and nothing that was measured on private data. The card names what was read off them.
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
        typer.Argument(
            metavar="DATA", help="New rows (CSV, parquet, npz), a picture, or a folder of pictures."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; default: predicted.csv.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Probability from which the positive one of two classes is named."
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Rows of the asking site, for a run in which each site scaled by its own rows.",
        ),
    ] = None,
    config: Describing = None,
    module: Annotated[
        str | None, typer.Option(metavar="MODULE:NET", help="Code of the network, for an export.")
    ] = None,
    hypothesis: Hypothesis = None,
) -> None:
    """Ask a run's model about new rows or pictures.

    The answers are a CSV file with a line each, as private as what was asked.
    """
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
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled rows, public or made up.")],
    public: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="Say that the rows are public, and where they are from."
        ),
    ] = "",
    made_up: Annotated[
        bool, typer.Option("--made-up", help="Say that the rows are made up: a rehearsal.")
    ] = False,
    sensitivity: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Highest threshold that finds this share of positive rows; default: the best sensitivity plus specificity.",
        ),
    ] = None,
    module: Annotated[
        str | None, typer.Option(metavar="MODULE:NET", help="Code of the network, for an export.")
    ] = None,
) -> None:
    """Choose a threshold on public or made-up rows.

    It is printed and stored nowhere.

    Private rows are refused, as no promise would cover the threshold.
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
    """Return where a user's network lies: a run's folder is trusted with it, as by `fedveil run`; an export is not."""
    from fedveil.files import CONFIG
    from fedveil.learning import MODELS

    own = known or (run / CONFIG).is_file()
    if own and network not in MODELS:
        return network
    return None
