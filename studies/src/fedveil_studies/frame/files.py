"""Write a reproduction's files: tables, figures, a line per run, and verdicts on the paper's claims.

Every scale and reading has its own folder, ``<scale>[-<reading>...]``; ``claims.md`` beside these folders judges all of
them. Tables and figures hold everything that is finished, also what was written before.
"""

import dataclasses
import json
import os
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError
from fedveil.evidence import versions
from fedveil.files import write_atomic
from fedveil_lab.grid import Outcome, Store
from fedveil_lab.report.plotting import own_style
from fedveil_lab.runs.provenance import provenance
from fedveil_studies.frame.evidence import reading
from fedveil_studies.frame.measure import measured
from fedveil_studies.frame.page import claims_page
from fedveil_studies.frame.plots import draw_plot
from fedveil_studies.frame.reproduction import Reproduction, Selection
from fedveil_studies.frame.result import Result, from_json, to_json
from fedveil_studies.frame.study import Study
from fedveil_studies.frame.tables import result_table

TABLES, CELLS, CLAIMS = "tables.md", "cells.json", "claims.md"


def refuse_another(folder: Path, study: str) -> None:
    """Refuse a folder with tables of another study, since tables with equal numbers would be replaced.

    Raises
    ------
    FieldError
        If there are such tables; the message names the other study.
    """
    for path in sorted(folder.glob("*/table-*.json")):
        with reading("table", path):
            other = str(json.loads(path.read_bytes()).get("study", ""))
        if other and other != study:  # a damaged table names none, and is said where it is read
            raise FieldError(
                "--out", str(folder), f"holds tables of the study {other}; give another --out"
            )


class Pages:
    """Files of a reproduction in a folder.

    Parameters
    ----------
    folder : Path
        Folder of the study's pages.
    asked : Reproduction
        Requested tables and figures.
    store : Store
        Store that knows the finished runs.
    """

    def __init__(self, folder: Path, asked: Reproduction, store: Store) -> None:
        self.root, self._asked, self._store = folder, asked, store
        self.folder = folder / "-".join([asked.choices.scale, *asked.choices.readings])

    def table(self, table: str) -> Path:
        """Write ``table-<number>.json`` and return its path.

        A figure that was written from more runs than the store has stays as it was.

        Raises
        ------
        FieldError
            If an existing file cannot be read.
        """
        path = self.folder / f"table-{table}.json"
        if path.is_file():
            study = self._with(path)
        else:
            study = self._asked
        finished = self._finished(study, Selection((table,), ()))
        results = [measured(one, finished) for one in study.measurements(table)]
        values = {
            "study": study.study.name,
            "table": table,
            "title": study.tables[table],
            **study.made_of,
            "notes": study.notes([table]),
            "versions": versions(),
            "rows": to_json(_with_written(results, path)),
        }
        return self._write(path, json.dumps(values, indent=1) + "\n")

    @own_style()
    def figure(self, figure: str) -> Path | None:
        """Draw ``figure-<number>.png`` and return its path, or None if nothing is finished."""
        study = self._whole()
        picture = study.study.pictures.get(figure)
        if picture is None:
            drawn = draw_plot(study.plot(figure, self._finished(study, Selection((), (figure,)))))
        else:
            drawn = picture(study)
        if drawn is None:
            return None
        path = self.folder / f"figure-{figure}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, dpi=110)
        return path

    def together(self) -> list[Path]:
        """Write ``tables.md``, ``cells.json`` and, for a study with claims, ``claims.md``; return their paths."""
        study = self._whole()
        finished = self._finished(study, Selection(tuple(study.tables), tuple(study.figures)))
        outcomes = sorted(finished.values(), key=attrgetter("cell.folder"))
        seeds, names = set[int](), set[str]()
        for outcome in outcomes:
            seeds.add(int(outcome.summary.values["seed"]))
            names.add(str(outcome.summary.values["data"]["name"]))
        head, old = provenance(", ".join(sorted(names)), sorted(seeds)), self._old()
        made, runs = {}, set[str]()
        for outcome in outcomes:
            line = self._made(_line(outcome), old, head["commit"])
            made[line["folder"]] = line
            runs.add(line["run"])
        lines = self._kept(old, runs) | made
        cells = [lines[folder] for folder in sorted(lines)]
        written = [
            self._write(self.folder / TABLES, tables_page(self.folder, study.study)),
            self._write(self.folder / CELLS, dumps({"provenance": head, "cells": cells})),
        ]
        if study.study.described.claims:
            written.append(self._write(self.root / CLAIMS, claims_page(self.root, study.study)))
        return written

    def _old(self) -> dict[str, dict[str, Any]]:
        """Lines of cells.json by folder, each with the commit that it is from."""
        path = self.folder / CELLS
        if not path.is_file():
            return {}
        with reading("table", path):
            values = json.loads(path.read_bytes())
            commit = values["provenance"]["commit"]
            return {line["folder"]: {"commit": commit, **line} for line in values["cells"]}

    def _made(
        self, line: dict[str, Any], old: Mapping[str, dict[str, Any]], commit: str
    ) -> dict[str, Any]:
        """A line with its commit: the one it had, where it is the same run, else the present one."""
        known = old.get(line["folder"], {})
        if known == {**known, **line}:
            return known
        return {"commit": commit, **line}

    def _kept(
        self, old: Mapping[str, dict[str, Any]], new: Collection[str]
    ) -> dict[str, dict[str, Any]]:
        """Lines that a table of the folder names; where it has figures, all whose run is not made anew."""
        named, drawn = set[str](), any(self.folder.glob("figure-*.png"))
        for table in self.folder.glob("table-*.json"):
            with reading("table", table):  # a row without runs has no cells
                for row in json.loads(table.read_bytes())["rows"]:
                    named.update(row.get("cells", ()))
        kept = {}
        for name, line in old.items():
            if name in named or (drawn and line["run"] not in new):
                kept[name] = line
        return kept

    def _with(self, *paths: Path) -> Reproduction:
        study = self._asked
        for path in paths:
            with reading("table", path):
                study = study.with_stored(json.loads(path.read_bytes()))
        return study

    def _whole(self) -> Reproduction:
        """What is asked for, and what every table of the folder and every run behind its figures hold beyond it."""
        study = self._with(*sorted(self.folder.glob("table-*.json")))
        seeds = {line["seed"] for line in self._old().values()}
        return study.with_stored({"rows": (), "seeds": seeds})

    def _finished(self, study: Reproduction, selection: Selection) -> Mapping[str, Outcome]:
        return self._store.collect(study.cells(selection)).outcomes

    def _write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        # who only looks takes no lock, and may write while others do
        write_atomic(path, text.encode(), f".{os.getpid()}")
        return path


def tables_page(folder: Path, study: Study) -> str:
    """Make a Markdown page of all tables in a folder, from their files only.

    Raises
    ------
    FieldError
        If a file cannot be read.
    """
    notes: dict[str, None] = {}
    lines, title = [], ""
    for table in study.described.tables:
        path = folder / f"table-{table}.json"
        if not path.is_file():
            continue
        with reading("table", path):
            values = json.loads(path.read_bytes())
            results = [_printed(study, table, result) for result in from_json(values["rows"])]
            notes |= dict.fromkeys(values["notes"])
            title = ", ".join([values["study"], values["scale"], *values["readings"]])
            name = f"{table}: {values['title']}"
        if any(result.value is not None for result in results):
            lines += result_table(name, results, study).markdown()
    remarks = [f"* {note}" for note in notes]
    return "\n".join([f"# {title}", "", *remarks, "", *lines]).rstrip() + "\n"


def _with_written(results: Sequence[Result], path: Path) -> list[Result]:
    """Of each place the figure of more runs: the one just measured, or the one in a table's file."""
    written: dict[tuple[str, str, str], Result] = {}
    if path.is_file():
        with reading("table", path):
            for one in from_json(json.loads(path.read_bytes())["rows"]):
                written[one.row, one.setting, one.figure] = one
    kept = []
    for result in results:
        old = written.get((result.row, result.setting, result.figure), result)
        if len(old.values) > len(result.values):
            kept.append(old)
        else:
            kept.append(result)
    return kept


def _printed(study: Study, table: str, result: Result) -> Result:
    """With the paper's figure, which files of figures without a run may lack."""
    place = (table, result.row, result.setting, result.figure)
    return dataclasses.replace(result, published=result.published or study.published.get(place))


def dumps(values: Mapping[str, Any]) -> str:
    """Write JSON with one line per key, and one per entry of a list of objects."""
    parts = []
    for key, value in values.items():
        shown = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            shown = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
        parts.append(f"{json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(outcome: Outcome) -> dict[str, Any]:
    """What made one cell, and its rounds; the cell's key ends the folder's name."""
    values = outcome.summary.values
    names = ["sigma", "distance", "accuracy"]
    if outcome.rows:
        names += outcome.rows[0].get("figures", {})
    rounds = {}
    for name in dict.fromkeys(names):
        series = outcome.series(name)
        if series:
            rounds[name] = [float(f"{value:.6g}") for value in series]
    return {
        "run": outcome.cell.label,
        "folder": outcome.folder_name,
        "seed": values["seed"],
        "device": values["device"],
        "workers": values["workers"],
        "versions": {name: text.split("+")[0] for name, text in values["versions"].items()},
        "numerics": values["numerics"],
        "seconds": values["seconds"]["rounds"],
        "guarantee": values["guarantee"],
        "rounds": rounds,
    }
