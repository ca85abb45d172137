"""Data sets saved on disk by Hugging Face's `datasets` (``save_to_disk``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from fedveil.data.arrays import images
from fedveil.data.frames import TableSpec, from_rows, labelled
from fedveil.data.pictures import MAX_PIXELS, MODES, size_of, stack
from fedveil.data.rows import Rows
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.data.table import row_indices
from fedveil.errors import FieldError, nearest, require_choice, require_count, require_positive
from fedveil.registry import optional


@dataclass(frozen=True, kw_only=True)
class SavedDataset(TableSpec):
    """Hugging Face data set of images or of table columns, in a folder on disk; nothing is downloaded.

    `columns`, `scale` and `outside` do not apply to images.

    Parameters
    ----------
    path : str or Path
        Folder written by ``save_to_disk``, with one split or several.
    target : str
        Column to predict. A column of type ClassLabel has the names of its classes.
    split, test_split : str
        Split to distribute to clients, and split for the server's test half; without `test_split` there is none.
    image_column : str
        Column with the images; by default the only column of type Image. Without such a column the set is a table.
    mode : {"auto", "grey", "rgb"}
        Mode of images, as for a folder of images.
    size : sequence of int
        [height, width] in pixels to which images are resized.
    max_rows : int
        Most rows of a split.
    max_pixels : int
        Most pixels of an image.
    max_gib : float
        Most memory in GiB of the split on disk, and of its decoded images.
    """

    path: str | Path
    target: str = "label"
    split: str = "train"
    test_split: str = "test"
    image_column: str = ""
    mode: str = "auto"
    size: Sequence[int] = ()
    max_rows: int = 2_000_000
    max_pixels: int = MAX_PIXELS
    max_gib: float = 4.0

    def __post_init__(self) -> None:
        """Check nothing: `read` does it, as the classes may come from the data set."""

    def read(self) -> DataSet:
        """Read the examples into a data set.

        Raises
        ------
        FedVeilError
            If the package `datasets` is not installed.
        FieldError
            For an unusable value; the text names split, row (from 1) and column.
        """
        root = Path(self.path).expanduser()
        require_choice("data.mode", self.mode, MODES)
        require_count("data.max_rows", self.max_rows)
        limit = require_positive("data.max_gib", self.max_gib) * 2**30
        splits = _splits(root, self.split, self.test_split, self.max_rows, limit)
        first = next(iter(splits.values()))
        pictures = _pictures(first.features, self.image_column)
        require_choice("data.target", self.target, first.features)
        named = _class_names(first.features[self.target])
        meant: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(TableSpec)
        }
        meant["classes"] = self.classes or tuple(named or ())
        if pictures:
            meant["scale"] = "none"
        spec = TableSpec(**meant)
        note = f"From the Hugging Face data set in {root.name}."
        rows = [_frame(name, one, spec, pictures) for name, one in splits.items()]
        if not pictures:
            return from_rows("huggingface", rows[0], rows[1] if len(rows) > 1 else None, spec, note)
        count = sum(len(one) for one in splits.values())
        how = {
            "mode": self.mode,
            "size": size_of(self.size),
            "max_pixels": self.max_pixels,
            "max_bytes": limit / count,
        }
        column = self.image_column or pictures[0]
        x = [_stacked(name, one, column, how) for name, one in splits.items()]
        if x[-1].shape[1:] != x[0].shape[1:]:
            accepted = f"must be like those of {self.split}, {tuple(x[0].shape[1:])}: set data.size or data.mode"
            raise FieldError(self.test_split, tuple(x[-1].shape[1:]), accepted)
        return labelled(rows, x, spec, name="huggingface", note=note, licence="that of the set")


def _class_names(kind: Any) -> Sequence[str]:
    """Return the class names of a column of type ClassLabel, or of lists of ClassLabels; empty for other columns."""
    names = getattr(kind, "names", None)
    of_items = getattr(getattr(kind, "feature", None), "names", None)
    return names or of_items or ()


def _pictures(features: Mapping[str, Any], image_column: str) -> list[str]:
    """Return the names of the image columns: the chosen one, or the only one of type Image."""
    pictures = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
    if image_column:
        require_choice("data.image_column", image_column, pictures)
    elif len(pictures) > 1:
        raise FieldError(
            "data.image_column", None, f"several columns hold images: {', '.join(pictures)}"
        )
    return pictures


def _splits(
    root: Path,
    split: str,
    test_split: str,
    max_rows: int,
    limit: float,
) -> dict[str, Any]:
    """Open the requested splits, by name."""
    if not root.is_dir():
        raise MissingDataError(
            "data.path", str(root), "is no folder: give one that save_to_disk wrote"
        )
    library = _library()
    try:
        stored = library.load_from_disk(str(root))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FieldError(
            "data.path", str(root), f"is not what save_to_disk writes ({error})"
        ) from error
    splits: dict[str, Any] = {}
    if not isinstance(stored, library.DatasetDict):
        splits[root.name] = stored
    elif split not in stored:
        raise FieldError("data.split", split, nearest(split, list(stored)))
    else:
        splits[split] = stored[split]
        if test_split in stored:
            splits[test_split] = stored[test_split]
    for name, one in splits.items():
        if not len(one):
            raise FieldError(name, 0, "this split holds no row")
        if len(one) > max_rows:
            raise FieldError(
                name, f"{len(one)} rows", f"raise data.max_rows ({max_rows}) if it is meant"
            )
        if one.data.nbytes > limit:
            raise FieldError(
                name, f"{one.data.nbytes / 2**30:.1f} GiB", "raise data.max_gib if it is meant"
            )
    return splits


def _frame(name: str, split: Any, spec: TableSpec, pictures: Sequence[str]) -> Rows:
    """Return the columns without images, with names of classes in place of numbers."""
    table = split.remove_columns(list(pictures)).with_format(None)
    frame = table.to_pandas()
    names = _class_names(table.features.get(spec.target))
    if names and not isinstance(spec.classes, int):

        def name_of(value: Any) -> Any:
            if hasattr(value, "__len__"):
                return [name_of(one) for one in value]
            is_number = value is not None and value == value
            return names[value] if is_number and 0 <= value < len(names) else None

        frame[spec.target] = [name_of(value) for value in frame[spec.target]]
    return Rows(name, frame, index=row_indices(frame))


def _stacked(name: str, split: Any, column: str, how: Mapping[str, Any]) -> Tensor:
    """Decode all images of a column to one tensor."""
    raw = (
        split.cast_column(column, _library().Image(decode=False))
        .with_format(None)
        .select_columns([column])
    )

    def content(i: int, row: Mapping[str, Any]) -> tuple[str, bytes]:
        where = f"{name}, row {i + 1}, column {column}"
        stored = row[column] or {}
        if stored.get("bytes") is None:
            raise FieldError(
                where,
                stored.get("path"),
                "must hold the image itself: save_to_disk embeds what is there",
            )
        return where, stored["bytes"]

    _, first = content(0, raw[0])
    files = (content(i, row) for i, row in enumerate(raw))
    pixels = stack(files, len(split), ("row 1", first), **how)
    return images(pixels, "last")


def _library() -> Any:
    return optional("datasets", "reading Hugging Face data sets needs their library", "datasets")
