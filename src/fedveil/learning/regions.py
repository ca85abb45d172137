"""Steps at region level: only the part of a gradient that marked coordinates change is clipped and noised.

Promise. Everything unmarked is fixed: labels, the marks themselves, other coordinates, ids, and membership. Two
neighbouring silos differ in the marked coordinates of one record, or of all records of one person. Under
``"replace-one"`` these hold any other content, under ``"zero-out"`` the blank value.

Step. With examples x, and b the same examples with their marked coordinates blanked:

    sum_i grad(b_i) + [sum_i clip_C(grad(x_i) - grad(b_i)) + N(0, z^2 C^2)].

Proof. The model before the step follows from earlier releases. Given these, every grad(b_i) is the same in both silos,
as it reads nothing marked. So the first sum is a public constant of the step, and adding it to the bracket is
post-processing. In the bracket one term of length at most C changes. Content against content changes it by 2C. Against
blank the other term is 0, so the change is C. Steps compose adaptively (Dong, Roth and Su 2022, arXiv 1905.02383):
after T full batches mu is 2 sqrt(T) / z, or sqrt(T) / z.

Poisson lots. Only the bracket is summed over the lot. The first sum is over *all* records. Over the lot it would
reveal, without noise, which records were drawn, and sampling would no longer reduce the cost.

Conditions in addition to those of record level (`fedveil.learning.per_example`):

* Marks are inputs. Marks that were derived from the pixels would differ in the neighbouring silo
(`warn_of_followed_content`).
* The blank value is a public constant. Blanking comes before every operation that mixes coordinates: scaling by image,
  resizing, features of a frozen network. Targets that contain marked coordinates are blanked, too.
* The difference itself is formed, in float64, and clipped. A norm from |a|^2 + |b|^2 - 2ab is only rounding error if
  both gradients are long and nearly equal.
* The bracket is complete, with its noise and on a grid, before the first sum is added to it.
* A difference that is not finite counts as zero, and leaves the blanked gradient unchanged.

Source: the mechanism has the aim of FedRE (noise for what sensitive regions reveal), but none of its formulas.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedveil.errors import FieldError, require_choice, require_count
from fedveil.learning.clients import ClientData, OnDemand
from fedveil.logs import logger

_LOG = logger(__name__)
_FOLLOWS = 0.9  # share of images whose marks are a threshold of their pixels, above which a warning is given


def marks_of(client: ClientData) -> Tensor:
    """Return a client's masks in the shape of x [N, ...]: bool, True at the marked (protected) coordinates.

    Raises
    ------
    FieldError
        If the client has no masks, or they mark nothing or everything.
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
    if marks.shape != client.x.shape:  # masks of images [N, C, H, W]: all channels of a pixel
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
    """Make masks for a table that mark the same columns in every row: bool [examples, columns].

    Parameters
    ----------
    columns : sequence of str
        Names of the columns of x, in order: ``frame.columns``. Columns that came from one category all have its name.
    marked : sequence of str
        Names of the columns whose content is to be protected.
    examples : int
        Number of rows.

    Raises
    ------
    FieldError
        For a name that is not a column, without any name, or for a text in place of a list.

    Examples
    --------
    >>> from fedveil.learning.regions import mark_columns
    >>> mark_columns(["age", "hiv"], ["hiv"], examples=2)
    tensor([[False,  True],
            [False,  True]])
    """
    names = list(columns)
    if isinstance(marked, str):
        raise FieldError("marked", marked, f"must be a list of names: [{marked!r}]")
    if not len(marked):
        raise FieldError("marked", list(marked), "must name a column")
    for name in marked:
        require_choice("marked", name, names)
    wanted = torch.tensor([name in marked for name in names])
    return wanted.repeat(require_count("examples", examples), 1)


def blanked(client: ClientData, blank: float) -> ClientData:
    """Replace the marked coordinates of a client's examples by a constant, also in targets for the same pixels.

    Parameters
    ----------
    client : ClientData
        Client with masks.
    blank : float
        Value of a blanked coordinate. A blanked class of a target is 0.

    Raises
    ------
    FieldError
        As `marks_of`. Also for a blank value that the examples' type cannot hold, and for targets by pixel in another
        image size than x.
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
    """Refuse a blank value that the type of examples x [N, ...] cannot hold.

    Raises
    ------
    FieldError
        If integer examples get a fraction or a negative number, or the number is beyond the type's range.
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


def unusable_blank(blank: float, reason: str | Exception) -> FieldError:
    """Return the error that refuses a blank value without finite gradients; the refusal reveals nothing private."""
    if isinstance(reason, FieldError) and reason.field == "y":  # no example had a finite loss
        reason = "its gradient is not finite"
    return FieldError(
        "blank", blank, f"must be a value that the model takes and learns from: {reason}"
    )


def _marks_of_target(client: ClientData, marks: Tensor) -> Tensor | None:
    """Return a mask of the target's numbers that belong to marked coordinates; None if one label stands for an example."""
    y = client.y
    if y.shape == marks.shape:
        return marks
    pixels = client.x.shape[2:]
    if client.x.dim() < 3 or y.shape[-len(pixels) :] != pixels:
        if y.dim() > 2:
            accepted = "must have the pixels of x to be blanked where these are marked: resize them, or name one a row"
            raise FieldError("y", tuple(y.shape), accepted)
        return None
    marked_pixels = marks.any(1)  # pixels that are marked in any channel
    if y.dim() == marked_pixels.dim():
        return marked_pixels
    return marked_pixels[:, None].expand(y.shape)


def warn_of_followed_content(client: ClientData) -> None:
    """Warn in this machine's log if masks seem derived from content: most are a threshold of their own example's values.

    The promise does not hold for masks that depend on content. It is only a warning, because a refusal would itself
    depend on the content.
    """
    if marks_follow_content(client):
        _LOG.warning(
            "the marks of %.0f%% of a client's examples are a threshold of their values. Marks that follow content "
            "promise nothing: give marks that were made without looking at what is marked",
            100 * _share_of_thresholds(client),
        )


def marks_follow_content(client: ClientData) -> bool:
    """Whether the marks of most examples are a threshold of their own values, and are not the same in every example.

    The answer follows the values: nobody but the one who holds them may see it.
    """
    marks = marks_of(client)
    alike = bool((marks == marks[:1]).all())
    return not alike and _share_of_thresholds(client) >= _FOLLOWS


def _share_of_thresholds(client: ClientData) -> float:
    """Return the share of partly marked examples whose marks are a threshold of their values."""
    marks = marks_of(client).flatten(1)
    x = client.x.flatten(1).to(torch.float64)
    partly = marks.any(1) & ~marks.all(1)
    if not partly.any():
        return 0.0
    marks, x = marks[partly], x[partly]
    inside_low, inside_high = _ends(x, marks)
    outside_low, outside_high = _ends(x, ~marks)
    is_threshold = (inside_low > outside_high) | (inside_high < outside_low)
    return float(is_threshold.double().mean())


def _ends(x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest chosen value [N] of each row [N, F]."""
    low = x.masked_fill(~chosen, torch.inf).amin(1)
    high = x.masked_fill(~chosen, -torch.inf).amax(1)
    return low, high
