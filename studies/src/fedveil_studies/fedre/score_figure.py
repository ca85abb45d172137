"""Which pixels each layer's gradient answers to: the FedRE paper's figures 2 and 4, drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedveil.errors import FieldError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

COLUMNS = 5  # pictures in a row
INCH = 1.6  # of one picture


def score_figure(image: "Tensor", maps: "Tensor", layers: Sequence[str], region: "Tensor") -> "Figure":
    """The image with its sensitive region, and beside it each layer's map, as `fedveil.learning.score_maps` gives them.

    Every map has its own scale; the layer's score, the mean over the region, stands above it. On a client's image the
    picture is as private as the image.

    Parameters
    ----------
    image : Tensor
        [C, H, W], between 0 and 1, 1 or 3 channels.
    maps : Tensor
        [L, H, W].
    layers : sequence of str
        L names.
    region : Tensor
        Bool [H, W], not empty; outlined everywhere.

    Raises
    ------
    FieldError
        For shapes that do not fit each other, or an empty region.
    """
    from matplotlib.figure import Figure

    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise FieldError("image", tuple(image.shape), "must be [1, H, W] or [3, H, W]")
    if maps.shape != (len(layers), *image.shape[1:]):
        raise FieldError("maps", tuple(maps.shape), f"must be {(len(layers), *image.shape[1:])}: a map a layer")
    if region.shape != image.shape[1:] or not region.any():
        raise FieldError("region", tuple(region.shape), f"must be bool {tuple(image.shape[1:])} with a pixel in it")
    rows = -(-(len(layers) + 1) // COLUMNS)
    figure = Figure(figsize=(INCH * COLUMNS, 1.2 * INCH * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    shown = image.squeeze(0) if len(image) == 1 else image.permute(1, 2, 0)
    axes[0].imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes[0].set_title("image", fontsize=7)
    for axis, name, one in zip(axes[1:], layers, maps, strict=False):
        axis.imshow(one.numpy(), cmap="viridis", interpolation="nearest")
        axis.set_title(f"{name}\nS = {float(one[region].mean()):.1e}", fontsize=7)
    for place, axis in enumerate(axes):
        axis.set_axis_off()
        if place <= len(layers):
            axis.contour(region.numpy(), levels=[0.5], colors="tab:red", linewidths=0.8)
    return figure
