"""What a data set is once it is loaded, and how a missing one is refused."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.errors import FieldError


class MissingDataError(FieldError):
    """A data set that is not on this machine; the message says where it is to be had."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSet:
    """Examples in memory, with what is known about them.

    Attributes
    ----------
    name : str
        Its name among the sources.
    x : Tensor
        [N, *input_shape], float32.
    y : Tensor
        [N], int64 classes from 0 on, or [N, ...] float32 targets (then `classes` is 0).
    test_x, test_y : Tensor or None
        The set's own test half, for the server; None where it has none.
    classes : int
        Number of classes.
    class_names : tuple of str
        One a class, or empty.
    note : str
        What a report must say beside figures from this set.
    licence : str
        Of the data.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    classes: int = 0
    class_names: tuple[str, ...] = ()
    note: str = ""
    licence: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x.shape[1:])

    @property
    def outputs(self) -> int:
        """Outputs a model needs: the classes, or the targets of a regression."""
        return self.classes or (1 if self.y.dim() == 1 else int(self.y[0].numel()))
