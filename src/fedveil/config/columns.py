"""What the columns of somebody's table look like: inputs, limits, and the ids of sites and people among them."""

import math
import re
from pathlib import Path
from typing import Any

from fedveil.data.frames import pandas_module
from fedveil.data.table import read_table
from fedveil.errors import FieldError, require_choice

FEW = 20  # texts, or whole numbers, that are classes or categories; more are values or ids
MOST = (2_000_000, 2**30)  # rows and bytes, as `TableFile` has them
SITES = "site hospital clinic klinik klinikum krankenhaus ward station centre center zentrum standort silo institution"
SITES += " institute provider practice praxis department abteilung client facility trust branch"
PEOPLE = "patient patients patienten pat person subject participant proband mrn case fall pid member insured"
IDS = "id ids nr no nummer name key uuid guid index code number"


def read_columns(path: Path, target: str, person: str, site: str) -> tuple[dict[str, Any], dict[str, str]]:
    """`[data]` of a table; and by column "site", "person", "id", "date" or "texts" for what is no input.

    Raises
    ------
    FieldError
        For a file that is no table, or a column that is not there.
    """
    frame, style = _read(path)
    names = list(map(str, frame.columns))
    target = require_choice("target", target or names[-1], names)
    for option, name in (("person", person), ("site", site)):
        if name:
            require_choice(option, name, names)
    inputs, left_out = dict[str, list[Any]](), dict[str, str]()
    for name in names:
        values = frame[name].dropna()
        if name in (target, person, site):
            continue
        if kind := _kind(name, values, style.get("decimal", ".")):
            left_out[name] = kind
        else:
            inputs[name] = _limits(values, style.get("decimal", "."))
    if not inputs:
        named = ", ".join(left_out) or "the rest"
        accepted = f"has no column left for inputs: {named} are ids, sites, dates or texts; add measurements"
        raise FieldError("data", str(path), accepted)
    about = {"name": "table", "path": str(path), **style, "target": target, "columns": inputs}
    about |= _target(frame[target].dropna(), style.get("decimal", "."))
    if site:
        about |= {"client_column": site}
    return about, left_out


def _read(path: Path) -> tuple[Any, dict[str, str]]:
    """The rows, texts in a CSV, and how it is written."""
    for separator in (",", ";", "\t", "|"):
        try:
            frame = read_table("data", path, (separator, "."), MOST).frame
        except FieldError as error:
            if error.field != "data.separator":
                raise
            continue
        style = {} if separator == "," else {"separator": separator}
        comma = [n for n in frame.columns if _numbers(frame[n], ".") is None and _numbers(frame[n], ",") is not None]
        return frame, style | ({"decimal": ","} if comma else {})
    raise FieldError("data", str(path), "has one column: a target and an input are needed")


def _numbers(values: Any, decimal: str) -> Any:
    """The values that there are as numbers; None where one is no number, or there is none."""
    present = values.dropna()
    plain = present.str.replace(decimal, ".", regex=False) if present.dtype.kind not in "iufb" else present
    numbers = pandas_module().to_numeric(plain, errors="coerce")
    return numbers if len(numbers) and not numbers.isna().any() else None


def _kind(name: str, values: Any, decimal: str) -> str:
    """What a column is, if it is no input; "" of an input."""
    words = [re.sub(r"(?<=.)(id|nr|nummer|name)$", "", word) for word in _words(name)]
    for kind, known in (("site", SITES), ("person", PEOPLE), ("id", IDS)):
        if set(words) & set(known.split()) and set(words) <= set(known.split()) | set(IDS.split()):
            return kind
    numbers, texts = _numbers(values, decimal), values.astype(str)
    if numbers is not None:
        counted = len(values) > FEW and numbers.nunique() == len(values) == numbers.max() - numbers.min() + 1
        return "id" if counted or texts.str.fullmatch(r"0\d+").any() else ""
    texts = texts.str.strip()
    if texts.nunique() <= FEW:
        return ""
    return "date" if texts.str.fullmatch(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?").all() else "texts"


def _words(name: str) -> list[str]:
    """``PatientID`` and ``patient_id`` as patient, id."""
    return [word.lower() for word in re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])", name)]


def _target(values: Any, decimal: str) -> dict[str, Any]:
    """Classes, or the range of a number."""
    numbers = _numbers(values, decimal)
    few = values.nunique() <= FEW
    if numbers is not None and few and sorted(numbers.unique()) == [*range(numbers.nunique())]:
        return {"classes": int(numbers.nunique())}
    if numbers is None or (few and (numbers == numbers.round()).all()):
        return {"classes": sorted(map(str.strip, values.astype(str).unique()))}
    return {"target_range": _limits(values, decimal)}


def _limits(values: Any, decimal: str) -> list[Any]:
    """Lowest and highest number, rounded outwards, or the texts there are."""
    numbers = _numbers(values, decimal)
    if numbers is None:
        return sorted(set(map(str.strip, values.astype(str))))
    low = math.floor(numbers.min())
    return [low, max(math.ceil(numbers.max()), low + 1)]
