"""Data sets from PyTorch's map-style data sets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.data.arrays import images
from fedveil.data.labels import Array, classes_in, data_set
from fedveil.data.sets import DataSet
from fedveil.errors import FieldError, kind_of, require_count, require_positive
from fedveil.learning.arrays import array_of, pair_of


def from_torch(
    dataset: Any,
    test: Any = None,
    *,
    name: str = "torch",
    classes: int | Sequence[str] = 0,
    absent: Sequence[int] = (),
    clients: Sequence[Any] | None = None,
    people: Sequence[Any] | None = None,
    channels: str = "auto",
    max_examples: int = 1_000_000,
    max_gib: float = 4.0,
) -> DataSet:
    """Read a map-style data set into memory, each example once and in order.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        Object with ``len`` and ``[i] -> (x, y)``. x is a tensor, an array, or a PIL image (uint8 is scaled by 1/255). y
        is an integer (a class), a floating-point target, or an integer tensor [H, W] (a class for each pixel). Random
        transforms would be drawn only once: leave them out.
    test : torch.utils.data.Dataset, optional
        Test half for the server.
    name : str
        Name in reports.
    classes : int or sequence of str
        Number of classes, or their names; by default one more than the largest label.
    absent : sequence of int
        Classes that may have no example; any other missing class is refused.
    clients : sequence, optional
        [N] integers or texts: the natural client of each example.
    people : sequence, optional
        [N] integers or texts: the person of each example.
    channels : {"auto", "first", "last"}
        Axis of the images' channels. "auto": the first for tensors, the last for PIL images, and for arrays as in
        `load_npz`.
    max_examples, max_gib
        Most examples, and most memory in GiB (4 bytes for each number).

    Raises
    ------
    FieldError
        For an unusable example; the text gives its index.

    Examples
    --------
    >>> pairs = torch.utils.data.TensorDataset(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
    >>> from_torch(pairs, classes=["ill", "well"]).class_names
    ('ill', 'well')
    """
    require_count("max_examples", max_examples)
    limit = int(require_positive("max_gib", max_gib) * 2**30)
    parts = {"dataset": dataset} if test is None else {"dataset": dataset, "test": test}
    halves: list[tuple[Tensor, Tensor]] = []
    labels: dict[str, Tensor] = {}
    for part, held in parts.items():
        x, y = _collect(part, held, channels, max_examples, limit)
        halves.append((x, y))
        labels[part] = y
    _require_like(halves[-1], halves[0])
    declared = classes if isinstance(classes, int) else len(classes)
    return data_set(
        halves,
        None if clients is None else ("clients", clients),
        None if people is None else ("people", people),
        name=name,
        classes=classes_in("classes", declared, absent, labels),
        counted=not declared,
        class_names=() if isinstance(classes, int) else tuple(classes),
        licence="that of the set",
    )


def _require_like(test: tuple[Tensor, Tensor], half: tuple[Tensor, Tensor]) -> None:
    """Refuse a test half with examples or labels of another shape or type."""
    x, y = half
    test_x, test_y = test
    same_labels = test_y.dtype == y.dtype and test_y.shape[1:] == y.shape[1:]
    if test_x.shape[1:] != x.shape[1:] or not same_labels:
        raise FieldError("test", (tuple(test_x.shape), tuple(test_y.shape)), "must be like dataset")


def _collect(
    name: str,
    dataset: Any,
    channels: str,
    max_examples: int,
    limit: int,
) -> tuple[Tensor, Tensor]:
    """Read all examples and labels of a set."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise FieldError(name, kind_of(dataset), "must be map-style: have len() and [i]")
    count = len(dataset)
    if not 1 <= count <= max_examples:
        raise FieldError(
            name,
            f"{count} examples",
            f"must hold 1 to {max_examples}; raise max_examples if it is meant",
        )
    example = dataset[0]
    first, truth = _pair(f"{name}[0]", example)
    if channels == "auto":
        channels = _channels_of(example[0])
    if first.size * count * 4 > limit:
        raise FieldError(
            name, first.shape, f"{count} of them take more than max_gib: raise it if it is meant"
        )
    x = np.empty((count, *first.shape), first.dtype)
    y = np.empty((count, *truth.shape), truth.dtype)
    for i in range(count):
        one, label = _pair(f"{name}[{i}]", dataset[i] if i else example)
        if one.shape != x.shape[1:] or one.dtype != x.dtype:
            accepted = f"must be {x.shape[1:]} {x.dtype}, as {name}[0]"
            raise FieldError(f"{name}[{i}]", (one.shape, str(one.dtype)), accepted)
        if label.shape != y.shape[1:] or label.dtype != y.dtype:
            raise FieldError(
                f"{name}[{i}]",
                label.tolist(),
                f"its label must be like that of {name}[0], {y.dtype}",
            )
        x[i] = one
        y[i] = label
    return images(x, channels, name), torch.from_numpy(y)


def _channels_of(image: Any) -> str:
    """Return the axis of an image's channels ("first", "last"), or "auto" if its class does not determine it."""
    if isinstance(image, Tensor):
        return "first"
    is_pillow = hasattr(image, "getbands")
    return "last" if is_pillow else "auto"


def _numbers(value: Any, field: str) -> Array:
    """Convert a value to an array; refuse numbers that are not finite."""
    numbers = (
        np.asarray(value.detach().cpu()) if isinstance(value, Tensor) else array_of(value, field)
    )
    if numbers.dtype.kind == "f" and not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise FieldError(field, "NaN or infinity", "must be finite")
    return numbers


def _pair(where: str, example: Any) -> tuple[Array, Array]:
    """Convert an example and its label to arrays."""
    inputs, label = pair_of(example, where)
    x = _numbers(inputs, f"{where}, x")
    y = _numbers(label, f"{where}, y")
    if y.dtype.kind == "f":
        return x, y.astype(np.float32)
    if y.ndim not in (0, 2):
        raise FieldError(f"{where}, y", y.shape, "must be one class, or one a pixel [H, W]")
    return x, y.astype(np.int64)
