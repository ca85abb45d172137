"""What a game found, for people: tables, notes and pictures, and the same as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path

from fedveil.games import Audit, Judgement
from fedveil.games.game import RESULT
from fedveil.games.inversion import InversionAudit
from fedveil.report.audit_figures import audit_figure, evidence_figure, roc_figure
from fedveil.report.audit_tables import answer, audit_notes, audit_tables, compared, folded, headline
from fedveil.report.canvas import keep
from fedveil.report.inversion import draw_inversion, inversion_table
from fedveil.report.table import NOTHING, Table, shown, write

PAGE = "audit"


@dataclass(frozen=True)
class Shown:
    """Tables, what has to be said below them, the pictures that were drawn, and the answer, which comes first."""

    tables: Sequence[Table]
    notes: Sequence[str]
    pictures: Sequence[Path] = ()
    answer: str = ""

    def write(self, folder: Path) -> list[str]:
        """Write ``audit.md`` and the tables as CSV; the names of all files that a reader of this audit opens."""
        files = write(folder, PAGE, self.tables, self.notes, self.answer)
        return [RESULT, *files, *(f"{file.stem}{kind}" for file in self.pictures for kind in (".png", ".pdf"))]


@singledispatch
def show(judgement: Judgement, folder: Path) -> Shown:
    """Draw what a game found into a folder; a game of yours has its verdicts in one table."""
    rows = []
    for v in judgement.verdicts:
        row = {"attack": v.attack, "setting": v.setting, "figure": f"{v.figure}, over {v.replication}"}
        row["point"] = f"{v.point:.3f}"
        row["95%"] = f"{v.low:.3f} to {v.high:.3f}" if v.low < v.high else NOTHING  # one unit has no interval
        row |= {"n": str(v.n), "without defence": shown(v.without_defence, ".3f")}
        row["valid"] = {True: "yes", False: "no", None: NOTHING}[v.valid]
        rows.append(row | {name: f"{value:.3f}" for name, value in v.details.items()})
    said = folded(judgement.refused)
    said += dict.fromkeys(note for v in judgement.verdicts for note in v.notes)
    roc = judgement.values.get("roc")  # of records
    drawn = [keep(roc_figure(roc), folder / "membership.png", 120)] if roc else []
    return Shown([Table.of(rows, wraps=("figure",))] if rows else [], said, drawn)


@show.register
def _participation(audit: Audit, folder: Path) -> Shown:
    first = headline(audit)
    tables = [t for t in (first, *audit_tables(audit)) if t is not None]
    notes = [*(first.notes if first else []), *audit_notes(audit)]
    figures = {"audit.png": audit_figure(audit), "evidence.png": evidence_figure(audit)}
    drawn = [keep(figure, folder / name, 110) for name, figure in figures.items() if figure is not None]
    return Shown(tables, [*notes, *compared(audit)], drawn, answer(audit))


@show.register
def _inversion(audit: InversionAudit, folder: Path) -> Shown:
    if audit.inverted is None or not audit.verdicts:
        return Shown([], [])
    table, names = inversion_table(audit.inverted), dict.fromkeys(v.attack for v in audit.verdicts)
    files = [draw_inversion(audit.inverted, name, folder / f"inversion-{name}.png", audit.pixels) for name in names]
    return Shown([table], table.notes, files)
