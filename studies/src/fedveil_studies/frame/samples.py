"""Sample images of a study's data set, class by class."""

from typing import TYPE_CHECKING

import torch

from fedveil.data import DataSet, load
from fedveil.errors import FieldError
from fedveil_studies.frame.reproduction import Reproduction

if TYPE_CHECKING:
    from fedveil_lab.report.plotting import Figure

EACH = 3  # images of a class
INCH = 1.5  # of one image


def samples(reproduction: Reproduction, scenario: str) -> "Figure":
    """Draw the first images of each class in a scenario's training set, in the size that the scale has.

    Parameters
    ----------
    reproduction : Reproduction
        Choices of scale and first seed.
    scenario : str
        Name of the scenario.
    """
    data = reproduction.full(scenario, reproduction.seeds[0]).data
    return sample_figure(load(data.name, **data.options))


def sample_figure(dataset: DataSet) -> "Figure":
    """Draw the first `EACH` images of each class, a column a class; all share one scale of grey or colours.

    Parameters
    ----------
    dataset : DataSet
        Images [N, 1 or 3, H, W] with a class each.

    Raises
    ------
    FieldError
        If the set has no such images.
    """
    from fedveil_lab.report.plotting import Figure

    if dataset.x.dim() != 4 or dataset.x.shape[1] not in (1, 3) or dataset.y.dim() != 1:
        shape = tuple(dataset.x.shape[1:])
        raise FieldError("data.name", dataset.name, f"has no images with a class: {shape}")
    names = dataset.class_names or tuple(map(str, range(dataset.classes)))
    places = [(dataset.y == label).nonzero().flatten()[:EACH] for label in range(dataset.classes)]
    shown = [dataset.x[place] for place in places]
    every = torch.cat(shown)
    low, high = float(every.min()), float(every.max())
    figure = Figure(figsize=(INCH * len(names), INCH * EACH), layout="constrained")
    axes = figure.subplots(EACH, len(names), squeeze=False)
    for column, (name, images) in enumerate(zip(names, shown, strict=True)):
        axes[0, column].set_title(name, fontsize=8)
        for axis, image in zip(axes[:, column], images, strict=False):
            drawn = ((image - low) / (high - low)).permute(1, 2, 0).squeeze(2)
            axis.imshow(drawn.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        for axis in axes[:, column]:
            axis.set_axis_off()
    return figure
