"""Registry of data sets by name: listing, checking whether they are on this machine, and loading."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fedveil.data.sets import ALZHEIMER_FILE, ALZHEIMER_OFFICIAL, find, prepared_alzheimer
from fedveil.errors import FieldError, nearest
from fedveil.registry import Registry

if TYPE_CHECKING:
    from fedveil.data.sets import DataSet


class Later:
    """Function that is imported only when it is called or its signature is read.

    Parameters
    ----------
    place : str
        Place of the function, ``package.module:function``.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        function: Callable[..., Any] = resolve_name(self._place)
        return function

    def __call__(self, **options: Any) -> Any:
        return self.__wrapped__(**options)


@dataclass(frozen=True)
class SourceInfo:
    """Entry of the registry: how to load a data set, and what it needs.

    Attributes
    ----------
    description, size, licence : str
        One line each.
    load : callable
        Function that returns the `DataSet`, or a class with a method `read` that does. Its keyword parameters are the
        options of the set.
    prepare : callable or None
        Function that decodes and caches the set and returns the path; None if the set needs none.
    prepared : callable or None
        Function that lists the options with a cached copy, as texts.
    files : tuple of tuple of str
        Needed files; one file of each entry is enough.
    official : str
        Official source of the files, with licence and size.
    natural : bool
        Whether the examples always have natural clients.
    """

    description: str
    size: str
    licence: str
    load: Callable[..., Any]
    prepare: Callable[..., Path] | None = None
    prepared: Callable[[], list[str]] | None = None
    files: tuple[tuple[str, ...], ...] = ()
    official: str = ""
    natural: bool = False

    @property
    def missing(self) -> list[str]:
        """Needed files that are not on this machine."""
        missing: list[str] = []
        for names in self.files:
            if not any(map(find, names)):
                missing.append(names[0])
        return missing

    @property
    def available(self) -> bool:
        """Whether the set can be loaded on this machine now."""
        return not self.missing

    @property
    def here(self) -> str:
        """Describe whether the set is on this machine, and which options have a decoded copy."""
        if self.available:
            return "yes"
        needs = f"needs {', '.join(self.missing)}"
        copies = self.prepared() if self.prepared else []
        if copies:
            return f"as prepared ({', '.join(copies)}); else {needs}"
        return f"no: {needs}"


def _source(
    what: str,
    place: str,
    size: str = "any",
    licence: str = "yours",
    **rest: Any,
) -> SourceInfo:
    """Make an entry from the place of its loading function; defaults are those of a user's own files."""
    return SourceInfo(what, size, licence, Later(f"fedveil.data.{place}"), **rest)


CC = "CC BY 4.0"
SOURCES: Registry[SourceInfo] = Registry(
    "data.name",
    {
        "digits": _source(
            "handwritten digits, 8x8 grey, 10 classes", "bundled:load_digits", "1,797 images", CC
        ),
        "breast-cancer": _source(
            "30 measurements of cells, 2 classes", "bundled:load_breast_cancer", "569 rows", CC
        ),
        "npz": _source("your own arrays: x_train and y_train in one npz file", "arrays:load_npz"),
        "folder": _source("your own images: a folder a class", "folder:load_folder"),
        "table": _source("your own table: CSV or parquet", "table:TableFile"),
        "huggingface": _source("a Hugging Face data set saved on disk", "huggingface:SavedDataset"),
        "documents": _source("your own pages with masks of forgeries", "documents:load_documents"),
        "leaf": _source(
            "your own files of LEAF's form, such as FEMNIST", "leaf:load_leaf", natural=True
        ),
        "alzheimer": _source(
            "Alzheimer MRI slices, 128x128 grey, 4 classes",
            "bundled:load_alzheimer",
            "6,400 images",
            "ODbL",
            prepare=Later("fedveil.data.bundled:prepare_alzheimer"),
            prepared=prepared_alzheimer,
            files=((ALZHEIMER_FILE,),),
            official=ALZHEIMER_OFFICIAL,
        ),
    },
    group="fedveil.sources",
)


def load(name: str, **options: Any) -> "DataSet":
    """Load a data set by name.

    Parameters
    ----------
    name : str
        Name in ``SOURCES``.
    **options
        Options of its loader, e.g. ``path=...`` for ``"npz"`` or ``resolution=64`` for ``"alzheimer"``.

    Raises
    ------
    FieldError
        For an unknown name or option, or unusable data.
    MissingDataError
        If the set is not on this machine.

    Examples
    --------
    >>> load("digits").input_shape
    (1, 8, 8)
    """
    make = SOURCES.choose(name).load
    _check(name, make, options)
    dataset = make(**options)
    examples: DataSet = dataset.read() if hasattr(dataset, "read") else dataset
    return examples


def prepare(name: str, **options: Any) -> Path | None:
    """Decode and cache a data set, and return the path of the copy; None for a set without a cache."""
    make = SOURCES.choose(name).prepare
    if make is None:
        return None
    _check(name, make, options)
    return make(**options)


def _check(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse unknown options, and missing required ones."""
    parameters = inspect.signature(function).parameters
    for option in options:
        if option not in parameters:
            hint = nearest(option, parameters) if parameters else "it has none"
            raise FieldError(
                f"data.{option}", options[option], f"{name} has no such option; {hint}"
            )
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            raise FieldError(f"data.{option}", None, f"{name} needs it")
