"""Parts of a report (sections of lines, tables and charts, all plain values), and promises in sentences.

An entry without a text is "not covered". A heuristic has no number, only the reason. Entries that no ledger gives are
marked as said by the author.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

from fedveil.accounting import VACUOUS
from fedveil.evidence import FORMAT, NEIGHBOURS, encoded
from fedveil.gdp import rounded_up
from fedveil.reading import toml_of

ABSENT = "not covered"


def source(name: str) -> str:
    """Read a file of this package: a template, or the words."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


WORDS: Mapping[str, Mapping[str, str]] = {**toml_of(source("words.toml")), "neighbours": NEIGHBOURS}


@dataclass(frozen=True)
class Fact:
    """Named fact; without a text it is "not covered". `said`: the author says it, and no ledger gives it."""

    label: str
    text: str = ABSENT
    said: bool = False

    @classmethod
    def of(cls, label: str, *texts: str | None, said: bool = False) -> "Fact":
        """Make a fact of the given texts, joined; absent ones are left out."""
        text = "; ".join(filter(None, texts)) or ABSENT
        return cls(label, text, said)


@dataclass(frozen=True)
class Grid:
    """Table with a title; a cell without a text is "not covered". `said`: columns that the author says."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    said: Sequence[str] = ()


@dataclass(frozen=True)
class Series:
    """Line of a chart with its range over repetitions; a setting has the same colour in all charts."""

    label: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """Chart of lines; `logarithmic` makes both axes logarithmic."""

    name: str
    title: str
    x: str
    y: str
    series: Sequence[Series]
    logarithmic: bool = False


@dataclass(frozen=True)
class Picture:
    """Picture of an audit, named by the SHA-256 of its PNG."""

    title: str
    text: str
    digest: str


@dataclass(frozen=True)
class ReportSection:
    """Section that answers one question of a reader. `said`: the author says all of it."""

    name: str
    lines: Sequence[Fact] = ()
    tables: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    pictures: Sequence[Picture] = ()
    said: bool = False


def section_from(values: Mapping[str, Any], name: str) -> ReportSection:
    """Make a section that the author says from its plain values."""
    tables = [Grid(**one) for one in values["tables"]]
    charts = [
        Chart(**{**one, "series": [Series(**line) for line in one["series"]]})
        for one in values["charts"]
    ]
    lines, pictures = (
        [Fact(**one) for one in values["lines"]],
        [Picture(**one) for one in values["pictures"]],
    )
    return ReportSection(name, lines, tables, charts, pictures, said=True)


@dataclass(frozen=True)
class Report:
    """Contents of report.json.

    Attributes
    ----------
    title : str
        Title of the page.
    form : str
        Digest of the code, templates and words that make pages; with another digest a page may look otherwise.
    headline : list of dict
        For each setting: the setting, the party with the counted promise, and a sentence: who is protected from whom.
    sections : list of ReportSection
        Sections in their order on the page.
    evidence : dict
        Evidence of the ledgers, for each run and data set.
    said : dict
        The author's words. With the ledgers they suffice to make everything else again.
    files : dict of str to str
        SHA-256 of the files beside report.json.
    """

    title: str
    form: str
    headline: Sequence[Mapping[str, str]]
    sections: Sequence[ReportSection]
    evidence: Mapping[str, Any]
    said: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the bytes of report.json, with their own digest."""
        return encoded({"format": FORMAT, **asdict(self)})


Promise = Mapping[str, Any]


def percent(share: float) -> str:
    """Write a share in percent, rounded up so that no attacker does better."""
    return f"{float(rounded_up(100 * share, 3)):g}%"


def protected(promise: Promise) -> str:
    """Say who is protected from whom, and how often the best attacker is still right."""
    strength = how_strongly(promise)
    return (
        f"{who_is_protected(promise)}; {strength}" if strength else f"{who_is_protected(promise)}."
    )


def who_is_protected(promise: Promise) -> str:
    """Say who is protected from whom, without the full stop."""
    status = promise["status"]
    if status == "none":
        return "Nobody is protected: there was no noise"
    unit, whom = WORDS["units"][promise["unit"]], WORDS["from"][promise["trust"]]
    if status == "heuristic":
        reason = promise.get("reason") or "no definition holds"
        return f"Nobody is promised anything: noise was added, but {reason}"
    held = " (if the conditions below hold)" if status == "conditional" else ""
    begun = f"Protected: {unit}, from {whom}{held}"
    if "epsilon" not in promise:
        return f"{begun}, only among vectors near each other: {promise['text']}. There is no epsilon for {unit}"
    return begun


def how_strongly(promise: Promise) -> str:
    """Say the epsilon, and how often the best attacker is right; empty without an epsilon."""
    if "epsilon" not in promise:
        return ""
    meaning = promise["meaning"]
    odds = f"guesses right in at most {percent(meaning['accuracy'])} of the cases (50% is a coin)"
    caught = f"at one false alarm in 100 finds at most {percent(meaning['tpr_at_0.01'])}"
    epsilon = f"epsilon {rounded_up(promise['epsilon'])} at delta {promise['delta']:g}, over the whole run."
    vacuous = (
        f" Above {VACUOUS:g} an epsilon excludes nothing in practice."
        if promise.get("vacuous")
        else ""
    )
    task = f"An attacker may know everything except whether {_between(promise)}."
    return f"{epsilon}{vacuous} {task} The attacker {odds}, and {caught}."


def _between(promise: Promise) -> str:
    """Say how the two neighbouring inputs differ, with the name of the unit."""
    text, unit = WORDS["neighbours"][promise["relation"]], promise["unit"]
    if text.startswith("its "):
        return f"the {unit}'s {text.removeprefix('its ')}"
    return f"the {unit} {text.removeprefix('it ')}"


def epsilon_of(promise: Promise) -> str | None:
    """Write the epsilon with its delta; None if none is proven."""
    return (
        f"{rounded_up(promise['epsilon'])} at delta {promise['delta']:g}"
        if "epsilon" in promise
        else None
    )


def beside(promise: Promise) -> list[str]:
    """List what a promise gives for ten records of a person, or for one of her records."""
    said = []
    if "epsilon_of_10_records" in promise:
        said.append(
            f"10 records of one person together: epsilon {rounded_up(promise['epsilon_of_10_records'])}"
        )
    if "epsilon_of_one_record" in promise:
        own = promise["epsilon_of_one_record"]
        text = f"one of her records, exchanged for another while the rest stay: epsilon {rounded_up(own)}"
        if own > promise.get("epsilon", own):
            text += " (more than hers: an exchange can move her contribution twice as far as her absence)"
        said.append(text)
    return said
