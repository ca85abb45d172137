"""What a game found, for people: tables, notes and pictures, and the same as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path

from fedveil.games import Audit, Judgement
from fedveil.games.game import RESULT
from fedveil.games.inversion import InversionAudit
from fedveil.games.membership import MembershipAudit
from fedveil.report.audit_figures import draw_audit, draw_evidence
from fedveil.report.audit_headline import answer, compared, folded, headline
from fedveil.report.audit_tables import audit_notes, audit_tables
from fedveil.report.inversion import draw_inversion, inversion_table
from fedveil.report.roc import draw_roc
from fedveil.report.table import NOTHING, Table, write

PAGE = "audit"


@dataclass(frozen=True)
class Shown:
    """Tables, what has to be said below them, the pictures that were drawn, and the answer, which comes first."""

    tables: Sequence[Table]
    notes: Sequence[str]
    pictures: Sequence[Path | None] = ()
    answer: str = ""

    def write(self, folder: Path) -> list[str]:
        """Write ``audit.md`` and the tables as CSV; the names of all files that a reader of this audit opens."""
        files = write(folder, PAGE, self.tables, self.notes, self.answer)
        pictures = [file for file in self.pictures if file is not None]
        return [RESULT, *files, *(f"{file.stem}{kind}" for file in pictures for kind in (".png", ".pdf"))]


@singledispatch
def show(found: Judgement, folder: Path) -> Shown:
    """Draw what a game found into a folder; a game of yours has its verdicts in one table."""
    del folder
    details = list(dict.fromkeys(name for v in found.verdicts for name in v.details))
    valid = {True: "yes", False: "no", None: NOTHING}
    rows = [
        [
            v.attack,
            v.setting,
            f"{v.figure}, over {v.replication}",
            f"{v.point:.3f}",
            f"{v.low:.3f} to {v.high:.3f}" if v.low < v.high else NOTHING,  # one unit has no interval
            str(v.n),
            NOTHING if v.without_defence is None else f"{v.without_defence:.3f}",
            valid[v.valid],
            *(f"{v.details[name]:.3f}" if name in v.details else NOTHING for name in details),
        ]
        for v in found.verdicts
    ]
    header = ("attack", "setting", "figure", "point", "95%", "n", "without defence", "valid", *details)
    said = folded(found.refused)
    said += dict.fromkeys(note for v in found.verdicts for note in v.notes)
    return Shown([Table(header, rows, wraps=("figure",))], said)


@show.register
def _membership(found: MembershipAudit, folder: Path) -> Shown:
    shown = show.dispatch(Judgement)(found, folder)
    return Shown(shown.tables, shown.notes, [draw_roc(found, folder / "membership.png")])


@show.register
def _participation(found: Audit, folder: Path) -> Shown:
    first = headline(found)
    tables = [t for t in (first, *audit_tables(found)) if t is not None]
    notes = [*(first.notes if first else []), *audit_notes(found)]
    drawn = [draw_audit(found, folder / "audit.png"), draw_evidence(found, folder / "evidence.png")]
    return Shown(tables, [*notes, *compared(found)], drawn, answer(found))


@show.register
def _inversion(found: InversionAudit, folder: Path) -> Shown:
    if found.inverted is None or not found.verdicts:
        return Shown([], [])
    table, names = inversion_table(found.inverted), dict.fromkeys(v.attack for v in found.verdicts)
    files = [draw_inversion(found.inverted, name, folder / f"inversion-{name}.png", found.pixels) for name in names]
    return Shown([table], table.notes, files)
