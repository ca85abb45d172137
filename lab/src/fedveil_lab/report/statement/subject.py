"""Subject of a report: the ledgers' evidence and the author's words, all plain values.

A report, its page and its card follow from these two alone, so that they can be made again from report.json.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from operator import attrgetter
from typing import Any

from fedveil.engines import SERVER
from fedveil.evidence import CLIENT, VALIDATION, Carried, Promises
from fedveil.tables import grouped_by
from fedveil_lab.report.statement.document import ReportSection, section_from

DIGITS = 9  # to which two epsilons are one
CHOSEN = ("privacy.clip", "privacy.epsilon", "privacy.noise_multiplier", "local.lr", "local.epochs")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes
    ----------
    carried : Carried
        The ledgers' evidence on the run.
    said : dict
        The author's words about the run.
    """

    carried: Carried
    said: Mapping[str, Any]

    @property
    def setting(self) -> str:
        """Label of the run's setting."""
        return self.carried.setting

    @property
    def quoted(self) -> Promises:
        """Promises that no given ledger has: those that the clients of a deployed run quoted to its server."""
        quoted = dict(self.said["promises"])
        for party in self.carried.promises:
            quoted.pop(party, None)
        return quoted

    @property
    def counts(self) -> str:
        """Party whose promise counts: the one that adds the noise; among several, the one with the weakest promise."""
        carried = self.carried.promises
        for party in (SERVER, CLIENT):
            if party in carried:
                return party
        every = {**self.quoted, **carried}
        others = sorted(
            every.keys() - {VALIDATION}, key=lambda party: (party not in carried, party)
        )
        return max(others, key=lambda party: _rank(every[party]), default="")

    @property
    def promises(self) -> Promises:
        """Promises by party; the counted one is first."""
        every, first = {**self.quoted, **self.carried.promises}, self.counts
        if not first:
            return {}
        ordered = {first: every.pop(first)}
        return ordered | dict(sorted(every.items()))

    @property
    def worst(self) -> Mapping[str, Any]:
        """Counted promise of the run, see `counts`."""
        return self.promises[self.counts]


@dataclass(frozen=True, eq=False)
class Subject:
    """Everything from which a report is made.

    Attributes
    ----------
    name : str
        Title of the page.
    runs : sequence of Run
        Runs in the order of the settings.
    sets : sequence of dict
        Ledgers of data sets: head, digest, and spent costs.
    accuracy, attacked : ReportSection
        Sections that the author measured.
    policy, people : dict
        The policy in force; what only people know.
    setting : str, optional
        Setting whose release the card describes; default: the first with a proof, else the first.
    made : dict
        Version, time and command that made the report.
    pictures : dict of str to bytes
        Shown PNGs by their SHA-256.
    """

    name: str
    runs: Sequence[Run]
    sets: Sequence[Mapping[str, Any]]
    accuracy: ReportSection
    attacked: ReportSection
    policy: Mapping[str, Any]
    people: Mapping[str, Any]
    setting: str | None
    made: Mapping[str, Any]
    pictures: Mapping[str, bytes]

    @classmethod
    def again(cls, report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> "Subject":
        """Make the subject again from the values of a report.json and the PNGs on its page."""
        evidence, said = report["evidence"], report["said"]
        pairs = zip(evidence["runs"], said["runs"], strict=True)
        return cls(
            name=said["name"],
            runs=[Run(Carried(**carried), told) for carried, told in pairs],
            sets=evidence["sets"],
            accuracy=section_from(said["accuracy"], "accuracy"),
            attacked=section_from(said["attacked"], "attacked"),
            policy=said["policy"],
            people=said["people"],
            setting=said["setting"],
            made=said["made"],
            pictures=pictures,
        )

    def read_back(self) -> "Subject":
        """Return this subject as report.json would give it: sorted keys, and plain values alone."""
        values = json.loads(
            json.dumps({"evidence": self.evidence, "said": self.said}, sort_keys=True)
        )
        return Subject.again(values, self.pictures)

    @property
    def evidence(self) -> dict[str, Any]:
        """The ledgers' evidence, for JSON."""
        return {"runs": [vars(run.carried) for run in self.runs], "sets": self.sets}

    @property
    def said(self) -> dict[str, Any]:
        """The author's words, for JSON."""
        return {
            "name": self.name,
            "policy": self.policy,
            "people": self.people,
            "setting": self.setting,
            "made": self.made,
            "accuracy": asdict(self.accuracy),
            "attacked": asdict(self.attacked),
            "runs": [run.said for run in self.runs],
        }

    @property
    def by_setting(self) -> dict[str, list[Run]]:
        """Runs by their setting's label; several are repetitions under other seeds."""
        return grouped_by(self.runs, attrgetter("setting"))

    @property
    def promises(self) -> dict[str, Promises]:
        """Weakest promise of each party, by setting; the counted one is first."""
        promises = {}
        for label, own in self.by_setting.items():
            promises[label] = weakest([run.promises for run in own])
        return promises

    @property
    def on_card(self) -> Run:
        """Run whose release the card describes."""
        runs = self.by_setting
        if self.setting is not None:
            return runs[self.setting][0]
        for first, *_ in runs.values():
            if "epsilon" in first.worst:
                return first
        return self.runs[0]


def weakest(promises: Sequence[Promises]) -> Promises:
    """Return the weakest promise of each party among the repetitions of a setting."""
    found: dict[str, Mapping[str, Any]] = {}
    for own in promises:
        for party, promise in own.items():
            if party not in found or _rank(promise) > _rank(found[party]):
                found[party] = promise
    return found


def _rank(promise: Mapping[str, Any]) -> float:
    return round(float(promise.get("epsilon", inf)), DIGITS)
