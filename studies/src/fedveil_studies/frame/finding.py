"""Result of a claim on a group of runs: rows, their mean, and one of four verdicts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedveil_studies.frame.described import LEAST, ClaimOf
from fedveil_studies.frame.evidence import Difference, mean_of

HOLDS, CONTRADICTED, NO_DIFFERENCE, CANNOT_TELL = VERDICTS = (
    "holds",
    "contradicted",
    "no difference",
    "cannot tell",
)


LEARNED = 0.05  # above the share of the largest class: less is no learning


ALIKE = 0.02  # noise that differs by a smaller share is called the same


UNTESTED, UNLEARNED = "no runs", "nothing learned"


RULES = (
    f"**{HOLDS}**: the 95% interval of the difference excludes zero on the paper's side.",
    f"**{CONTRADICTED}**: it excludes zero on the other side; for one of several rows, with the 5% shared among them.",
    f"**{NO_DIFFERENCE}**: it includes zero and lies within the margin (.02 unless the claim names another).",
    f"**{CANNOT_TELL}**: none of these; a row needs {LEAST} seeds (draws of the noise on one training are none), and "
    f"one of its two settings an accuracy more than {LEARNED} above the share of the largest class.",
)
"""The four verdicts."""


Decide = Callable[[Difference], str]


@dataclass(frozen=True)
class Row:
    """One test of a claim.

    Attributes
    ----------
    label : str
        Name of the row, beside its column.
    verdict : str
        One of the four verdicts.
    text : str
        The figure as text.
    difference : Difference or None
        Difference that was judged.
    decide : callable or None
        Function ``difference -> verdict``; without it the verdict is final.
    column : str
        Row of the study to which it belongs, or "".
    why : str
        Reason if there is no decision: `UNTESTED`, `UNLEARNED`, or the number of seeds.
    lacking : bool
        Whether runs are missing for a decision.
    level : float or None
        Level with which the figure is compared, if not with another setting.
    tests : int
        Number of comparisons from which this one was selected.
    printed : float or None
        Difference that the paper printed.
    noise, distance : float or None
        Noise of the first setting relative to the second, and its distance d.
    """

    label: str
    verdict: str
    text: str
    difference: Difference | None = None
    decide: Decide | None = None
    column: str = ""
    why: str = ""
    lacking: bool = False
    level: float | None = None
    tests: int = 1
    printed: float | None = None
    noise: float | None = None
    distance: float | None = None

    def contradicts(self, rows: int) -> bool:
        """Whether the row contradicts the claim even as one of several tests that share the 5%."""
        if self.verdict != CONTRADICTED or self.difference is None or self.decide is None:
            return self.verdict == CONTRADICTED
        return self.decide(self.difference.shared(rows * self.tests)) == CONTRADICTED


@dataclass(frozen=True)
class Claim:
    """A claim, and its test on one group of runs or one audit.

    Attributes
    ----------
    of : ClaimOf
        The paper's claim, and how it is judged.
    title : str
        Title of the group.
    rows : tuple of Row
        Tests.
    pooled : bool
        Whether all rows expect the same direction, so that their mean decides.
    """

    of: ClaimOf
    title: str
    rows: tuple[Row, ...]
    pooled: bool = True

    @property
    def tested(self) -> list[Row]:
        """Rows that learned something and have enough runs, or would with more seeds."""
        return [row for row in self.rows if not row.why]

    @property
    def with_runs(self) -> int:
        """Number of rows with at least one run."""
        return sum(row.why != UNTESTED for row in self.rows)

    @property
    def enough(self) -> bool:
        """Whether at least half of the rows have enough runs, whether or not anything was learned."""
        return 2 * sum(not row.lacking for row in self.rows) >= len(self.rows) > 0

    @property
    def interval(self) -> Difference | None:
        """Mean difference over all tested rows, seed by seed; with a single row, its own."""
        differences = [row.difference for row in self.tested if row.difference is not None]
        if not self.pooled or not differences or len(differences) < len(self.tested):
            return None
        if len(differences) == 1:
            return differences[0]
        return mean_of(differences)

    @property
    def verdict(self) -> str:
        """Verdict by the mean over rows, unless a row contradicts; if the mean is undecided, by all rows together."""
        tested = self.tested
        if not tested or 2 * len(tested) < len(self.rows):
            return CANNOT_TELL
        if any(row.contradicts(len(tested)) for row in tested):
            return CONTRADICTED
        decide = tested[0].decide
        if self.interval is not None and decide is not None:
            return decide(self.interval)
        verdicts = {row.verdict for row in tested}
        if len(verdicts) > 1 or verdicts == {CONTRADICTED}:
            return CANNOT_TELL
        return verdicts.pop()

    @property
    def text(self) -> str:
        """Mean difference as text, or the text of the only decided row."""
        if self.interval is not None:
            level = self.tested[0].level
            if level is None:
                return str(self.interval)
            return self.interval.beside(level)
        texts = [row.text for row in self.tested if row.text]
        if len(texts) > 1:
            return "row by row"
        return "".join(texts)

    @property
    def counts(self) -> str:
        """Numbers of rows by verdict, as text."""
        counted = Counter(row.verdict for row in self.tested)
        return ", ".join(f"{counted[v]} {v}" for v in VERDICTS if counted[v])

    @property
    def why(self) -> str:
        """Reasons as text: relative noise of the first setting, and why rows are undecided."""
        causes = []
        times = sorted(row.noise for row in self.tested if row.noise is not None)
        if times:
            between = sorted(row.distance for row in self.tested if row.distance is not None)
            noise = f"{_span(times)} times the noise"
            if times[0] > 1 - ALIKE and times[-1] < 1 + ALIKE:
                noise = "the same noise"
            if between:
                noise += f" (d {_span(between)})"
            causes.append(noise)
        every = len(self.rows)
        for why, count in Counter(row.why for row in self.rows if row.why).items():
            share = str(count)
            if count == every:
                share = "all"
            causes.append(f"{why}: {share} of {every} rows")
        return "; ".join(filter(None, [*causes, self.of.note]))


def _span(values: Sequence[float]) -> str:
    low, high = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    if low == high:
        return low
    return f"{low} to {high}"
