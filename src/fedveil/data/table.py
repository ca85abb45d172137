"""Data sets from tables: CSV and parquet files with one example in each row."""

import codecs
import gzip
import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.data.frames import TableSpec, from_rows
from fedveil.data.rows import Rows
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.data.values import PLAIN, Style, is_number, is_time, pandas_module
from fedveil.errors import FieldError, require_a, require_count, require_positive
from fedveil.registry import optional

if TYPE_CHECKING:
    import pandas


UNNAMED = "Unnamed: 0"  # name that pandas.read_csv gives to a first column without one
RESET = "index"  # name that reset_index gives to one: a column of that name may also be an input
INDEX = r"Unnamed: \d+|__index_level_\d+__|level_\d+"  # names that pandas gives to a row index that it wrote or read
_UTF8 = (
    """name what it is, data.encoding = 'cp1252' (Windows) or 'latin-1', say, or save it as UTF-8"""
)
_PIECE = 1 << 24  # bytes that are read at once
_HEADERLESS = "is named by a number or a date, as its values are: put a header line first"


@dataclass(frozen=True, kw_only=True)
class TableFile(TableSpec):
    """Table in a file with a header line: path and format of the file; `TableSpec` declares its columns.

    Parameters
    ----------
    path : str or Path
        File ``.csv``, ``.csv.gz`` or ``.parquet`` (needs pyarrow).
    test_path : str
        Second file with the server's test half.
    separator, decimal : str
        Separator and decimal sign of CSV files, e.g. ``";"`` and ``","``.
    thousands : str
        Sign between groups of digits in a CSV file: ``","``, ``"."``, ``"'"`` or a space. By default numbers with such
        a sign are refused.
    encoding : str
        Encoding of CSV files, by Python's name, e.g. ``"cp1252"`` or ``"utf-16"``.
    max_rows : int
        Most rows of a file.
    max_gib : float
        Most memory in GiB of an unpacked file.
    """

    path: str | Path
    test_path: str = ""
    separator: str = ","
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    max_rows: int = 2_000_000
    max_gib: float = 1.0

    def read(self) -> DataSet:
        """Read the examples into a data set.

        Raises
        ------
        FieldError
            For an unusable value; the text names file, row (from 1, without the header) and column.
        """
        require_count("data.max_rows", self.max_rows)
        max_bytes = int(require_positive("data.max_gib", self.max_gib) * 2**30)
        style = Style(self.decimal, self.thousands)
        how = (self.separator, style, (self.max_rows, max_bytes), self.encoding)
        train = read_table("data.path", self.path, *how)
        test = read_table("data.test_path", self.test_path, *how) if self.test_path else None
        made = from_rows("table", train, test, self, f"From the file {train.file}.")
        written = {
            "separator": self.separator,
            "decimal": self.decimal,
            "thousands": self.thousands,
            "encoding": self.encoding,
        }
        return replace(made, inputs={**made.inputs, **written})


def read_table(
    field: str,
    path: str | Path,
    separator: str,
    style: Style,
    bounds: tuple[int, int],
    encoding: str = "utf-8",
) -> Rows:
    """Read the rows of a CSV or parquet file.

    Parameters
    ----------
    field : str
        Name of the file's option, for refusals.
    path : str or Path
        Path of the file.
    separator : str
        Separator of CSV values.
    style : Style
        How numbers are written in the file.
    bounds : tuple of int
        Most rows, and most bytes of the unpacked file.
    encoding : str
        Encoding of CSV.
    """
    require_a(field, path, (str, Path), "must be the path of a table")
    require_a("data.separator", separator, str, "must be one character")
    file = Path(path).expanduser()
    if not file.is_file():
        raise MissingDataError(
            field, str(file), "is no file: give the path of a .csv, .csv.gz or .parquet file"
        )
    name = file.name.lower()
    max_rows, max_bytes = bounds
    if name.endswith(".parquet"):
        frame, index = _parquet(field, file, max_rows, max_bytes)
        lines = False
        style = PLAIN
    elif name.endswith((".csv", ".csv.gz")):
        content = _text(field, file, encoding, _unpacked(field, file, max_bytes))
        frame, lines = _csv(field, file, separator, max_rows, content)
        index = row_indices(frame)
    else:
        raise FieldError(field, str(file), "must end in .csv, .csv.gz or .parquet")
    if not len(frame):
        raise FieldError(field, str(file), "holds no row below its header")
    if len(frame) > max_rows:
        raise FieldError(
            field, str(file), f"holds more than {max_rows} rows; raise data.max_rows if it is meant"
        )
    return Rows(file.name, frame, style, index, lines)


def _place_behind(text: str) -> str:
    """Return the name of the CSV row at the end of this text, for refusals."""
    unquoted = "".join(
        f"{text}?".split('"')[::2]
    )  # within quotes an end of line is part of the value
    filled = [line for line in unquoted.splitlines() if line.strip()]
    row = len(filled) - 1
    return f"row {row}" if row else "the header"


def _text(field: str, file: Path, encoding: str, content: bytes) -> bytes:
    """Return the content of a CSV file as UTF-8, without a byte order mark.

    Raises
    ------
    FieldError
        For an invalid byte in this encoding; the text names the row.
    """
    try:
        known = codecs.lookup(encoding).name
        "a".encode(known)
    except (LookupError, TypeError, UnicodeError) as error:
        accepted = "must be an encoding that Python knows, such as 'utf-8', 'cp1252', 'latin-1' or 'utf-16'"
        raise FieldError("data.encoding", encoding, accepted) from error
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:1000]
    if wide and not known.startswith(("utf-16", "utf-32")):
        raise FieldError(
            field,
            str(file),
            "is UTF-16, or no text: write data.encoding = 'utf-16', or save it as UTF-8",
        )
    try:
        text = content.decode(known)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode(known, errors="replace")
        accepted = (
            f"is no text in {known}, in {_place_behind(before)} (byte {error.start}): {_UTF8}"
        )
        raise FieldError(field, str(file), accepted) from error
    if "\0" in text:
        raise FieldError(
            field,
            str(file),
            f"holds characters of number 0 if it is read as {known}: it is something else",
        )
    return text.removeprefix("\ufeff").encode()


def _csv(
    field: str,
    file: Path,
    separator: str,
    max_rows: int,
    content: bytes,
) -> tuple["pandas.DataFrame", bool]:
    """Parse a CSV file; return the rows with all values as texts, and whether row i is in line i + 1."""
    pd = pandas_module()
    if not content.strip():
        raise FieldError(field, str(file), "is empty: a header line and rows are needed")
    first = content.split(b"\n", 1)[0].strip()
    if first.lower().startswith(b"sep="):
        accepted = (
            f"begins with {first.decode()!r}, a note for spreadsheets: take the first line out"
        )
        raise FieldError(field, str(file), accepted)
    # every value as text, so that identifiers keep their zeros, and a value that is no number can be named with its row
    as_text = {
        "header": None,
        "dtype": str,
        "sep": separator,
        "keep_default_na": False,
        "na_values": [""],
    }
    try:
        first_row = pd.read_csv(BytesIO(content), nrows=1, **as_text).iloc[0]
        header = first_row.fillna("").str.strip().tolist()
        if len(header) == 1:
            _require_separated(file.name, header[0], separator)
        whole = pd.read_csv(BytesIO(content), nrows=max_rows + 2, **as_text)
    except FieldError:
        raise
    except ValueError as error:  # rows that are longer than the header, too
        comment = " (the first line is a comment: take it out)" if content[:1] == b"#" else ""
        accepted = "cannot be read as CSV, as many values a row as names in the header"
        raise FieldError(field, str(file), f"{accepted}: {str(error).strip()}{comment}") from error
    rows = whole.iloc[1:].reset_index(drop=True)
    if not header[0] and len(header) > 1 and _numbers_rows(rows[0]):
        header[0] = UNNAMED
    _check_header(file.name, header, rows)
    ends = content.rstrip(b"\r\n").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return rows.set_axis(header, axis=1), ends.count(b"\n") == len(rows)


def _require_separated(name: str, header: str, separator: str) -> None:
    """Refuse a header with a single name that contains another separator."""
    for other in (";", "\t", "|"):
        if other in header:
            decimal = ', and decimal = "," if numbers have one' if other == ";" else ""
            raise FieldError(
                "data.separator",
                separator,
                f"{name} has {other!r} between names: write it{decimal}",
            )


def row_indices(frame: "pandas.DataFrame", written: Collection[Any] = ()) -> tuple[str, ...]:
    """Find the columns in which pandas numbered the rows.

    Parameters
    ----------
    frame : DataFrame
        The rows.
    written : collection
        Columns that the file declares as its index.
    """
    found: list[str] = []
    for name in frame.columns:
        known = name in written or re.fullmatch(INDEX, str(name)) is not None
        if known or (name == RESET and _numbers_rows(frame[name].astype("string"))):
            found.append(name)
    return tuple(found)


def _numbers_rows(values: "pandas.Series[str]") -> bool:
    """Whether a column without a name is the index written by ``DataFrame.to_csv``: a different integer in each row."""
    are_whole = bool(values.str.fullmatch(r"\d+", na=False).all())
    return len(values) > 0 and are_whole and values.is_unique


def _check_header(name: str, header: Sequence[str], rows: "pandas.DataFrame") -> None:
    """Refuse a header that repeats or lacks a name, or looks like a row of values."""
    for at, column in enumerate(header):
        if not column:
            cause = "a separator at each line's end?"
            if at == 0:
                cause = "an index that pandas wrote: df.to_csv(index=False)"
            accepted = f"column {at + 1} has no name ({cause}): name it, or take it out"
            raise FieldError(f"{name}, header", list(header), accepted)
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise FieldError(f"{name}, header", twice, "must name each column once")
    if header[0].startswith("#") and len(header) > 1 and not header[0].strip("# "):
        raise FieldError(f"{name}, header", header[0], "is a comment: take it out")
    if _counts_columns(header):
        return
    for at, column in enumerate(header):
        if _is_number_or_time(column) and any(map(_is_number_or_time, rows[at].dropna().head(20))):
            raise FieldError(f"{name}, header", f"column {at + 1}", _HEADERLESS)


def _counts_columns(header: Sequence[str]) -> bool:
    """Whether the column names count from 0 or 1, as pandas and numpy name columns."""
    numbers = [column for column in header if is_number(column)]
    if not numbers or len(numbers) == len(header) <= 3:
        return False
    from_0 = [str(at) for at in range(len(numbers))]
    from_1 = [str(at + 1) for at in range(len(numbers))]
    return numbers in (from_0, from_1)


def _is_number_or_time(text: str) -> bool:
    return is_number(text) or is_time(text)


def _unpacked(field: str, file: Path, max_bytes: int) -> bytes:
    """Return the content of a file, unpacked if it is compressed."""
    is_packed = file.name.lower().endswith(".gz")
    content = bytearray()  # piece by piece: a read of so many bytes takes their memory beforehand
    try:
        with gzip.open(file) if is_packed else file.open("rb") as stream:
            while len(content) <= max_bytes:
                piece = stream.read(_PIECE)
                if not piece:
                    break
                content += piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FieldError(field, str(file), f"cannot be unpacked ({error})") from error
    if len(content) > max_bytes:
        raise FieldError(
            field,
            str(file),
            f"is over {max_bytes / 2**30:g} GiB; raise data.max_gib if it is meant",
        )
    return bytes(content)


def _parquet(
    field: str,
    file: Path,
    max_rows: int,
    max_bytes: int,
) -> tuple["pandas.DataFrame", tuple[str, ...]]:
    """Read a parquet file; return the rows, and the columns that are pandas' index."""
    need = "reading parquet files needs pyarrow"
    parquet = optional("pyarrow.parquet", need, "pyarrow")
    failures = (optional("pyarrow", need, "pyarrow").ArrowException, OSError, ValueError)
    pandas_module()
    try:
        with parquet.ParquetFile(file) as stored:
            meta = stored.metadata
            size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
            if meta.num_rows > max_rows:
                accepted = (
                    f"holds {meta.num_rows} rows; raise data.max_rows ({max_rows}) if it is meant"
                )
                raise FieldError(field, str(file), accepted)
            if size > max_bytes:
                raise FieldError(
                    field, str(file), f"unpacks to {size / 2**30:.1f} GiB; raise data.max_gib"
                )
            names = stored.schema_arrow.names
            if len(set(names)) != len(names):
                raise FieldError(f"{file.name}, header", names, "must name each column once")
            metadata = stored.schema_arrow.pandas_metadata or {}
            written = metadata.get("index_columns", ())
            frame = stored.read().to_pandas(ignore_metadata=True)
            return frame, row_indices(frame, written)
    except failures as error:
        if isinstance(error, FieldError):
            raise
        raise FieldError(field, str(file), f"cannot be read as parquet ({error})") from error
