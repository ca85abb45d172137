"""Steps at region level: what the marked coordinates change of a gradient is clipped and noised, the rest is not.

Promise. Fix everything unmarked: labels, the marks themselves, the other coordinates, ids, and who is there. Two
neighbouring silos hold other content in the marked coordinates of one record, or of all records of one person. Under
``"replace-one"`` it is any other content, under ``"zero-out"`` the blank value.

Step. With x the examples and b the same examples with their marked coordinates blanked,

    sum_i grad(b_i) + [sum_i clip_C(grad(x_i) - grad(b_i)) + N(0, z^2 C^2)].

Proof. The model before the step follows from earlier releases. Given these, every grad(b_i) is the same number in both
worlds: it reads nothing marked. So the first sum is a public constant of the step, and adding it to the bracket is
post-processing. In the bracket one term of length C at most changes: by 2C for content against content. Against blank
the other term is 0, so it changes by C. Steps compose adaptively (Dong, Roth and Su 2022, arXiv 1905.02383): after T
full batches mu is 2 sqrt(T) / z, or sqrt(T) / z.

Poisson lots. Only the bracket is summed over the lot. The first sum is over *all* records: over the lot it would show
without noise who was drawn, and no amplification would be left.

What has to hold, beside the conditions of record level (`fedveil.learning.per_example`):

* Marks are inputs. Marks that were found in the pixels are other marks in the other world (`warn_of_followed_content`).
* The blank value is a public constant. Blanking comes before everything that joins coordinates: scaling by image,
  resizing, features of a frozen network. Targets that contain marked coordinates are blanked, too.
* The difference itself is formed, in float64, and clipped. A norm from |a|^2 + |b|^2 - 2ab is rounding alone where
  both gradients are long and nearly equal.
* The bracket is whole, with its noise on a grid, before the first sum is added to it.
* A difference that is not finite counts as zero, and the blanked gradient stays as it is without it.

Source: the mechanism takes up the aim of FedRE (noise for what the sensitive regions show), with none of its formulas.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedveil.errors import FieldError, require_choice, require_count
from fedveil.learning.clients import ClientData, OnDemand
from fedveil.logs import logger

_LOG = logger(__name__)
_FOLLOWS = 0.9  # share of images whose marks are a threshold of their pixels, from which a warning is given


def marks_of(client: ClientData) -> Tensor:
    """Return which coordinates of each example are marked: bool, of the shape of x, [N, ...].

    Raises
    ------
    FieldError
        If the client has no marks, or they cover nothing or everything.
    """
    if isinstance(client.x, OnDemand):
        accepted = (
            "must be in memory for regions: transforms that come before blanking mix coordinates"
        )
        raise FieldError("x", "a data set read one batch at a time", accepted)
    if client.masks is None:
        accepted = "are needed to protect regions: ClientData(x, y, masks=...), bool, True where content is protected"
        raise FieldError("masks", None, accepted)
    marks = client.masks
    if marks.shape != client.x.shape:  # of images [N, C, H, W]: all channels of a pixel
        marks = marks[:, None].expand(client.x.shape)
    if not client.examples:
        return marks
    if not marks.any():
        accepted = "must mark something: nothing would be protected, and nothing noised"
        raise FieldError("masks", "no coordinate", accepted)
    if marks.all():
        accepted = 'must leave something unmarked: to protect whole examples set unit = "record"'
        raise FieldError("masks", "every coordinate", accepted)
    return marks


def mark_columns(columns: Sequence[str], marked: Sequence[str], examples: int) -> Tensor:
    """Return masks that mark the same columns of every row of a table: bool [examples, columns].

    Parameters
    ----------
    columns : sequence of str
        Names of the columns of x, in their order: ``frame.columns``. A category that became several has a name each.
    marked : sequence of str
        Names of those whose content is to be protected.
    examples : int
        Number of rows.

    Raises
    ------
    FieldError
        For a name that is no column, or no name at all.

    Examples
    --------
    >>> from fedveil.learning.regions import mark_columns
    >>> mark_columns(["age", "hiv"], ["hiv"], examples=2)
    tensor([[False,  True],
            [False,  True]])
    """
    names = list(columns)
    if not len(marked):
        raise FieldError("marked", list(marked), "must name a column")
    for name in marked:
        require_choice("marked", name, names)
    wanted = torch.tensor([name in marked for name in names])
    return wanted.repeat(require_count("examples", examples), 1)


def blanked(client: ClientData, blank: float) -> ClientData:
    """Return a client's examples with their marked coordinates blanked, and those of targets that lie over them.

    Parameters
    ----------
    client : ClientData
        With marks.
    blank : float
        Value of a blanked coordinate. A blanked class of a target is 0.

    Raises
    ------
    FieldError
        See `marks_of`; for a blank value that the examples' type cannot hold; for targets of other pixels than x.
    """
    marks = marks_of(client)
    require_blank(client.x, blank)
    x = client.x.masked_fill(marks, blank)
    y = client.y
    over = _marks_of_target(client, marks)
    if over is not None:
        y = y.masked_fill(over, blank if y.is_floating_point() else 0)
    return replace(client, x=x, y=y, test_x=None, test_y=None, test_person=None, name=client.name)


def require_blank(x: Tensor, blank: float) -> None:
    """Refuse a blank value that examples x [N, ...] of this type cannot hold.

    Raises
    ------
    FieldError
        For a fraction or a negative number among whole ones, and for a number beyond a type's range.
    """
    if not x.is_floating_point():
        if blank != int(blank) or blank < 0:
            accepted = (
                "must be a whole number of at least 0: these examples number rows of an embedding"
            )
            raise FieldError("blank", blank, accepted)
        return
    most = torch.finfo(x.dtype).max
    if abs(blank) > most:
        raise FieldError("blank", blank, f"must be between -{most:g} and {most:g} in {x.dtype}")


def unusable_blank(blank: float, reason: str) -> FieldError:
    """Return the refusal of a blank value without finite gradients. Which are, is public."""
    return FieldError(
        "blank", blank, f"must be a value that the model takes and learns from: {reason}"
    )


def _marks_of_target(client: ClientData, marks: Tensor) -> Tensor | None:
    """Return which numbers of the targets lie over marked coordinates; None for targets of an example as a whole."""
    y = client.y
    if y.shape == marks.shape:
        return marks
    pixels = client.x.shape[2:]
    if client.x.dim() < 3 or y.shape[-len(pixels) :] != pixels:
        if y.dim() > 2:
            accepted = "must have the pixels of x to be blanked where these are marked: resize them, or name one a row"
            raise FieldError("y", tuple(y.shape), accepted)
        return None
    marked_pixels = marks.any(1)  # in any channel
    if y.dim() == marked_pixels.dim():
        return marked_pixels
    return marked_pixels[:, None].expand(y.shape)


def warn_of_followed_content(client: ClientData) -> None:
    """Warn on this machine alone if most examples' marks are a threshold of their own values.

    Marks that follow content have no promise. It is no refusal: whether one is given would follow the content.
    """
    marks = marks_of(client).flatten(1)
    x = client.x.flatten(1).to(torch.float64)
    partly = marks.any(1) & ~marks.all(1)
    if not partly.any():
        return
    marks, x = marks[partly], x[partly]
    inside_low, inside_high = _ends(x, marks)
    outside_low, outside_high = _ends(x, ~marks)
    is_threshold = (inside_low > outside_high) | (inside_high < outside_low)
    share = float(is_threshold.double().mean())
    if share >= _FOLLOWS:
        _LOG.warning(
            "the marks of %.0f%% of a client's examples are a threshold of their values. Marks that follow content "
            "promise nothing: give marks that were made without looking at what is marked",
            100 * share,
        )


def _ends(x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest chosen value [N] of each row [N, F]."""
    low = x.masked_fill(~chosen, torch.inf).amin(1)
    high = x.masked_fill(~chosen, -torch.inf).amax(1)
    return low, high
