"""A paper's claims, judged by stated rules on the figures of table files, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedveil.reproduce.audited import Audited
from fedveil.reproduce.evidence import DRAWS, Difference, Figure, Source, against, differ, mean_of

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
UNDECIDED, NOT_YET, UNTESTABLE = "undecided", "not tested yet", "not testable here"
DECIDED = (REPRODUCED, NOT_REPRODUCED)
OURS = {REPRODUCED: "holds", NOT_REPRODUCED: "does not hold"}  # of what the paper does not claim
HOLDS, REVERSED, NONE, OPEN = "holds", "reversed", "no difference", "open"
UNTESTED, UNLEARNED, NOISIER = "untested", "nothing learned", "more noise"
AGAINST = (REVERSED, NONE)
TESTED = (HOLDS, *AGAINST, OPEN)
STATES = (*TESTED, NOISIER, UNLEARNED, UNTESTED)
Accuracies = tuple[Figure | None, Figure | None]
PAPER = "paper"  # the scale whose noise-to-clip ratio the others keep, and at which everything can be tested
PRINTED_NOISE = "printed-noise"  # a reading that the paper's own scale does not need
LEAST = 3  # seeds that a verdict needs
MANY = 10  # seeds that may decide what is open with fewer
LEARNED = 0.05  # above the share of the largest class: less is no learning
SMALL = 0.02  # an accuracy, F1, precision or AUC that differs by less, with its whole interval, does not differ

RULE = (
    "A claim is tested row by row (a row is an aggregation rule, or a figure of it): the two settings are paired under "
    "the same seeds, and Student's 95% interval of their mean difference decides. A row *holds* if the interval "
    "excludes zero on the paper's side and is *reversed* if it excludes zero on the other. If it includes zero the row "
    f"is *open*, or shows *no difference* where the whole interval lies within {SMALL} of zero (accuracy, F1, "
    'precision, AUC) and excludes what the paper printed. "Alike" and levels are judged by the same interval: it has '
    f"to lie within the margin, or beyond the level. A row is *untested* with fewer than {LEAST} seeds (draws of the "
    "noise on one training are not seeds), and shows *nothing learned* where neither setting's accuracy is more than "
    f"{LEARNED} above the share of the largest class. Away from the paper's scale it shows *more noise* where metric "
    "privacy does not come out ahead and its average sigma is above global DP's, which does not test what it does "
    "where it adds less. *Reproduced*: every row of the claim holds. *Not reproduced*: the mean over all tested rows "
    "is reversed, or a row is reversed or shows no difference and is neither open nor better with the 5% shared "
    "between the tested rows (one of many rows looks reversed by chance). *Undecided*: neither, and a row does not "
    "hold; with three seeds only a difference of two and a half of its deviations or more is seen in a row, so the "
    "mean over all tested rows, which sees smaller ones, stands beside it, unless rows were set aside for more noise: "
    "what is left of them is chosen by its outcome. A claim over five runs needs five; a deviation is judged by its "
    "chi-square interval; a rival that is chosen as the best of several shares the 5% with them. What the paper does "
    "not ask *holds* or *does not hold* by the same rules. *Not tested yet*: runs are missing. *Not testable here*: "
    "none of these; where nothing is learned at this scale, or metric privacy adds more noise, more runs of it will "
    "not help."
)


@dataclass(frozen=True)
class Row:
    """One test of a claim.

    Attributes
    ----------
    label, state, text : str
        Its name, what came of it, and the figure for people.
    found : Difference or None
        That was judged.
    judge : callable or None
        ``difference -> state``; without one the state is final.
    chosen : int
        Of how many comparisons it is the most telling one.
    """

    label: str
    state: str
    text: str
    found: Difference | None = None
    judge: Callable[[Difference], str] | None = None
    chosen: int = 1

    def refutes(self, tests: int) -> bool:
        """Whether it speaks against the claim as one of several tests that share the 5%, too."""
        if self.state not in AGAINST:
            return False
        if self.found is None or self.judge is None:
            return True
        return self.judge(self.found.shared(tests * self.chosen)) in AGAINST


@dataclass(frozen=True)
class Finding:
    """What one source says of a claim.

    Attributes
    ----------
    title : str
        Of the source.
    rows : tuple of Row
        Tests.
    advice : str
        What would decide it, if it is not decided and anything would.
    pooled : bool
        Whether all rows ask for the same direction, so that a mean over them says something.
    """

    title: str
    rows: tuple[Row, ...]
    advice: str
    pooled: bool = True

    def of(self, state: str) -> list[Row]:
        """The rows in a state."""
        return [row for row in self.rows if row.state == state]

    @property
    def verdict(self) -> str:
        """By `RULE`."""
        states = {row.state for row in self.rows}
        if self._refuted():
            return NOT_REPRODUCED
        if states & {*AGAINST, OPEN}:
            return UNDECIDED
        if UNTESTED in states:
            return NOT_YET
        return REPRODUCED if states == {HOLDS} else UNTESTABLE

    @property
    def together(self) -> Difference | None:
        """The mean over all tested rows, seed by seed; None where there are not several, or a mean says nothing.

        Which rows add more noise is known beforehand, but those of them that hold all the same stay: a mean over what
        is left when the others are set aside would be a mean over the lucky ones.
        """
        tested = self._tested()
        found = [row.found for row in tested if row.found is not None]
        whole = self.pooled and not self.of(NOISIER) and 1 < len(found) == len(tested)
        return mean_of(found) if whole else None

    def _tested(self) -> list[Row]:
        return [row for row in self.rows if row.state in TESTED]

    def _refuted(self) -> bool:
        """Whether more speaks against the claim than the luck of one row among several."""
        tested, whole = self._tested(), self.together
        if whole is not None and tested[0].judge is not None and tested[0].judge(whole) == REVERSED:
            return True
        return any(row.refutes(len(tested)) for row in tested)


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes
    ----------
    name, text : str
        For the overview; and what the paper says, with the place.
    tables : tuple of str
        That it is tested on.
    judge : callable
        ``source -> rows``.
    seeds : int
        That a row needs.
    note : str
        What has to be said beside the verdict.
    pooled : bool
        Whether all rows ask for the same direction.
    asked : bool
        Whether the paper claims it; else it is a question of ours.
    """

    name: str
    text: str
    tables: tuple[str, ...]
    judge: Callable[[Source], Iterable[Row]]
    seeds: int = LEAST
    note: str = ""
    pooled: bool = True
    asked: bool = True

    def finding(self, source: Source) -> Finding:
        """What table files say."""
        rows = tuple(self._with_seeds(row) for row in self.judge(source))
        return Finding(source.title, rows, self._advice(source, rows), self.pooled)

    def _with_seeds(self, row: Row) -> Row:
        few = row.state in TESTED and row.found is not None and row.found.count < self.seeds
        return replace(row, state=UNTESTED) if few else row

    def _advice(self, source: Source, rows: Sequence[Row]) -> str:
        """The command that makes what is missing; none where it would change nothing."""
        states = {row.state for row in rows}
        if UNTESTED in states:
            return f"`{source.command(self.tables, self.seeds)}`"
        if states & {UNLEARNED, NOISIER}:  # more of the same would not help
            if source.scale == PAPER:
                return ""
            whole = replace(source, scale=PAPER, readings=tuple(r for r in source.readings if r != PRINTED_NOISE))
            return f"`{whole.command(self.tables, self.seeds)}`"
        known = max((row.found.count for row in rows if row.found is not None), default=0)
        return f"`{source.command(self.tables, MANY if known < MANY else 2 * known)}`"


@dataclass(frozen=True)
class AuditClaim:
    """A claim that is tested on independent runs with and without a client; see `Claim`."""

    name: str
    text: str
    judge: Callable[[Audited], Iterable[Row]]
    note: str = ""
    command: str = ""
    asked: bool = True

    def finding(self, audit: Audited) -> Finding:
        """What an audit says; `command` plays what it lacks."""
        rows = tuple(self.judge(audit))
        missing = any(row.state == UNTESTED for row in rows)
        advice = f"as in `{self.command}`" if missing and self.command else f"with more runs, `{audit.command}`"
        return Finding(audit.title, rows, advice, pooled=False)


def compared(
    label: str,
    first: Figure | None,
    second: Figure | None,
    sign: int,
    accuracies: Accuracies = (None, None),
    small: float | None = None,
) -> Row:
    """Whether one setting lies above (sign 1) or below (-1) another, if by their accuracies either learns anything."""
    found = None if first is None or second is None else differ(first, second)
    if first is None or second is None or found is None:
        return Row(label, UNTESTED, "no finished pair of runs")
    printed = None
    if first.published is not None and second.published is not None:
        printed = first.published - second.published
    return _unlearned(label, accuracies) or judged(label, found, described(found), sign, small, printed)


def noisier(row: Row, first: Figure | None, second: Figure | None) -> Row:
    """A row in which the first setting has more noise than the second, and does not come out ahead."""
    if first is None or second is None or not first.sigma or not second.sigma:
        return row
    times = first.sigma / second.sigma
    if times <= 1 or row.state not in (*AGAINST, OPEN):
        return row
    d = "" if first.distance is None else f" (d {first.distance:.2f})"
    return replace(row, state=NOISIER, text=f"{row.text}, with {times:.3g} times the noise{d}", judge=None)


def judged(
    label: str, found: Difference, text: str, sign: int, small: float | None = None, printed: float | None = None
) -> Row:
    """A row by `state_of`."""
    judge = partial(state_of, sign=sign, small=small, printed=printed)
    return Row(label, judge(found), text, found, judge)


def strongest(row: Row, of: int) -> Row:
    """A row that was chosen from several comparisons because it is the hardest: it may hold, but not refute, alone."""
    if row.found is None or row.judge is None or row.state not in AGAINST:
        return replace(row, chosen=of)
    return replace(row, chosen=of, state=row.judge(row.found.shared(of)))


def _unlearned(label: str, accuracies: Accuracies) -> Row | None:
    known = [a for a in accuracies if a is not None and a.chance is not None]
    chance = max((a.chance for a in known if a.chance is not None), default=0.0)
    best = max((a.mean for a in known), default=1.0)
    if best > chance + LEARNED:
        return None
    return Row(label, UNLEARNED, f"{best:.3f} at best (the largest class alone: {chance:.3f})")


def levelled(label: str, figure: Figure | None, level: float, sign: int) -> Row:
    """Whether a figure lies above or below a level."""
    if figure is None:
        return Row(label, UNTESTED, "no finished run")
    found = against(figure, level)
    return judged(label, found, f"{figure.mean:.3g} against {level:g}: {described(found)}", sign)


def alike(
    label: str, first: Figure | None, second: Figure | None, margin: float, accuracies: Accuracies = (None, None)
) -> Row:
    """Whether two settings differ by no more than a margin: the whole interval has to lie within it."""
    found = None if first is None or second is None else differ(first, second)
    if found is None:
        return Row(label, UNTESTED, "no finished pair of runs")
    text = f"{described(found)}, margin {margin:g}"
    judge = partial(within, margin=margin)
    return _unlearned(label, accuracies) or Row(label, judge(found), text, found, judge)


def within(found: Difference, margin: float) -> str:
    """The state of "they are alike": reversed if they certainly differ by more."""
    if _too_few(found):
        return UNTESTED
    if -margin <= found.low and found.high <= margin:
        return HOLDS
    return REVERSED if found.low > margin or found.high < -margin else OPEN


def state_of(found: Difference, sign: int, small: float | None = None, printed: float | None = None) -> str:
    """The state of a difference; `small` is what counts as none, `printed` the paper's."""
    if _too_few(found):
        return UNTESTED
    if found.low > 0 or found.high < 0:
        return HOLDS if found.mean * sign > 0 else REVERSED
    contradicted = printed is None or not found.low <= printed <= found.high
    none = small is not None and -small <= found.low and found.high <= small and contradicted
    return NONE if none else OPEN


def _too_few(found: Difference) -> bool:
    return found.count < LEAST or found.over == DRAWS


def described(found: Difference) -> str:
    """The difference with what it is over."""
    return f"{found}, {found.count} {found.over}" if found.count > 1 else f"{found}, {found.over}"


def overview(
    claims: Sequence[Claim | AuditClaim], findings: Sequence[Sequence[Finding]], titles: Sequence[str]
) -> list[str]:
    """A table in Markdown: a line a claim, a column a source."""
    lines = [f"| claim | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for claim, found in zip(claims, findings, strict=True):
        verdicts = {f.title: f.verdict for f in found}
        cells = [verdicts.get(title, "") for title in titles]
        shown = [f"**{_worded(claim, cell)}**" if cell in DECIDED else cell for cell in cells]
        lines.append(f"| {claim.name} | {' | '.join(shown)} |")
    return lines


def section(claim: Claim | AuditClaim, findings: Sequence[Finding]) -> list[str]:
    """One claim in Markdown: the words, then verdict and figures of each source."""
    lines = [f"### {claim.name}", "", claim.text + (f" {claim.note}" if claim.note else ""), ""]
    for found in findings:
        counts = ", ".join(f"{len(found.of(s))} {s}" for s in STATES if found.of(s))
        lines.append(f"* {found.title}: **{_worded(claim, found.verdict)}** ({counts})")
        lines += [f"    * {state}: {_listed(found.of(state))}" for state in STATES if found.of(state)]
        if found.together is not None:
            lines.append(f"    * mean over all tested rows: {described(found.together)}")
        if found.advice and found.verdict not in DECIDED:
            lines.append(f"    * to decide it: {found.advice}")
    return [*lines, ""]


def _worded(claim: Claim | AuditClaim, verdict: str) -> str:
    """What nobody claimed is not reproduced either: it holds, or does not."""
    return verdict if claim.asked else OURS.get(verdict, verdict)


def _listed(rows: Sequence[Row]) -> str:
    """Rows with their figures; those of which the same is to be said together."""
    by_text: dict[str, list[str]] = {}
    for row in rows:
        by_text.setdefault(row.text, []).append(row.label)
    return "; ".join(f"{', '.join(labels)} {text}" for text, labels in by_text.items())
