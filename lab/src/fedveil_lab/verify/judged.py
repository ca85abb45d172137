"""Verdict about a privacy claim: claimed, proven and measured figures, the worlds, and what speaks against the claim."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedveil.files import make_folder, write_atomic
from fedveil.gdp import rounded_down, rounded_up
from fedveil.tables import NOTHING, Table
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps, Proven
from fedveil_lab.verify.measuring import ROWS, LowerBound, Measurement, refuted_by

COMPOSITION, INSPECTION, WORLD, SCORES = "composition", "inspection", "worst-case world", "scores"
NOT_TRUE = "not refuted: that does not show that it is true"
FILES = ("verdict.json", "verdict.md")
ROUNDED = 1e-3  # of a claimed epsilon: people print few digits


@dataclass(frozen=True)
class Caught:
    """One finding that speaks against a claim.

    Attributes
    ----------
    by : str
        How it was found: composition, inspection, worst-case world or scores.
    what : str
        The finding in one sentence.
    refutes : bool
        Whether the claim cannot hold. Else the description does not prove it.
    """

    by: str
    what: str
    refutes: bool


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Verdict about the privacy claim of one subject.

    Attributes
    ----------
    subject : str
        The file, function or folder.
    claim : PrivacyClaim or None
        The claim; None if there is none.
    proven : Proven or None
        Epsilon that follows from the described steps.
    measured : Measurement or None
        Lower bounds from runs or scores.
    world : str
        Name of the pair of worlds that was judged.
    caught : tuple of Caught
        Findings against the claim.
    printed : str
        Epsilons that the subject prints itself.
    effort : dict
        Planned and used numbers of runs and seconds.
    notes : tuple of str
        Remarks for the reader of the verdict.
    """

    subject: str
    claim: PrivacyClaim | None = None
    proven: Proven | None = None
    measured: Measurement | None = None
    world: str = ""
    caught: tuple[Caught, ...] = ()
    printed: str = ""
    effort: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def refuted(self) -> bool:
        """Whether a finding shows that the claim cannot hold."""
        return any(one.refutes for one in self.caught)

    @property
    def in_reach(self) -> bool:
        """Whether this number of runs could have refuted the claim."""
        bound = self._bound()
        return self.claim is None or bound is None or bound.ceiling > self.claim.most

    @property
    def answer(self) -> str:
        """The verdict in one line."""
        if self.claim is None:
            return "no claim was given: bounds alone"
        first = next((one for one in self.caught if one.refutes), None)
        if first is not None:
            return f"REFUTED by {first.by}: {first.what}"
        open_ = next((one for one in self.caught if not one.refutes), None)
        if open_ is not None:
            return f"NOT PROVEN as described, by {open_.by}: {open_.what}"
        if self._bound() is None:
            return "not tested: nothing was measured"
        if not self.in_reach:
            return (
                f"out of reach: so few runs refute no {self.claim.figure} of {self.claim.most:.3g}"
            )
        return NOT_TRUE

    def _bound(self) -> LowerBound | None:
        if self.measured is None or self.claim is None:
            return None
        return self.measured.best(self.claim.figure)

    def table(self) -> Table:
        """Make the table of the verdict: claimed, proven and measured figures, worlds and answer."""
        rows = [("subject", self.subject)]
        rows.append(("claimed", NOTHING if self.claim is None else self.claim.describe()))
        if self.printed:
            rows.append(("printed", f"eps={self.printed}"))
        rows.append(
            (
                "proven",
                "not asked: no steps are described"
                if self.proven is None
                else self.proven.describe(),
            )
        )
        rows.append(("measured", self._measured()))
        if self.world:
            rows.append(("shown by" if self.refuted else "most telling world", self.world))
        rows += [(f"caught by {one.by}", one.what) for one in self.caught]
        rows.append(("verdict", self.answer))
        rows += [("", note) for note in self.notes]
        return Table.facts(rows, data=self.to_dict())

    def _measured(self) -> str:
        if self.measured is None:
            return "nothing"
        lines = []
        for figure in ("epsilon", "mu"):
            best = self.measured.best(figure)
            if best is not None:
                lines.append(shown_bound(best))
        if not lines:
            return "no bound: " + ROWS[self.measured.rows]
        scores = f"{self.measured.inside:,} scores in, {self.measured.outside:,} out"
        lines.append(f"together at confidence {self.measured.confidence:.4g}, {scores}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "subject": self.subject,
            "claim": None if self.claim is None else dict(vars(self.claim)),
            "printed": self.printed,
            "proven": None if self.proven is None else self.proven.to_dict(),
            "measured": None if self.measured is None else self.measured.to_dict(),
            "world": self.world,
            "caught": [dict(vars(one)) for one in self.caught],
            "refuted": None if self.claim is None else self.refuted,
            "verdict": self.answer,
            "effort": self.effort,
            "notes": list(self.notes),
        }

    def write(self, folder: Path, provenance: dict[str, Any]) -> None:
        """Write the verdict to a folder, as a page and as JSON."""
        import json

        make_folder(folder)
        values = {"provenance": provenance, **self.to_dict()}
        write_atomic(folder / FILES[0], (json.dumps(values, indent=1, default=str) + "\n").encode())
        lines = [f"# {self.subject}", "", self.answer, ""]
        facts = self.table()
        rows = [[str(cell).replace("\n", "<br>") for cell in row] for row in facts.rows]
        for table in (replace(facts, rows=rows), *self.details()):
            lines += table.markdown()
        write_atomic(folder / FILES[1], ("\n".join(lines).rstrip() + "\n").encode())

    def details(self) -> list[Table]:
        """Make tables of every bound with its ceiling, and of the rates."""
        return [] if self.measured is None else measured_tables(self.measured)


def shown_bound(bound: LowerBound) -> str:
    """Write a bound and its ceiling in one line."""
    at = f" at delta={bound.delta:g}" if bound.delta is not None else ""
    figures = f"at least {bound.figure} {rounded_down(bound.value)}{at}"
    return f"{figures} (so many scores show at most {rounded_down(bound.ceiling)}; {bound.method})"


def measured_tables(measured: Measurement) -> list[Table]:
    """Make a table of the bounds by method, and one of the rates."""
    rows = []
    for one in measured.bounds:
        delta = NOTHING if one.delta is None else f"{one.delta:g}"
        sure = f"{one.confidence:.3%}"
        rows.append(
            (
                one.method,
                one.figure,
                delta,
                rounded_down(one.value),
                rounded_down(one.ceiling),
                sure,
            )
        )
    header = ("method", "figure", "delta", "at least", "ceiling", "confidence of its own")
    numbers = ("delta", "at least", "ceiling", "confidence of its own")
    tables = [Table(header, rows, title="Lower bounds", numbers=numbers)] if rows else []
    area = measured.area
    rates: list[tuple[str, str]] = [
        ("AUC", f"{area.point:.3f} ({area.low:.3f} to {area.high:.3f})")
    ]
    for alpha, found in measured.true_rates.items():
        text = (
            "too few scores"
            if found is None
            else f"{found.point:.3f} ({found.low:.3f} to {found.high:.3f})"
        )
        rates.append((f"true positive rate at {alpha:g} false ones", text))
    tables.append(Table(("figure", "point (95% each)"), rates, title="Rates"))
    return tables


def judge_bounds(
    claim: PrivacyClaim | None,
    measured: Measurement | None,
    by: str,
    world: str = "",
    proven: Proven | None = None,
) -> tuple[Caught, ...]:
    """List the findings of measured bounds and described steps against a claim."""
    if claim is None:
        return ()
    caught = []
    if measured is not None:
        bound = refuted_by(measured.bounds, claim.figure, claim.most)
        if bound is not None:
            where = f" in the world {world!r}" if world else ""
            shown = f"at least {claim.figure} {rounded_down(bound.value)}{where}"
            caught.append(Caught(by, f"measured {shown}, where {claim.most:.3g} is allowed", True))
    if proven is not None:
        caught += described_faults(claim, proven)
    return tuple(caught)


def described_faults(claim: PrivacyClaim, proven: Proven) -> list[Caught]:
    """List the findings of described steps against a claim: a larger epsilon, or nothing that can be proven."""
    if proven.epsilon is None:
        return [Caught(INSPECTION, text, False) for _, text in proven.faults]
    allowed = claim.epsilon_at(proven.delta)
    if proven.epsilon <= allowed * (1 + ROUNDED):
        return []
    faults = "; ".join(text for _, text in proven.faults)
    what = f"the steps as described cost eps={rounded_up(proven.epsilon)}, and {allowed:.4g} is claimed"
    by = INSPECTION if faults else COMPOSITION
    return [Caught(by, f"{what} ({faults})" if faults else what, False)]


def described_alone(
    subject: str, claim: PrivacyClaim, steps: MechanismSteps, delta: float | None = None
) -> Judged:
    """Judge a description of steps without any run."""
    from fedveil_lab.verify.described import prove

    proven = prove(steps, claim, delta)
    return Judged(
        subject=subject, claim=claim, proven=proven, caught=tuple(described_faults(claim, proven))
    )
