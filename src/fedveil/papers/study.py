"""A study: the experiments of a paper as its folder describes them, and the registry in which it is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from fedveil.config import Config
from fedveil.engines.probe import Probe
from fedveil.errors import FieldError, require_choice
from fedveil.grid import Outcome
from fedveil.papers.audited import AuditClaim
from fedveil.papers.claims import JUDGES
from fedveil.papers.described import Described, Part, ScaleOf
from fedveil.papers.paper import Paper, read_published
from fedveil.papers.result import Place, Published, Value
from fedveil.papers.standard import CURVES, MEASURES
from fedveil.registry import Registry
from fedveil.report.plots import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY_POINTS = "fedveil.studies"
Measure = Callable[[Sequence[Outcome], str], Value]
Draw = Callable[[Sequence[Outcome], str], Curve]
Change = Callable[[dict[str, Any]], None]
Adjust = Callable[[dict[str, Any], ScaleOf, frozenset[str]], None]
Picture = Callable[[Any], "Figure"]  # of a Reproduction


class Study(Paper):
    """A paper's experiments.

    Parameters
    ----------
    name : str
        For the command line.
    described : Described
        What study.toml says.
    published : mapping
        The paper's figures.

    Attributes
    ----------
    measure, curve : decorator
        ``@study.measure("name")`` registers ``(outcomes of a repetition, argument) -> Value`` for the tables,
        ``@study.curve("name")`` the same with a ``Curve`` for the figures, beside those of `fedveil.papers.standard`.
    probe : decorator
        Registers ``configuration of the scenario -> Probe``, which measures more after each round.
    change : decorator
        Registers a change of a configuration's values that dotted keys cannot say; it works on them in place.
    picture : decorator
        ``@study.picture("4")`` registers ``reproduction -> matplotlib Figure``, the figure 4, which is no plot of runs;
        its docstring is the title.
    judge : decorator
        Registers ``(claim, evidence) -> rows`` for claims that no standard judge can test.
    measures, curves, probes, changes, pictures, judges : Registry
        What is registered.
    audit_claims : list of AuditClaim
        Claims that are tested on audits, not on tables.
    """

    def __init__(self, name: str, described: Described, published: Mapping[Place, Published]) -> None:
        super().__init__(name, described, published, JUDGES)
        self.measures: Registry[Measure] = Registry(f"{name}, measure", MEASURES)
        self.curves: Registry[Draw] = Registry(f"{name}, curve", CURVES)
        self.probes: Registry[Callable[[Config], Probe]] = Registry(f"{name}, probe", {})
        self.changes: Registry[Change] = Registry(f"{name}, change", {})
        self.measure, self.curve, self.judge = self.measures.register, self.curves.register, self.judges.register
        self.pictures: Registry[Picture] = Registry("--figure", {})
        self.probe, self.change, self.picture = self.probes.register, self.changes.register, self.pictures.register
        self.adjusted: list[Adjust] = []
        self.audit_claims: list[AuditClaim] = []

    @classmethod
    def of(cls, package: str, folder: Traversable | None = None) -> Study:
        """The study whose study.toml and published.csv lie in a package.

        Parameters
        ----------
        package : str
            ``__name__`` of the package or module; its last part is the study's name.
        folder : Traversable, optional
            Where the two files are; default: in the package.

        Raises
        ------
        FieldError
            If study.toml is not as `Described` wants it, or names what does not exist.
        """
        name = package.rpartition(".")[2].replace("_", "-")
        where = folder or resources.files(package)
        described = Described.read((where / "study.toml").read_text(encoding="utf-8"), name)
        return cls(name, described, read_published(where / "published.csv"))

    def adjust(self, function: Adjust) -> Adjust:
        """Register ``(values, scale, flags of the readings) -> None``, applied to every configuration, in place."""
        self.adjusted.append(function)
        return function

    def function(self, kind: str, text: str) -> Callable[[Sequence[Outcome]], Any]:
        """A measure or curve with its argument: the longest name with which a text begins.

        Raises
        ------
        FieldError
            Naming those that exist.
        """
        known: Registry[Callable[..., Any]] = getattr(self, kind)
        found = [name for name in known if text == name or text.startswith(f"{name} ")]
        name = max(found, key=len, default=text.split(" ")[0])
        function = known.choose(name)

        def measured(outcomes: Sequence[Outcome]) -> Any:
            try:
                return function(outcomes, text[len(name) + 1 :])
            except LookupError as error:
                missing = f"asks a run for {error}, which it has not; see a line of its metrics.jsonl"
                raise FieldError(known.field, text, missing) from error

        return measured

    def check(self) -> Study:
        """Refuse a study.toml that names what does not exist; returns the study.

        Raises
        ------
        FieldError
            Naming the place, and what exists.
        """
        told = self.described
        for change in (*told.changes, *self.changes):
            if not re.fullmatch(r"[A-Za-z0-9._-]+", change):  # it ends the name of a configuration
                accepted = "is part of a run's name: letters, digits, dots, dashes and underscores only"
                raise FieldError(f"{self.name}, changes", change, accepted)
        for kind, contents in (("tables", told.tables), ("figures", told.figures)):
            for name, content in contents.items():
                for part in content.parts:
                    self._check_part(f"{self.name}, {kind}.{name}", part)
                    for text in part.figures.values():
                        self.function("measures" if kind == "tables" else "curves", text.format(of=part.of[0]))
        for setting, one in told.settings.items():
            if one.sigma_of:
                require_choice(f"{self.name}, settings.{setting}.sigma_of", one.sigma_of, told.settings)
        for reading, other in told.readings.items():
            if other.row:
                require_choice(f"{self.name}, readings.{reading}.row", other.row, told.rows)
            for setting in other.settings:
                require_choice(f"{self.name}, readings.{reading}.settings", setting, told.settings)
        for claim in told.claims:
            where = f"{self.name}, claims, {claim.name!r}"
            require_choice(f"{where}: expect", claim.expect, self.judges)
            for table, _ in claim.figures:
                require_choice(f"{where}: figures", table, told.tables)
            for setting in filter(None, (claim.first, claim.second)):
                require_choice(f"{where}: settings", setting, told.settings)
        return self

    def _check_part(self, where: str, part: Part) -> None:
        told = self.described
        changes = {*told.changes, *self.changes, ""}
        for field, names_, known in (
            ("scenarios", part.scenarios, told.scenarios),
            ("settings", part.settings, told.settings),
            ("rows", part.rows, told.rows),
            ("cells", part.cells, changes),
            ("probe", [part.probe] if part.probe else [], self.probes),
        ):
            for name in names_:
                require_choice(f"{where}.{field}", name, known)


STUDIES: Registry[Study] = Registry("STUDY", {})
"""Studies that are neither a folder of `fedveil.papers` nor an entry point ``fedveil.studies``."""


def register(study: Study) -> Study:
    """Make a study known to the command line of this process."""
    return STUDIES.register(study.name)(study.check())


def names() -> list[str]:
    """Every study that there is."""
    folders = (f.name for f in resources.files("fedveil.papers").iterdir() if (f / "study.toml").is_file())
    found = {name.replace("_", "-") for name in folders} | {one.name for one in entry_points(group=ENTRY_POINTS)}
    return sorted(found | set(STUDIES))


def find(name: str) -> Study:
    """A study by name.

    Raises
    ------
    FieldError
        Naming those that exist.
    """
    require_choice("STUDY", name, names())
    if name in STUDIES:
        return STUDIES[name]
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return _checked(name, entry.load())
    return _checked(name, import_module(f"fedveil.papers.{name.replace('-', '_')}").study)


def _checked(name: str, found: Any) -> Study:
    if not isinstance(found, Study):
        raise FieldError("STUDY", name, f"its module must hold a Study in `study`, not a {type(found).__name__}")
    return found.check()
