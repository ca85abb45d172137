"""The region that ``[data] region`` names in a set: rectangles of pixels or columns of a table, and its blanking."""

from dataclasses import replace

from torch import Tensor

from fedveil.data import DataSet
from fedveil.errors import FieldError
from fedveil.learning import mark_columns, region_mask, require_blank
from fedveil_lab.config.sections import Data
from fedveil_lab.config.tables import fields_of

ALTERNATIVES = "[top, left, bottom, right] in pixels, or names of columns"


def coordinates_of(spec: Data, dataset: DataSet) -> Tensor:
    """Return the coordinates that ``data.region`` marks in each example: bool, of the shape of an example.

    Raises
    ------
    FieldError
        Without a region, or for one that does not fit the set, or covers all of an example.
    """
    if spec.region is None:
        raise FieldError(
            "data.region", None, f"says what is marked in each example: {ALTERNATIVES}"
        )
    shape = dataset.input_shape
    if spec.names_columns:
        marks = _columns(spec, dataset)
    elif len(shape) != 3:
        accepted = (
            f"is of pixels, and {dataset.name!r} has no images: name its columns, such as ['age']"
        )
        raise FieldError("data.region", plain(spec), accepted)
    else:
        with fields_of("data"):
            marks = region_mask(spec.region, *shape[1:]).expand(shape)
    if marks.all():
        accepted = (
            'must leave something unmarked: to protect whole examples set privacy.unit = "record"'
        )
        raise FieldError("data.region", plain(spec), accepted)
    return marks


def _columns(spec: Data, dataset: DataSet) -> Tensor:
    """Return which columns of a table are named."""
    if not dataset.columns:
        accepted = f"names columns, and those of {dataset.name!r} have no names"
        if len(dataset.input_shape) == 3:
            accepted = f"names columns, and {dataset.name!r} has images: [top, left, bottom, right] in pixels"
        raise FieldError("data.region", plain(spec), accepted)
    with fields_of("data", marked="data.region"):
        return mark_columns(dataset.columns, list(map(str, spec.region or ())), 1)[0]


def without_marked(spec: Data, dataset: DataSet) -> DataSet:
    """Return a set whose marked coordinates hold ``data.blanked``, also in its test half and in targets of pixels.

    Raises
    ------
    FieldError
        As `coordinates_of`; also for a set with marks of its own, as its test half has none.
    """
    if spec.blanked is None:
        return dataset
    if dataset.regions is not None:
        accepted = f"goes with data.region, and {dataset.name!r} has masks of its own: use fedveil.learning.regions.blanked"
        raise FieldError("data.blanked", spec.blanked, accepted)
    marks = coordinates_of(spec, dataset)
    with fields_of("data", blank="data.blanked"):
        require_blank(dataset.x, spec.blanked)
    if dataset.task == "segmentation":
        pixels = marks.any(0)
        dataset = replace(
            dataset, y=dataset.y.masked_fill(pixels, 0), test_y=_filled(dataset.test_y, pixels, 0)
        )
    x = dataset.x.masked_fill(marks, spec.blanked)
    return replace(dataset, x=x, test_x=_filled(dataset.test_x, marks, spec.blanked))


def _filled(values: Tensor | None, marks: Tensor, blank: float) -> Tensor | None:
    if values is None:
        return None
    return values.masked_fill(marks, blank)


def plain(spec: Data) -> list[object]:
    """Return the region as the file has it, for a refusal."""
    return list(spec.region or ())
