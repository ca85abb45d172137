"""Find all studies, and refuse mistakes in their files before anything runs."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from fedveil.errors import FieldError, require_choice
from fedveil.registry import Registry
from fedveil_studies.frame.claims import JUDGES
from fedveil_studies.frame.described import Part, TableOf
from fedveil_studies.frame.standard import CURVES, MEASURES, require_known
from fedveil_studies.frame.study import Study

STANDARD = {**MEASURES, **CURVES}
ENTRY_POINTS = "fedveil.studies"
STUDIES: Registry[Study] = Registry("STUDY", {}, group=ENTRY_POINTS)
"""Studies by name."""


def check_study(study: Study) -> Study:
    """Refuse a study.toml or published.csv that names what does not exist; returns the study.

    Raises
    ------
    FieldError
        If a name does not exist; the message gives the place and existing names.
    """
    for where, name, known in chain(_names(study), _claims(study), _published(study)):
        require_choice(f"{study.name}, {where}", name, known)
    spec = study.described
    for change in (*spec.changes, *study.changes):
        if not re.fullmatch(r"[A-Za-z0-9._-]+", change):  # it ends the name of a configuration
            accepted = "is part of a run's name: letters, digits, dots, dashes and underscores only"
            raise FieldError(f"{study.name}, changes", change, accepted)
    for kind, field, contents in (
        ("measures", "tables", spec.tables),
        ("curves", "figures", spec.figures),
    ):
        for table, content in contents.items():
            for part in content.parts:
                for one in part.figures.values():
                    study.function(kind, one, part.of[0])
                    if getattr(study, kind)[one.measure] is STANDARD.get(one.measure):
                        require_known(f"{study.name}, {field}.{table}.figures", one)
    return study


Name = tuple[str, str, Iterable[str]]  # where it stands, what it is, and what there is


def _names(study: Study) -> Iterator[Name]:
    spec = study.described
    for kind, contents in (("tables", spec.tables), ("figures", spec.figures)):
        for name, content in contents.items():
            for part in content.parts:
                for where, one, known in _parts(study, part):
                    yield f"{kind}.{name}.{where}", one, known
    for figure, drawn in spec.figures.items():
        if drawn.level is not None:
            yield f"figures.{figure}.level", drawn.level[0], spec.tables
            yield f"figures.{figure}.level", drawn.level[1], _figures(spec.tables[drawn.level[0]])
    for setting, about in spec.settings.items():
        if about.sigma_of:
            yield f"settings.{setting}.sigma_of", about.sigma_of, spec.settings
    for reading, other in spec.readings.items():
        if other.row:
            yield f"readings.{reading}.row", other.row, spec.rows
        for name in other.settings:
            yield f"readings.{reading}.settings", name, spec.settings
    for group in spec.judged_on:
        scale, *readings = group.split(", ")
        yield "judged_on", scale, spec.scales
        for reading in readings:
            yield "judged_on", reading, spec.readings
    for note in spec.notes:
        for name in note.beside:
            yield "notes: beside", name, (*spec.tables, *spec.figures, *study.pictures)


def _parts(study: Study, part: Part) -> Iterator[Name]:
    spec = study.described
    for field, names, known in (
        ("scenarios", part.scenarios, spec.scenarios),
        ("settings", part.settings, spec.settings),
        ("rows", part.rows, spec.rows),
        ("cells", part.cells, {*spec.changes, *study.changes, ""}),
        ("probe", filter(None, [part.probe]), study.probes),
    ):
        for name in names:
            yield field, name, known


def _claims(study: Study) -> Iterator[Name]:
    spec = study.described
    for claim in spec.claims:
        where = f"claims, {claim.name!r}"
        yield f"{where}: expect", claim.expect, {*JUDGES, *study.judges, *study.audits}
        for table, figure in claim.figures:
            yield f"{where}: figures", table, spec.tables
            yield f"{where}: figures", figure, _figures(spec.tables[table])
        for name in filter(None, claim.settings):
            yield f"{where}: settings", name, spec.settings
        for name in claim.answers:
            yield f"{where}: answers", name, spec.statements


def _published(study: Study) -> Iterator[Name]:
    """Printed figures stand beside ours, or `Described.absent` says why not."""
    spec = study.described
    for table, row, setting, figure in study.published:
        if table in spec.tables:
            content, where = spec.tables[table], f"published.csv, table {table}"
            yield (
                f"{where}, row",
                row,
                {label for label, _, _ in study.places(table)} | {*spec.absent},
            )
            yield f"{where}, setting", setting, spec.settings
            yield f"{where}, figure", figure, _figures(content) | {*spec.absent}


def _figures(content: TableOf) -> set[str]:
    return {name for part in content.parts for name in part.figures}


def register(study: Study) -> Study:
    """Add a study to the command line of this process."""
    return STUDIES.register(study.name)(check_study(study))


def names() -> list[str]:
    """List the names of all studies."""
    return sorted(STUDIES)


def find(name: str) -> Study:
    """Return a study by its name.

    Raises
    ------
    FieldError
        If there is no such study; the message lists those that exist.
    """
    study = STUDIES.choose(name)
    if not isinstance(study, Study):
        raise FieldError(
            "STUDY", name, f"its entry point must name a Study, not a {type(study).__name__}"
        )
    return check_study(study)
