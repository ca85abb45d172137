"""Loaded data sets, the folders that are searched for them, and the refusal of a missing one."""

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.errors import FieldError, require_choice

if TYPE_CHECKING:  # sets are listed without PyTorch, which takes seconds to load
    from torch import Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSet:
    """Data set in memory: examples, labels, and facts about them.

    Attributes
    ----------
    name : str
        Name in the registry of sources.
    x : Tensor
        [N, *input_shape], float32.
    y : Tensor
        int64 classes from 0 on, one for each example [N] or each pixel [N, H, W]; or float32 targets [N, ...] (then
        `classes` is 0).
    test_x, test_y : Tensor or None
        Test half of the set, for the server; None without one.
    classes : int
        Number of classes.
    counted : bool
        Whether the number of classes was counted from the labels. A single record may then change it.
    class_names : tuple of str
        One name for each class, or empty.
    owner : Tensor or None
        [N] int64, natural client (writer, hospital) of each example; None without natural clients.
    owners : tuple of str
        Names of the natural clients; `owner` holds indices into them.
    group : Tensor or None
        [N] int64, group of each example, such as the tiles of a document or the slices of a person. A group goes to one
        client; a natural client keeps its own examples of a group. At a client a group is either in the training part
        or in the held-out part. ``unit = "person"`` protects groups. None: every example is its own group.
    attributes : mapping of str to Tensor
        Public facts about the natural clients, float64 [len(owners)] each, e.g. the place of a hospital.
    local_columns : tuple of int
        Columns of `x` that every client standardises by the mean and deviation of its own training rows.
    columns : tuple of str
        Of a table: the file's column behind each column of `x`. A column of texts, or one with an indicator of gaps, is
        named several times. Empty where columns have no names.
    regions : Tensor or None
        [N, H, W] uint8, sensitive pixels of each image: bit j of a pixel stands for `region_names[j]`.
    region_names : tuple of str
        Names of the sensitive kinds, at most 8.
    inputs : mapping
        Declared constants that turn a row or image of a file into an example, as plain values. They depend on no data.
        Empty if the set has no such file.
    note : str
        Caveat that a report prints with figures from this set.
    licence : str
        Licence of the data.
    """

    name: str
    x: "Tensor"
    y: "Tensor"
    test_x: "Tensor | None" = None
    test_y: "Tensor | None" = None
    classes: int = 0
    counted: bool = False
    class_names: tuple[str, ...] = ()
    owner: "Tensor | None" = None
    owners: tuple[str, ...] = ()
    group: "Tensor | None" = None
    attributes: "Mapping[str, Tensor]" = field(default_factory=dict)
    local_columns: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    regions: "Tensor | None" = None
    region_names: tuple[str, ...] = ()
    inputs: "Mapping[str, Any]" = field(default_factory=dict)
    note: str = ""
    licence: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x.shape[1:])

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs: classes, or targets of a regression."""
        if self.classes:
            return self.classes
        return 1 if self.y.dim() == 1 else int(self.y[0].numel())

    @property
    def task(self) -> str:
        """``"classification"``, ``"segmentation"`` (a class for each pixel) or ``"regression"``."""
        if not self.classes:
            return "regression"
        return "classification" if self.y.dim() == 1 else "segmentation"

    def names(self) -> tuple[str, ...]:
        """Return the names of the classes, or their numbers."""
        return self.class_names or tuple(map(str, range(self.classes)))

    def take(self, rows: "Tensor") -> "DataSet":
        """Return a copy with only some of the examples to distribute; the test half is unchanged."""

        def taken(values: "Tensor | None") -> "Tensor | None":
            return None if values is None else values[rows]

        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            owner=taken(self.owner),
            group=taken(self.group),
            regions=taken(self.regions),
        )

    def sensitive(self, kinds: Sequence[str]) -> "Tensor":
        """Return a mask of the pixels that show one of these kinds, bool [N, H, W].

        Raises
        ------
        FieldError
            For a kind that is not in `region_names`.
        """
        if self.regions is None:
            raise FieldError(
                "data.sensitive",
                list(kinds),
                f"{self.name} does not say where its images are sensitive",
            )
        for kind in kinds:
            require_choice("data.sensitive", kind, self.region_names)
        chosen = 0
        for kind in kinds:
            chosen |= 1 << self.region_names.index(kind)
        return (self.regions & chosen) != 0


def with_positive(dataset: DataSet, positive: str) -> DataSet:
    """Return a data set of two classes with the named one as class 1; if it was class 0, both are exchanged.

    Raises
    ------
    FieldError
        If there are not two classes, or neither has this name.
    """
    names = dataset.names()
    if dataset.classes != 2:
        accepted = f"names one of two classes, and {dataset.name} has {dataset.classes or 'none'}: leave it out"
        raise FieldError("data.positive", positive, accepted)
    require_choice("data.positive", positive, names)
    if positive == names[1]:
        return dataset

    def swapped(labels: "Tensor") -> "Tensor":
        return labels.where(labels < 0, 1 - labels)

    test_y = None if dataset.test_y is None else swapped(dataset.test_y)
    return replace(dataset, y=swapped(dataset.y), test_y=test_y, class_names=names[::-1])


def own_scale(x: "Tensor", columns: tuple[int, ...], reference: "Tensor") -> "Tensor":
    """Standardise columns by the means and deviations of one party's own rows.

    Parameters
    ----------
    x : Tensor
        [N, F], rows to standardise.
    columns : tuple of int
        Numbers of the columns; without any, `x` itself is returned.
    reference : Tensor
        [M, F], rows of the same party, whose statistics are used. A constant column is only centred; without rows
        nothing is changed.
    """
    if not columns or not len(reference):
        return x
    import torch

    chosen = torch.tensor(columns)
    own = reference[:, chosen].to(torch.float64)
    deviation = own.std(0, correction=0)
    divisor = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    centred = x[:, chosen].to(torch.float64) - own.mean(0)
    scaled = x.clone()
    scaled[:, chosen] = (centred / divisor).to(x.dtype)
    return scaled


ALZHEIMER_FILE = "alzheimer_mri_128_jpeg.npz"
# Checksum of all its arrays but class_names.
ALZHEIMER_CONTENT = "9aaa097278f96243b873d24a089995c536e1e54e4de3fed271043fed385c4217"
ALZHEIMER_OFFICIAL = (
    "Alzheimer MRI, Hugging Face data set Falah/Alzheimer_MRI (6,400 images; the file holds them as one npz: jpeg "
    "(uint8, all images one after another), offsets (6401), labels, class_names, split_kaggle, split_hf_counts)"
)


class MissingDataError(FieldError):
    """Refusal of a data set that is not on this machine; the text says where to get it."""


def data_folders() -> list[Path]:
    """Return the folders that are searched for data: FEDVEIL_DATA, or ``../shared/data`` relative to the checkout."""
    named = os.environ.get("FEDVEIL_DATA")
    if named:
        return [Path(named).expanduser()]
    beside = Path("..", "shared", "data")
    here = (Path.cwd() / beside).resolve()
    checkout = (Path(__file__).parents[3] / beside).resolve()
    return [here] if here == checkout else [here, checkout]


def find(file: str) -> Path | None:
    """Return the path of a data file; None if it is on no searched folder."""
    for folder in data_folders():
        if (folder / file).is_file():
            return folder / file
    return None


def locate(name: str, file: str, official: str) -> Path:
    """Return the path of a data file, or refuse if it is missing.

    Raises
    ------
    MissingDataError
        If the file is missing; the text says where to get the official set.
    """
    path = find(file)
    if path is None:
        to_do = "Put it into a folder and set the variable FEDVEIL_DATA to that folder"
        needed = (
            f"needs the file {file}, which was not found. {to_do}. The official set: {official}"
        )
        raise MissingDataError("data.name", name, needed)
    return path


def cache_folder() -> Path:
    """Return the folder for decoded copies: FEDVEIL_CACHE, or ``~/.cache/fedveil``."""
    named = os.environ.get("FEDVEIL_CACHE")
    folder = Path(named or Path("~", ".cache", "fedveil"))
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise FieldError(
            "FEDVEIL_CACHE", named, "must be a folder: this user has no home folder"
        ) from error


def prepared_alzheimer() -> list[str]:
    """List the options of the Alzheimer set that have a decoded copy in the cache."""
    resolutions: set[int] = set()
    for path in cache_folder().glob("alzheimer-*.npz"):
        kind = path.name.split("-")[1].removesuffix(".npz")
        if kind.isdigit() and zipfile.is_zipfile(path):
            resolutions.add(int(kind))
    return [f"resolution={resolution}" for resolution in sorted(resolutions)]
