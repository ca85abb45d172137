"""Data of one client: its training examples, and the examples held out for evaluation.

Small PyTorch data sets are read into memory, large ones one batch at a time.
"""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
)

from fedveil.errors import FieldError, kind_of, require_a
from fedveil.learning.arrays import array_of, columns_of, pair_of, refuse_misaligned, tensor_of

MOST = 1 << 30  # bytes of one client's examples that are held in memory
VOID = (
    -1,
    -100,
)  # negative labels that count as nothing if the loss ignores them (`ignore_index`)
CHUNK = 256  # examples read at once


class OnDemand(Tensor):
    """Examples [N, ...] that are read only when rows are requested, for data too large for memory.

    Indexing and joining are the only operations; a computation on all rows at once is refused.

    Parameters
    ----------
    read : callable
        Function from a list of row numbers (at least one) to a tensor of these examples.
    shape : sequence of int
        Shape of all examples together.
    dtype : torch.dtype
        Type of the examples.
    """

    _read: Callable[[Sequence[int]], Tensor]

    @staticmethod
    def __new__(
        cls,
        read: Callable[[Sequence[int]], Tensor],
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> "OnDemand":
        wrapper = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        wrapper._read = read
        return wrapper

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        takes_rows = function in (Tensor.__getitem__, Tensor.index_select)
        if takes_rows and isinstance(args[0], cls):
            return args[0]._rows(args[-1])
        if function is torch.cat:
            return _joined(args[0])
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    def _rows(self, index: Any) -> Tensor:
        """Read the rows with these numbers, or a slice of rows."""
        rows = index.tolist() if isinstance(index, Tensor) else range(len(self))[index]
        if not len(rows):
            return torch.empty((0, *self.shape[1:]), dtype=self.dtype)
        return self._read(rows)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        accepted = (
            f"{func} needs all examples in memory: give this client as tensors, or fewer examples"
        )
        raise FieldError("x", "a data set read one batch at a time", accepted)


def _joined(parts: Sequence[Tensor]) -> OnDemand:
    """Join the examples of several clients in order."""
    ends = list(accumulate(len(part) for part in parts))

    def read(rows: Sequence[int]) -> Tensor:
        found: list[Tensor] = []
        for row in rows:
            at = bisect(ends, row)
            first = ends[at] - len(parts[at])
            found.append(parts[at][torch.tensor([row - first])])
        return torch.cat(found)

    return OnDemand(read, (ends[-1], *parts[0].shape[1:]), parts[0].dtype)


@dataclass(frozen=True, eq=False)
class ClientData:
    """Training examples of one client, with optional held-out examples, masks and persons.

    Parameters
    ----------
    x : Tensor
        [N, ...], floating point, or int64 indices for an embedding layer. N = 0 is allowed: such a client returns the
        model that it received.
    y : Tensor
        [N, ...], int64 classes from 0 on, or floating-point targets.
    test_x, test_y : Tensor, optional
        Held-out examples of the same kinds, never trained on.
    name : str
        Name in reports.
    masks : Tensor, optional
        bool, True at the privacy-sensitive coordinates of each example: in the shape of x, or [N, H, W] for all
        channels of images [N, C, H, W]. Some methods protect these regions, others score layers on them (pixels only).
        The masks are taken as public.
    person : Tensor, optional
        int64 [N], number of the person of each example of x, for methods that protect persons. Rows with equal numbers
        are one person's; the values do not matter otherwise.
    test_person : Tensor, optional
        The same for test_x; an audit uses it to attack a person's membership.
    buffers : mapping of str to Tensor, optional
        Running statistics and counters that never leave the client (``Shared(buffers="keep")``). Default: the model's
        own.

    Raises
    ------
    FieldError
        For a wrong type, different lengths or shapes, NaN or infinity, or a negative class.

    Examples
    --------
    >>> ward = fv.ClientData(x[:30], y[:30], x[30:40], y[30:40], name="ward 7")
    >>> ward.examples
    30
    """

    x: Tensor
    y: Tensor
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    name: str = ""
    masks: Tensor | None = None
    person: Tensor | None = None
    test_person: Tensor | None = None
    buffers: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        """Refuse data that cannot be trained on."""
        _check("x", self.x, "y", self.y)
        for name in ("test_x", "test_y", "masks"):
            if getattr(self, name) is not None:
                require_a(
                    name, getattr(self, name), Tensor, "must be a tensor with one row an example"
                )
        if self.buffers is not None:
            require_a("buffers", self.buffers, Mapping, "must be a table of names and tensors")
        if self.masks is not None:
            _check_masks(self.masks, self.x)
        _check_owners("person", self.person, self.examples)
        _check_owners("test_person", self.test_person, self.held_out)
        if self.test_x is None and self.test_y is None:
            return
        if self.test_x is None or self.test_y is None:
            absent = "test_x" if self.test_x is None else "test_y"
            raise FieldError(absent, None, "test_x and test_y go together")
        _check("test_x", self.test_x, "test_y", self.test_y)
        _check_same_kind("test_x", self.test_x, self.x)
        _check_same_kind("test_y", self.test_y, self.y)

    @cached_property
    def examples(self) -> int:
        """Number of training examples N."""
        return len(self.x)

    @cached_property
    def held_out(self) -> int:
        """Number of held-out examples."""
        return 0 if self.test_x is None else len(self.test_x)


def _check_masks(masks: Tensor, x: Tensor) -> None:
    """Refuse masks that do not mark coordinates of x or pixels of its images."""
    pixels = (len(x), *x.shape[2:])
    fits = masks.shape == x.shape or (x.dim() == 4 and tuple(masks.shape) == pixels)
    if masks.dtype != torch.bool or not fits:
        given = (tuple(masks.shape), masks.dtype)
        of_pixels = f", or {pixels} for all channels" if x.dim() == 4 else ""
        raise FieldError(
            "masks", given, f"must be bool of the shape of x, {tuple(x.shape)}{of_pixels}"
        )


def _check_owners(field: str, owner: Any, n: int) -> None:
    """Refuse anything but one person number for each of n examples."""
    if owner is None:
        return
    is_numbers = isinstance(owner, Tensor) and owner.dtype == torch.int64
    if not is_numbers or tuple(owner.shape) != (n,):
        accepted = f"must be a tensor of int64 [{n}], one number an example: torch.as_tensor(ids)"
        size = (len(owner),) if hasattr(owner, "__len__") else ()
        raise FieldError(field, (type(owner).__name__, *size), accepted)


def _check_same_kind(name: str, test: Tensor, train: Tensor) -> None:
    """Refuse held-out examples of another shape or number type than the training examples."""
    same_kind = test.is_floating_point() == train.is_floating_point()
    if test.shape[1:] != train.shape[1:] or not same_kind:
        given = (tuple(test.shape), test.dtype)
        raise FieldError(name, given, f"must be like {name.removeprefix('test_')}")


def _check(x_name: str, x: Tensor, y_name: str, y: Tensor) -> None:
    """Refuse examples and labels that are not finite numbers, or differ in number."""
    _check_numbers(
        x_name,
        x,
        "must be floating point (for images e.g. x.float() / 255), or int64 for numbers of words",
    )
    _check_numbers(y_name, y, "must be int64 (classes) or floating point (targets)")
    if len(x) != len(y):
        raise FieldError(y_name, len(y), f"must be as long as {x_name}, which has {len(x)} rows")
    if y.dtype == torch.int64 and y.numel() and int(y.min()) < 0:
        negative = y[(y < 0) & ~torch.isin(y, torch.tensor(VOID))]
        if len(negative):
            void = " or ".join(map(str, VOID))
            raise FieldError(
                y_name,
                int(negative.min()),
                f"classes are numbered from 0 on; a void label is {void}",
            )


def _check_numbers(name: str, value: Tensor, accepted: str) -> None:
    """Refuse anything but a tensor of finite or whole numbers."""
    if not isinstance(value, Tensor) or value.dim() < 1:
        raise FieldError(name, kind_of(value), "must be a tensor with one row an example")
    if value.dtype == torch.int64:
        return
    if not value.is_floating_point():
        raise FieldError(name, value.dtype, accepted)
    if isinstance(value, OnDemand):
        return
    finite = torch.isfinite(value)
    if not finite.all():
        is_odd = (~finite).reshape(len(value), -1).any(1)
        row = int(is_odd.nonzero()[0])
        raise FieldError(
            f"{name}[{row}]", "NaN or infinity", "must be finite: remove the row or fill it in"
        )


def as_client(value: ClientData | Sequence[Any], name: str) -> ClientData:
    """Convert a tuple of tensors or arrays, or a PyTorch data set or loader, to `ClientData`.

    A pair of data sets or loaders is read as training and held-out examples. `ClientData` is returned unchanged.
    """
    if isinstance(value, ClientData):
        return value
    if isinstance(value, Dataset | DataLoader) or _is_map_style(value):
        return _read(value, name)
    if (
        isinstance(value, Sequence)
        and len(value) == 2
        and isinstance(value[0], Dataset | DataLoader)
    ):
        training, held_out = value
        train = as_client(training, f"{name}[0]")
        test = as_client(held_out, f"{name}[1]")
        return ClientData(train.x, train.y, test.x, test.y)
    if not isinstance(value, Sequence) or len(value) not in (2, 4):
        others = "a Dataset, a DataLoader, or two of them, the second held out"
        accepted = f"must be (x, y), (x, y, test_x, test_y) or ClientData, in a list of clients; or {others}"
        kind = kind_of(value)
        parts = f"{kind} of {len(value)} parts" if isinstance(value, tuple | list) else kind
        raise FieldError(name, parts, accepted)
    names = ("x", "y", "test_x", "test_y")
    for at in range(0, len(value), 2):
        refuse_misaligned(value[at], value[at + 1], f"{name}.{names[at + 1]}")
    if columns_of(value[0]) != columns_of(value[-2]):
        accepted = "must have the columns of x, in the same order"
        raise FieldError(f"{name}.test_x", columns_of(value[-2]), accepted)
    tensors: list[Tensor] = []
    for part, numbers in zip(names, value, strict=False):
        tensors.append(tensor_of(numbers, f"{name}.{part}", labels=part.endswith("y")))
    try:
        return ClientData(*tensors)  # type: ignore[arg-type]
    except FieldError as error:
        raise FieldError(f"{name}.{error.field}", error.value, error.accepted) from error


def _is_map_style(value: Any) -> bool:
    """Whether a value is a map-style data set (has ``len`` and ``[i]``), and no array, frame or list."""
    if (
        isinstance(value, Sequence | Mapping | Tensor)
        or hasattr(value, "to_numpy")
        or hasattr(value, "__array__")
    ):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _plain(sample: Any, name: str) -> tuple[Any, Any]:
    """Return the two parts of a sample, with arrays in a type that PyTorch accepts."""
    x, y = pair_of(sample, name)
    if isinstance(x, np.ndarray):
        x = array_of(x, f"{name}, x")
    if isinstance(y, np.ndarray):
        y = array_of(y, f"{name}, y")
    return x, y


def _check_sampling(loader: "DataLoader[Any]", name: str) -> None:
    """Refuse a loader that leaves out examples. Warn if it repeats or drops some, as FedVeil uses each example once an epoch."""
    sampler = loader.sampler
    batches = loader.batch_sampler
    accepted = "uses all examples of its data set: give Subset(dataset, indices) for some of them"
    if batches is not None and type(batches) is not BatchSampler:
        kind = type(batches).__name__
        raise FieldError(
            f"{name}.batch_sampler", kind, f"{accepted}, not a batch sampler (in {name})"
        )
    dropped = loader.drop_last
    if batches is not None:  # a batch sampler has its own sampler and `drop_last`
        sampler, dropped = batches.sampler, batches.drop_last
    kind = type(sampler).__name__
    if not isinstance(sampler, SequentialSampler | RandomSampler | WeightedRandomSampler):
        raise FieldError(f"{name}.sampler", kind, f"{accepted}, not a sampler (in {name})")
    if _repeats(sampler, len(loader.dataset)):  # type: ignore[arg-type]
        unused = f"{name}: its {kind} is not used, every example counts once an epoch"
        fix = "for classes of unequal size give the loss weights: CrossEntropyLoss(weight=...)"
        warn(f"{unused}; {fix}", stacklevel=5)
    if dropped:
        warn(
            f"{name}: drop_last is not used, the last batch of an epoch may be smaller",
            stacklevel=5,
        )


def _repeats(sampler: Any, examples: int) -> bool:
    """Whether a sampler draws examples more than once."""
    if isinstance(sampler, WeightedRandomSampler):
        return True
    return isinstance(sampler, RandomSampler) and (
        sampler.replacement or sampler.num_samples != examples
    )


def _read(value: Any, name: str) -> ClientData:
    """Read a map-style data set once, to check every example and collect the labels.

    From a loader the data set and the ``collate_fn`` are used; `LocalTraining` sets the size and order of batches. A
    sampler that leaves out examples is refused; one that repeats them gives a warning. If the examples take more than a
    GiB (`MOST`), each batch is read when it is used. Random transforms are then drawn again each time.

    Parameters
    ----------
    value : Dataset or DataLoader
        Object with ``len`` and ``[i] -> (x, y)``, whose parts are tensors, arrays or numbers.
    name : str
        Name of the data in refusals.

    Raises
    ------
    FieldError
        If the data set has no length, is empty, or has an unusable example.
    """
    data: Any = value
    collate: Any = default_collate
    if isinstance(value, DataLoader):
        data = value.dataset
        collate = value.collate_fn
        _check_sampling(value, name)
    if isinstance(data, IterableDataset) or not len(data):
        accepted = "must have a length of at least 1 and [i]: give a map-style Dataset, or its examples as a list"
        raise FieldError(name, kind_of(data), accepted)

    def read(rows: Sequence[int]) -> ClientData:
        try:
            samples = [data[i] for i in rows]
            if collate is default_collate:
                samples = [
                    _plain(sample, f"{name}[{i}]") for i, sample in zip(rows, samples, strict=True)
                ]
            read = as_client(pair_of(collate(samples), f"{name}, a batch"), name)
            if len(read.x) != len(rows):
                raise FieldError(
                    f"{name}, a batch",
                    len(read.x),
                    f"must hold all {len(rows)} samples: see collate_fn",
                )
            return read
        except FieldError:
            raise
        except Exception as error:  # the data set is the user's code
            accepted = f"must give pairs (x, y) of numbers, all x of one shape ({error}); for images add ToTensor()"
            raise FieldError(
                f"{name}, examples {rows[0]} to {rows[-1]}", kind_of(data), accepted
            ) from error

    def read_x(rows: Sequence[int]) -> Tensor:
        return read(rows).x

    count = len(data)
    first = read([0])
    fits = first.x.nbytes * count <= MOST
    x: list[Tensor] = []
    y: list[Tensor] = []
    for start in range(0, count, CHUNK):
        part = read(range(start, min(start + CHUNK, count)))
        y.append(part.y)
        if fits:
            x.append(part.x)
    if fits:
        return ClientData(torch.cat(x), torch.cat(y))
    return ClientData(OnDemand(read_x, (count, *first.x.shape[1:]), first.x.dtype), torch.cat(y))
