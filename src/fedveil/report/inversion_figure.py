"""The picture of an inversion: originals, and what an attack made of them under each setting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.attacks.inversion import Inverted
from fedveil.errors import FieldError
from fedveil.report.canvas import keep

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

MOST = 8  # images in a row
INCH = 0.9  # of one image


def inversion_figure(found: Inverted, attack: str, pixels: tuple[float, float] = (0.0, 1.0)) -> Figure:
    """One row of originals, and one of reconstructions for each setting, with the mean error of all images.

    Raises
    ------
    FieldError
        For an attack that was not run, or inputs that are no images.
    """
    from matplotlib.figure import Figure

    verdicts = [v for v in found.verdicts if v.attack == attack]
    if not verdicts:
        raise FieldError("attack", attack, f"has no reconstructions: {found.refused.get(attack, 'it was not run')}")
    if found.originals.dim() != 4 or found.originals.shape[1] not in (1, 3):
        raise FieldError("originals", tuple(found.originals.shape), "must be grey or colour images [n, c, H, W]")
    rows = [("originals", found.originals)]
    rows += [
        (f"{v.setting}\nMSE {v.details['mse']:.1e}, SSIM {v.details.get('ssim', float('nan')):.2f}", images)
        for v in verdicts
        for images in (found.images[attack, v.setting],)
    ]
    columns = min(len(found.originals), MOST)
    figure = Figure(figsize=(2.2 + INCH * columns, 0.4 + INCH * len(rows)), layout="constrained")
    figure.suptitle(f"{attack}, by: {verdicts[0].threat}", fontsize=10)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (label, images) in zip(axes, rows, strict=True):
        for axis, image in zip(line, images, strict=False):
            axis.imshow(_shown(image, pixels).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    return figure


def draw_inversion(found: Inverted, attack: str, file: Path, pixels: tuple[float, float] = (0.0, 1.0)) -> Path:
    """Write `inversion_figure` as a PNG."""
    return keep(inversion_figure(found, attack, pixels), file, 110)


def _shown(image: Tensor, pixels: tuple[float, float]) -> Tensor:
    """[H, W] or [H, W, 3] between 0 and 1."""
    scaled = ((image.float() - pixels[0]) / (pixels[1] - pixels[0])).clamp(0, 1)
    return scaled[0] if len(scaled) == 1 else scaled.permute(1, 2, 0)
