"""A study: the experiments of a paper as its folder describes them."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from inspect import signature
from itertools import product
from typing import TYPE_CHECKING, Any

from fedveil.engines import Probe
from fedveil.errors import FieldError
from fedveil.registry import Registry
from fedveil_lab.config import Config
from fedveil_lab.grid import Outcome
from fedveil_studies.frame.described import Described, MeasureOf, ScaleOf
from fedveil_studies.frame.plots import Curve
from fedveil_studies.frame.result import Place, Published, Value
from fedveil_studies.frame.standard import CURVES, MEASURES

if TYPE_CHECKING:
    from fedveil_lab.report.plotting import Figure

Measure = Callable[..., Value]  # of outcomes, and of what its line in study.toml says
Draw = Callable[..., Curve]
Change = Callable[[dict[str, Any]], None]
Adjust = Callable[[dict[str, Any], ScaleOf, frozenset[str]], None]
Picture = Callable[[Any], "Figure"]  # of a Reproduction


class Study:
    """The experiments of one paper: their description, printed figures and own measures.

    Parameters
    ----------
    name : str
        Name on the command line.
    described : Described
        Content of study.toml.
    published : mapping
        Figures that the paper printed.

    Attributes
    ----------
    measure, curve : decorator
        ``@study.measure("name")`` registers ``(outcomes of a repetition, of, ...) -> Value`` for the tables,
        ``@study.curve("name")`` the same with a ``Curve`` for the figures, beside the standard ones.
    probe : decorator
        Registers ``configuration of the scenario -> Probe``, which measures more after each round.
    change : decorator
        Registers a change of a configuration's values that dotted keys cannot say; it works on them in place.
    picture : decorator
        ``@study.picture("4")`` registers ``reproduction -> matplotlib Figure``, the figure 4, which is no plot of runs;
        its docstring is the title.
    judge, audit : decorator
        Register ``(claim, evidence) -> rows`` for claims that no standard judge can test, on the files of tables, or
        (`audit`) on an `Audited`.
    measures, curves, probes, changes, pictures, judges, audits : Registry
        Registries of these functions.
    """

    def __init__(
        self, name: str, described: Described, published: Mapping[Place, Published]
    ) -> None:
        self.name, self.described, self.published = name, described, published
        self.measures: Registry[Measure] = Registry(f"{name}, measure", MEASURES)
        self.curves: Registry[Draw] = Registry(f"{name}, curve", CURVES)
        self.probes: Registry[Callable[[Config], Probe]] = Registry(f"{name}, probe", {})
        self.changes: Registry[Change] = Registry(f"{name}, change", {})
        self.judges: Registry[Callable[..., Iterable[Any]]] = Registry(f"{name}, judge", {})
        self.audits: Registry[Callable[..., Iterable[Any]]] = Registry(f"{name}, judge", {})
        self.measure, self.curve = self.measures.register, self.curves.register
        self.judge, self.audit = self.judges.register, self.audits.register
        self.pictures: Registry[Picture] = Registry("--figure", {})
        self.probe, self.change, self.picture = (
            self.probes.register,
            self.changes.register,
            self.pictures.register,
        )
        self.adjusted: list[Adjust] = []

    @classmethod
    def of(cls, package: str, folder: Traversable | None = None) -> "Study":
        """Read the study whose study.toml and published.csv are in a package.

        Parameters
        ----------
        package : str
            ``__name__`` of the package or module; its last part is the study's name.
        folder : Traversable, optional
            Folder of the two files, and of its scenarios' configurations. Default: the package.

        Raises
        ------
        FieldError
            If study.toml does not fit `Described`.
        """
        name = package.rpartition(".")[2].replace("_", "-")
        where = folder or resources.files(package)
        try:
            text = (where / "study.toml").read_text(encoding="utf-8")
        except OSError as error:
            raise FieldError(
                "study",
                package,
                f"needs a package or folder with study.toml and published.csv: {error}",
            ) from error
        described = Described.read(text, name)
        scenarios = dict(described.scenarios)
        for scenario, about in described.scenarios.items():
            preset = where / about.preset
            if preset.is_file():
                scenarios[scenario] = about.model_copy(update={"preset": str(preset)})
        described = described.model_copy(update={"scenarios": scenarios})
        return cls(name, described, read_published(where / "published.csv"))

    def label(self, row: str) -> str:
        """Return a row's label in the tables."""
        return self.described.rows[row].label

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the paper's own rows."""
        return tuple(row.label for row in self.described.rows.values() if not row.extra)

    @property
    def figures(self) -> dict[str, str]:
        """Titles of all figures by number: plots of runs, and pictures."""
        titles = {name: figure.title for name, figure in self.described.figures.items()}
        for name, drawn in self.pictures.items():
            titles[name] = (drawn.__doc__ or name).split("\n")[0]
        return titles

    @property
    def settings(self) -> Mapping[str, str]:
        """Labels of the settings by name."""
        return {name: setting.label for name, setting in self.described.settings.items()}

    def places(self, table: str) -> set[tuple[str, str, str]]:
        """Row labels, settings and figures of all lines that a table can have."""
        spec, places = self.described, set[tuple[str, str, str]]()
        for part in spec.tables[table].parts:
            settings = part.settings or spec.compared
            for row, of, scenario, setting in product(
                part.rows or spec.rows, part.of, part.scenarios, settings
            ):
                words = {
                    "row": spec.rows[row].label,
                    "setting": spec.settings[setting].label,
                    "of": of,
                }
                label = part.label.format(
                    scenario=spec.scenarios[scenario].label or scenario, **words
                )
                places |= {(label, setting, figure) for figure in part.figures}
        return places

    def adjust(self, function: Adjust) -> Adjust:
        """Register ``(values, scale, flags of the readings) -> None``, applied to every configuration, in place."""
        self.adjusted.append(function)
        return function

    def function(
        self, kind: str, one: MeasureOf, of: str = ""
    ) -> Callable[[Sequence[Outcome]], Any]:
        """Return a measure or curve, with its arguments bound.

        Raises
        ------
        FieldError
            If it does not exist or does not take an argument; the message says which.
        """
        known: Registry[Callable[..., Any]] = getattr(self, kind)
        function, given = known.choose(one.measure), one.given(of)
        measured_of = given.pop("of")
        try:
            signature(function).bind((), measured_of, **given)
        except TypeError as error:
            raise FieldError(
                f"{known.field} {one.measure!r}", ", ".join(given), str(error)
            ) from error

        def measured(outcomes: Sequence[Outcome]) -> Any:
            try:
                return function(outcomes, measured_of, **given)
            except LookupError as error:
                missing = (
                    f"asks a run for {error}, which it has not; see a line of its metrics.jsonl"
                )
                raise FieldError(known.field, one.measure, missing) from error

        return measured


def read_published(file: Traversable) -> dict[Place, Published]:
    """Read the printed figures, by (table, row, setting, figure)."""
    published = {}
    for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        place = (line["table"], line["row"], line["setting"], line["figure"])
        numbers = {k: float(line[k]) for k in ("deviation", "low", "high") if line.get(k)}
        published[place] = Published(float(line["value"]), **numbers)
    return published
