"""An inversion audit for people: its table, and originals beside what an attack made of them under each setting."""

from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from fedveil.attacks.inversion import Inverted
from fedveil.errors import FieldError
from fedveil.report.canvas import keep
from fedveil.report.table import Table, shown

MOST = 8  # images in a row
INCH = 0.9  # of one image


def inversion_table(inverted: Inverted) -> Table:
    """One row an attack and setting; every setting's mean image and the undefended attack stand beside it."""
    masked = [n for n in ("region_mse", "rest_mse") if any(n in v.details for v in inverted.verdicts)]
    forms = {"PSNR": ".1f", "SSIM": ".2f", "success": ".2f", "identified": ".2f", "labels": ".2f", "mean_image": ".1e"}
    forms |= dict.fromkeys(masked, ".1e")
    rows = []
    for v in inverted.verdicts:
        row = {"attack": v.attack, "setting": v.setting, "MSE (95%)": f"{v.point:.1e} ({v.low:.1e}-{v.high:.1e})"}
        for name, form in forms.items():
            row[name.replace("_mse", " MSE").replace("_", " ")] = shown(v.details.get(name.lower()), form)
        rows.append(row | {"valid": "yes" if v.valid else "no"})
    first = inverted.verdicts[0]
    notes = [
        f"Mean over {first.n} releases, each {first.replication} a unit of its own; the attacker: {first.threat}.",
        "success: MSE below 0.001 of the squared range; identified: nearest to its original among the client's images;",
        "mean image: MSE of a guess that saw no release; valid: the attack works where there is no defence.",
        *dict.fromkeys(note for v in inverted.verdicts for note in v.notes),
    ]
    return Table.of(rows, numbers=list(rows[0])[2:-1], notes=notes)


def inversion_figure(inverted: Inverted, attack: str, pixels: tuple[float, float] = (0.0, 1.0)) -> Figure:
    """One row of originals, and one of reconstructions for each setting, with the mean error of all images.

    Raises
    ------
    FieldError
        For an attack that was not run, or inputs that are no images.
    """
    verdicts = [v for v in inverted.verdicts if v.attack == attack]
    if not verdicts:
        raise FieldError("attack", attack, f"has no reconstructions: {inverted.refused.get(attack, 'it was not run')}")
    if inverted.originals.dim() != 4 or inverted.originals.shape[1] not in (1, 3):
        raise FieldError("originals", tuple(inverted.originals.shape), "must be grey or colour images [n, c, H, W]")
    rows = [("originals", inverted.originals)]
    rows += [
        (f"{v.setting}\nMSE {v.details['mse']:.1e}, SSIM {v.details.get('ssim', float('nan')):.2f}", images)
        for v in verdicts
        for images in (inverted.images[attack, v.setting],)
    ]
    columns = min(len(inverted.originals), MOST)
    figure = Figure(figsize=(2.2 + INCH * columns, 0.4 + INCH * len(rows)), layout="constrained")
    figure.suptitle(f"{attack}, by: {verdicts[0].threat}", fontsize=10)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (label, images) in zip(axes, rows, strict=True):
        for axis, image in zip(line, images, strict=False):
            axis.imshow(_scaled(image, pixels).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    return figure


def draw_inversion(inverted: Inverted, attack: str, file: Path, pixels: tuple[float, float] = (0.0, 1.0)) -> Path:
    """Write `inversion_figure` as a PNG."""
    return keep(inversion_figure(inverted, attack, pixels), file, 110)


def _scaled(image: Tensor, pixels: tuple[float, float]) -> Tensor:
    """[H, W] or [H, W, 3] between 0 and 1."""
    scaled = ((image.float() - pixels[0]) / (pixels[1] - pixels[0])).clamp(0, 1)
    return scaled[0] if len(scaled) == 1 else scaled.permute(1, 2, 0)
