"""The form of a report: sections of lines, tables and charts, all plain values; what nobody said is "not covered"."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

from fedveil.reading import toml_of

FORMAT = "fedveil report 1"
ABSENT = "not covered"


def source(name: str) -> str:
    """A file of this package: a template, or the words."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


WORDS: Mapping[str, Mapping[str, str]] = toml_of(source("words.toml"))


@dataclass(frozen=True)
class Fact:
    """A fact with its name; without a text nothing covers it."""

    label: str
    text: str = ABSENT

    @classmethod
    def of(cls, label: str, *texts: str | None) -> "Fact":
        """Of the texts that there are."""
        return cls(label, "; ".join(filter(None, texts)) or ABSENT)


@dataclass(frozen=True)
class Grid:
    """A table under its title; cells without a text are not covered."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Series:
    """One line of a chart, with the range over its repetitions; a setting has one colour in all charts."""

    label: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """Lines over an axis; with `logarithmic` both axes are."""

    name: str
    title: str
    x: str
    y: str
    series: Sequence[Series]
    logarithmic: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture that an audit drew, by the SHA-256 of its PNG."""

    title: str
    text: str
    digest: str


@dataclass(frozen=True)
class ReportSection:
    """One question of a reader."""

    name: str
    lines: Sequence[Fact] = ()
    tables: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Report:
    """What report.json holds.

    Attributes
    ----------
    title : str
        Of the page.
    made : dict
        By which version, when, with which command.
    headline : list of dict
        Setting and sentence: who is protected from whom.
    sections : list of ReportSection
        In the order in which they are read.
    evidence : dict
        Promises, ledgers and digests, by which all can be checked.
    files : dict of str to str
        SHA-256 of what lies beside report.json.
    """

    title: str
    made: Mapping[str, Any]
    headline: Sequence[Mapping[str, str]]
    sections: Sequence[ReportSection]
    evidence: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The bytes of report.json, with their own digest."""
        return encoded({"format": FORMAT, **asdict(self)})


def encoded(values: Mapping[str, Any]) -> bytes:
    """The one way to write these values, with the digest of all others at the end."""
    plain = {k: v for k, v in values.items() if k != "digest"}
    text = json.dumps(plain, indent=1, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps({**plain, "digest": digest}, indent=1, sort_keys=True) + "\n").encode()
