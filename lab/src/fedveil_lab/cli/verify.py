"""Is an epsilon true: `fedveil verify` on scores, mechanisms and apps of anybody, and on FedVeil's own methods."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil_lab.cli import shared
from fedveil_lab.cli.shared import fail, refusals, say, show

if TYPE_CHECKING:
    from fedveil_lab.verify import Judged

SUBJECT = "A mechanism FILE.py:FUNCTION; without it, and without --scores, FedVeil's own methods."
CLAIM = "What is claimed: eps=1 delta=1e-5 (or mu=0.5), relation, client or record, total or round, central or local."
ROWS = "What a score is of: runs (each its own), canaries (of one run, by fair coins) or records (no coin: no bound)."
STEPS = "What the code does, to be composed: noise_multiplier=1.1 lots=poisson rate=0.01 steps=1000, say."
CAUGHT = 1


def verify(
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help=SUBJECT)] = None,
    claim: Annotated[str | None, typer.Option("--claim", metavar="TEXT", help=CLAIM)] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", metavar="FILE.csv", help="Scores in and out, of any tool.")
    ] = None,
    rows: Annotated[str | None, typer.Option("--rows", metavar="KIND", help=ROWS)] = None,
    lower_is_in: Annotated[bool, typer.Option("--lower-is-in", help="Lower scores mean in, as of a loss.")] = False,
    delta: Annotated[
        float | None, typer.Option("--delta", help="At which epsilon is bounded; default: the claim's, or 1e-5.")
    ] = None,
    alpha: Annotated[float, typer.Option("--alpha", help="Chance that any bound of this command is too large.")] = 0.01,
    steps: Annotated[str | None, typer.Option("--steps", metavar="TEXT", help=STEPS)] = None,
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", help="Own methods: runs of each world; 2,000 prove mu 4.9.")
    ] = 2000,
    canaries: Annotated[
        int, typer.Option("--canaries", metavar="M", help="Own methods: M canaries in one run; 1,000 are usual.")
    ] = 0,
    out: shared.Out = None,
) -> None:
    """Say what is claimed, what can be proven, and what runs or scores show; exit code 1 if a claim is caught.

    Not refuted does not mean true: more runs, or a better attack, may show more.

    \b
    Scores of any tool:   fedveil verify --scores FILE.csv --rows runs --claim "eps=1 delta=1e-5 ..."
    MechanismSteps as described:   fedveil verify --steps "noise_multiplier=1.5 steps=50" --claim "..."
    FedVeil's methods:    fedveil verify (the worst case of each, and its noise over ten rounds; or --canaries M)
    """  # noqa: D301 - the control character itself, by which click leaves the lines below it alone
    with refusals():
        if subject is None and scores is None and claim is None and steps is None:
            from fedveil_lab.cli.own_methods import verify_own

            verify_own(runs, canaries, out)
            return
        judged = _judged(subject, claim, scores, rows, lower_is_in, delta, alpha, steps)
        _keep(judged, out)


def _judged(
    subject: str | None,
    claim: str | None,
    scores: Path | None,
    rows: str | None,
    lower_is_in: bool,
    delta: float | None,
    alpha: float,
    steps: str | None,
) -> "Judged":
    """Go through the door that the options name."""
    from fedveil.errors import FieldError
    from fedveil_lab.verify import MechanismSteps, PrivacyClaim, read_scores, verify_scores
    from fedveil_lab.verify.judged import described_alone

    own = None if claim is None else PrivacyClaim.parse(claim)
    if subject is not None and scores is not None:
        raise FieldError("--scores", str(scores), "is for scores alone: leave the subject away")
    if scores is not None:
        if rows is None:
            raise FieldError("--rows", rows, "say runs, canaries or records: what a score is of decides what it proves")
        first, second = read_scores(scores)
        options = {"rows": rows, "claim": claim, "delta": delta, "alpha": alpha, "lower_is_in": lower_is_in}
        return verify_scores(first, second, **options, subject=scores.name)  # type: ignore[arg-type]
    if subject is None and steps is not None:
        if own is None:
            raise FieldError("--claim", claim, "is needed beside --steps: its relation and scope decide")
        return described_alone("steps as described", own, MechanismSteps.parse(steps), delta)
    raise FieldError("SUBJECT", subject, "give a mechanism, --scores or --steps beside --claim")


def _keep(judged: "Judged", out: Path | None) -> None:
    """Show and write a verdict, and end with its exit code."""
    from fedveil.files import refuse_strangers
    from fedveil_lab.runs.provenance import provenance
    from fedveil_lab.verify.judged import FILES

    folder = out or shared.fresh(Path("runs/verdict"))
    refuse_strangers(folder, FILES)
    for table in judged.details():
        show([table], [""])
    show([judged.table()])
    judged.write(folder, provenance(judged.subject, judged.effort.get("seeds", [])))
    say(f"written to {folder}: {', '.join(FILES)}", whole=True)
    if judged.caught:
        fail(judged.answer, CAUGHT)
