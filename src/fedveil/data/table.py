"""Tables: CSV and parquet files, a row an example."""

import gzip
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.data.frames import Rows, TableSpec, from_rows, pandas_module
from fedveil.data.sets import DataSet, MissingDataError
from fedveil.errors import FieldError, require_count, require_positive
from fedveil.registry import optional

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class TableFile(TableSpec):
    """A table with a header line: its file, and what its columns mean.

    Parameters
    ----------
    path : str or Path
        A ``.csv`` or ``.csv.gz`` file (UTF-8), or ``.parquet`` (needs pyarrow).
    test_path : str
        Another file, the server's test half.
    separator, decimal : str
        Of CSV files, e.g. ``";"`` and ``","``.
    max_rows : int
        Most rows of a file.
    max_gib : float
        Most GiB a file may unpack to.
    """

    path: str | Path
    test_path: str = ""
    separator: str = ","
    decimal: str = "."
    max_rows: int = 2_000_000
    max_gib: float = 1.0

    def read(self) -> DataSet:
        """The examples.

        Raises
        ------
        FieldError
            Naming file, row (from 1, the header not counted) and column of a value that cannot be used.
        """
        require_count("data.max_rows", self.max_rows)
        bounds = (self.max_rows, int(require_positive("data.max_gib", self.max_gib) * 2**30))
        style = (self.separator, self.decimal)
        train = read_table("data.path", self.path, style, bounds)
        test = read_table("data.test_path", self.test_path, style, bounds) if self.test_path else None
        return from_rows("table", train, test, self, f"From the file {train.file}.")


def read_table(field: str, path: str | Path, style: tuple[str, str], bounds: tuple[int, int]) -> Rows:
    """Read a file whole.

    Parameters
    ----------
    field : str
        The option that names the file, for a refusal.
    path : str or Path
        The file.
    style : tuple of str
        Separator and decimal sign of CSV.
    bounds : tuple of int
        Most rows, and most bytes that it may unpack to.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise MissingDataError(field, str(file), "is no file: give the path of a .csv, .csv.gz or .parquet file")
    name, (max_rows, max_bytes) = file.name.lower(), bounds
    if name.endswith(".parquet"):
        frame = _parquet(field, file, max_rows, max_bytes)
    elif name.endswith((".csv", ".csv.gz")):
        frame = _csv(field, file, style[0], max_rows, max_bytes)
    else:
        raise FieldError(field, str(file), "must end in .csv, .csv.gz or .parquet")
    if not len(frame):
        raise FieldError(field, str(file), "holds no row below its header")
    if len(frame) > max_rows:
        raise FieldError(field, str(file), f"holds more than {max_rows} rows; raise data.max_rows if it is meant")
    return Rows(file.name, frame, "." if name.endswith(".parquet") else style[1])


def _csv(field: str, file: Path, separator: str, max_rows: int, max_bytes: int) -> "pandas.DataFrame":
    pd = pandas_module()
    content = _unpacked(field, file, max_bytes)
    if not content.strip():
        raise FieldError(field, str(file), "is empty: a header line and rows are needed")
    # every value as text: identifiers keep their zeros, and what is no number can be named with its row
    as_text = {"header": None, "dtype": str, "sep": separator, "keep_default_na": False, "na_values": [""]}
    try:
        header = pd.read_csv(BytesIO(content), nrows=1, **as_text).iloc[0].fillna("").str.strip().tolist()
        if other := next((s for s in (";", "\t", "|") if len(header) == 1 and s in header[0]), ""):
            decimal = ', and decimal = "," if numbers have one' if other == ";" else ""
            raise FieldError("data.separator", separator, f"{file.name} has {other!r} between names: write it{decimal}")
        whole = pd.read_csv(BytesIO(content), nrows=max_rows + 2, **as_text)
    except FieldError:
        raise
    except ValueError as error:  # rows that are longer than the header, too
        accepted = f"cannot be read as CSV in UTF-8, as many values a row as names in the header: {str(error).strip()}"
        raise FieldError(field, str(file), accepted) from error
    if "" in header or len(set(header)) < len(header):
        raise FieldError(f"{file.name}, header", header, "must name each column once")
    return whole.iloc[1:].reset_index(drop=True).set_axis(header, axis=1)


def _unpacked(field: str, file: Path, max_bytes: int) -> bytes:
    try:
        with gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FieldError(field, str(file), f"cannot be unpacked ({error})") from error
    if len(content) > max_bytes:
        raise FieldError(field, str(file), f"is over {max_bytes / 2**30:g} GiB; raise data.max_gib if it is meant")
    return content


def _parquet(field: str, file: Path, max_rows: int, max_bytes: int) -> "pandas.DataFrame":
    need = "reading parquet files needs pyarrow"
    parquet = optional("pyarrow.parquet", need, "pyarrow")
    failures = (optional("pyarrow", need, "pyarrow").ArrowException, OSError, ValueError)
    pandas_module()
    try:
        with parquet.ParquetFile(file) as stored:
            meta = stored.metadata
            size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
            if meta.num_rows > max_rows:
                accepted = f"holds {meta.num_rows} rows; raise data.max_rows ({max_rows}) if it is meant"
                raise FieldError(field, str(file), accepted)
            if size > max_bytes:
                raise FieldError(field, str(file), f"unpacks to {size / 2**30:.1f} GiB; raise data.max_gib")
            names = stored.schema_arrow.names
            if len(set(names)) != len(names):
                raise FieldError(f"{file.name}, header", names, "must name each column once")
            return stored.read().to_pandas(ignore_metadata=True)
    except failures as error:
        if isinstance(error, FieldError):
            raise
        raise FieldError(field, str(file), f"cannot be read as parquet ({error})") from error
