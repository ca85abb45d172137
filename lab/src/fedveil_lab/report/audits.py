"""Results of a game as tables, notes and pictures, and as a Markdown page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path

from torch import Tensor

from fedveil.errors import FieldError
from fedveil.tables import NOTHING, Table, shown, write
from fedveil_lab.attacks.inversion import Inverted
from fedveil_lab.games import Audit, Judgement
from fedveil_lab.games.game import RESULT
from fedveil_lab.games.inversion import InversionAudit
from fedveil_lab.report.audit_figures import audit_figure, evidence_figure, roc_figure
from fedveil_lab.report.audit_tables import (
    answer,
    audit_notes,
    audit_tables,
    compared,
    folded,
    headline,
)
from fedveil_lab.report.canvas import keep, wrapped
from fedveil_lab.report.plotting import Figure, own_style

PAGE = "audit"
MOST = 8  # images in a row
INCH = 0.9  # of one image


@dataclass(frozen=True)
class Shown:
    """Presentation of a game's results: the answer, tables, notes below them, and pictures."""

    tables: Sequence[Table]
    notes: Sequence[str]
    pictures: Sequence[Path] = ()
    answer: str = ""

    def write(self, folder: Path) -> list[str]:
        """Write ``audit.md`` and the tables as CSV; return the names of all files of the presentation."""
        files = write(folder, PAGE, self.tables, self.notes, self.answer)
        return [
            RESULT,
            *files,
            *(f"{file.stem}{kind}" for file in self.pictures for kind in (".png", ".pdf")),
        ]


@singledispatch
def show(judgement: Judgement, folder: Path) -> Shown:
    """Present a game's results, with pictures in a folder; your own game gets a table of its verdicts."""
    rows = []
    for v in judgement.verdicts:
        row = {
            "attack": v.attack,
            "setting": v.setting,
            "figure": f"{v.figure}, over {v.replication}",
        }
        row |= {"point": f"{v.point:.3f}", "95%": NOTHING}
        if v.low < v.high:  # one unit has no interval
            row["95%"] = f"{v.low:.3f} to {v.high:.3f}"
        row |= {"n": str(v.n), "without defence": shown(v.without_defence, ".3f")}
        row["valid"] = {True: "yes", False: "no", None: NOTHING}[v.valid]
        rows.append(row | {name: f"{value:.3f}" for name, value in v.details.items()})
    said = folded(judgement.refused)
    said += dict.fromkeys(note for v in judgement.verdicts for note in v.notes)
    roc = judgement.values.get("roc")  # of records
    tables, drawn = [], []
    if roc:
        drawn.append(keep(roc_figure(roc), folder / "membership.png", 120))
    if rows:
        tables.append(Table.of(rows, wraps=("figure",)))
    return Shown(tables, said, drawn)


@show.register
def _participation(audit: Audit, folder: Path) -> Shown:
    first, tables, notes = headline(audit), list(audit_tables(audit)), audit_notes(audit)
    if first is not None:
        tables, notes = [first, *tables], [*first.notes, *notes]
    figures = {"audit.png": audit_figure(audit), "evidence.png": evidence_figure(audit)}
    drawn = []
    for name, figure in figures.items():
        if figure is not None:
            drawn.append(keep(figure, folder / name, 110))
    return Shown(tables, [*notes, *compared(audit)], drawn, answer(audit))


@show.register
def _inversion(audit: InversionAudit, folder: Path) -> Shown:
    if audit.inverted is None or not audit.verdicts:
        return Shown([], [])
    table = inversion_table(audit.inverted, audit.promises)
    files = []
    for name in dict.fromkeys(verdict.attack for verdict in audit.verdicts):
        file = folder / f"inversion-{name}.png"
        files.append(draw_inversion(audit.inverted, name, file, audit.pixels, audit.promises))
    return Shown([table], table.notes, files)


def inversion_table(inverted: Inverted, promises: Mapping[str, str] | None = None) -> Table:
    """Make a row for each attack and setting; undefended attack, mean image and the round's promise stand beside it."""
    forms = {
        "PSNR": ".1f",
        "SSIM": ".2f",
        "success": ".2f",
        "identified": ".2f",
        "labels": ".2f",
        "mean_image": ".1e",
    }
    for masked in ("region_mse", "rest_mse"):
        if any(masked in verdict.details for verdict in inverted.verdicts):
            forms[masked] = ".1e"
    rows = []
    for v in inverted.verdicts:
        row = {
            "attack": v.attack,
            "setting": v.setting,
            "MSE (95%)": f"{v.point:.1e} ({v.low:.1e}-{v.high:.1e})",
        }
        for name, form in forms.items():
            column = name.replace("_mse", " MSE").replace("_", " ")
            row[column] = shown(v.details.get(name.lower()), form)
        row["valid"] = {True: "yes", False: "no", None: NOTHING}[v.valid]
        if promises:
            row["promise of that round"] = promises.get(v.setting, NOTHING)
        rows.append(row)
    first = inverted.verdicts[0]
    notes = [
        f"Mean over {first.n} releases, each {first.replication} a unit of its own; the attacker: {first.threat}.",
        "success: MSE below 0.001 of the squared range; identified: nearest to its original among the client's images;",
        "mean image: MSE of a guess that saw no release; valid: without a defence the attack beats guessing (95%).",
        *dict.fromkeys(note for v in inverted.verdicts for note in v.notes),
    ]
    if promises:
        notes.append(
            "promise of that round: of the one round that is attacked; a run of more rounds promises less."
        )
    numbers = [name for name in list(rows[0])[2:] if name not in ("valid", "promise of that round")]
    return Table.of(rows, numbers=numbers, notes=notes, wraps=("promise of that round",))


@own_style()
def inversion_figure(
    inverted: Inverted,
    attack: str,
    pixels: tuple[float, float] = (0.0, 1.0),
    promises: Mapping[str, str] | None = None,
) -> Figure:
    """Draw the original images, and a row of reconstructions per setting with their mean error.

    Raises
    ------
    FieldError
        If the attack was not run, or the inputs are not images.
    """
    verdicts = [v for v in inverted.verdicts if v.attack == attack]
    if not verdicts:
        raise FieldError(
            "attack",
            attack,
            f"has no reconstructions: {inverted.refused.get(attack, 'it was not run')}",
        )
    if inverted.originals.dim() != 4 or inverted.originals.shape[1] not in (1, 3):
        raise FieldError(
            "originals",
            tuple(inverted.originals.shape),
            "must be grey or colour images [n, c, H, W]",
        )
    rows = [("originals", inverted.originals)]
    for v in verdicts:
        label = f"{v.setting}\nMSE {v.details['mse']:.1e}, SSIM {v.details.get('ssim', float('nan')):.2f}"
        if promises:
            label += f"\n{wrapped(promises.get(v.setting, ''), 2.6, 7)}"
        rows.append((label, inverted.images[attack, v.setting]))
    columns, beside, letters = min(len(inverted.originals), MOST), 2.2, 8
    if promises:
        beside, letters = 3.0, 7
    figure = Figure(figsize=(beside + INCH * columns, 0.4 + INCH * len(rows)), layout="constrained")
    figure.suptitle(f"{attack}, by: {verdicts[0].threat}", fontsize=10)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (label, images) in zip(axes, rows, strict=True):
        for axis, image in zip(line, images, strict=False):
            axis.imshow(
                _scaled(image, pixels).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
            )
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=letters)
    return figure


def draw_inversion(
    inverted: Inverted,
    attack: str,
    file: Path,
    pixels: tuple[float, float] = (0.0, 1.0),
    promises: Mapping[str, str] | None = None,
) -> Path:
    """Write `inversion_figure` as a PNG."""
    return keep(inversion_figure(inverted, attack, pixels, promises), file, 110)


def _scaled(image: Tensor, pixels: tuple[float, float]) -> Tensor:
    """Scale an image to [H, W] or [H, W, 3] between 0 and 1."""
    scaled = ((image.float() - pixels[0]) / (pixels[1] - pixels[0])).clamp(0, 1)
    if len(scaled) == 1:
        return scaled[0]
    return scaled.permute(1, 2, 0)
