"""`fedveil verify`: test whether a claimed epsilon is true, for scores, mechanisms, apps, jobs and FedVeil's methods."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil_lab.cli import shared
from fedveil_lab.cli.shared import fail, refusals, say, show

if TYPE_CHECKING:
    from fedveil_lab.verify import Judged

SUBJECT = "A mechanism FILE.py:FUNCTION, or the folder of a Flower app or a FLARE job; default: FedVeil's own methods."
CLAIM = "Claim: eps=1 delta=1e-5 (or mu=0.5), relation, client, record or person, total or round, central or local."
ROWS = "Kind of the scores: runs (one each), canaries (of one run, in by fair coins) or records (no bound follows)."
STEPS = "Steps of the code, to compose: for example noise_multiplier=1.1 lots=poisson rate=0.01 steps=1000."
WITHOUT = "Test world to leave out because the claim is not meant for it, such as 'not a number'; repeatable."
RUNS = "Number of runs; for FedVeil's own methods: of each world (default: 2,000, which can show mu 4.9)."
CANARIES = "Canaries to judge in few runs, for an app or a job (FLARE: 64); for FedVeil's own methods: in one run."
SECONDS = "Time after which no run begins; default: 60, unless --runs or --canaries is given."
CAUGHT = 1
OWN = "own-methods"


def verify(
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help=SUBJECT)] = None,
    claim: Annotated[str | None, typer.Option("--claim", metavar="TEXT", help=CLAIM)] = None,
    scores: Annotated[
        Path | None,
        typer.Option("--scores", metavar="FILE.csv", help="Scores of any tool, in and out."),
    ] = None,
    rows: Annotated[str | None, typer.Option("--rows", metavar="KIND", help=ROWS)] = None,
    lower_is_in: Annotated[
        bool, typer.Option("--lower-is-in", help="Lower scores mean in, as for a loss.")
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta",
            help="Failure probability at which epsilon is bounded; default: the claim's, or 1e-5.",
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Chance that a bound of this command is too large.")
    ] = 0.01,
    steps: Annotated[str | None, typer.Option("--steps", metavar="TEXT", help=STEPS)] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients", metavar="N", help="Clients (data sets) in a test world; default: 3."
        ),
    ] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", metavar="N", help="Rows of a client; default: 4.")
    ] = None,
    columns: Annotated[
        int | None, typer.Option("--columns", metavar="N", help="Columns of a row; default: 4.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="TRAP", help=WITHOUT)
    ] = None,
    runs: Annotated[int | None, typer.Option("--runs", metavar="N", help=RUNS)] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", metavar="S", help=SECONDS)] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="S", help="Time for one run; default: 30.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed from which those of all runs are drawn.")
    ] = 0,
    canaries: Annotated[int | None, typer.Option("--canaries", metavar="M", help=CANARIES)] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE.html", help="Write the verdict as a page, too."),
    ] = None,
    out: shared.Out = None,
) -> None:
    """Check whether a claimed epsilon is true.

    Shows what is claimed, what can be proven, and what runs or scores measure. Exit code 1: the claim is refuted.

    Not refuted does not mean true: more runs, or a better attack, may show more.

    \b
    Scores of any tool:   fedveil verify --scores FILE.csv --rows runs --claim "eps=1 delta=1e-5 ..."
    Anybody's function:   fedveil verify my.py:mechanism --claim "eps=1 delta=1e-5 zero-out client total central"
    A Flower app:         fedveil verify APPFOLDER --claim "..."
    A FLARE job:          fedveil verify JOBFOLDER --claim "..."
    Steps as described:   fedveil verify --steps "noise_multiplier=1.5 steps=50" --claim "..."
    FedVeil's methods:    fedveil verify (of the package fedveil-studies: the worst case of each, and its noise over ten
                          rounds; or --canaries M)

    A mechanism takes data sets, one array [examples, columns] a client, and a seed. verify.toml beside it may
    say the same as the options, below [verify] and [verify.steps].
    """  # noqa: D301 - the control character itself, by which click leaves the lines below it alone
    with refusals():
        _refuse_unread(subject, scores, rows, steps, canaries)
        if subject is None and scores is None and claim is None and steps is None:
            _own_methods()(runs or 2000, canaries or 0, out)
            return
        _refuse_another(out)
        if page is not None:
            _require_page(page)
        if scores is not None:
            judged = _scored(subject, scores, rows, claim, delta, alpha, lower_is_in)
        elif subject is None:
            judged = _described(claim, steps, delta)
        else:
            sizes = {"clients": clients, "examples": examples, "columns": columns}
            effort = {"runs": runs, "seconds": seconds, "seed": seed, "alpha": alpha}
            judged = _played(subject, claim, steps, sizes, without, effort, timeout, canaries)
        _keep(judged, out, page)


def _own_methods() -> Callable[[int, int, Path | None], None]:
    """Return the function that tests FedVeil's own methods; its arguments are runs, canaries and a folder.

    It is an entry point of the group `fedveil.verify`, under the name `own-methods`.

    Raises
    ------
    FedVeilError
        If no installed package provides it.
    """
    from fedveil.errors import FedVeilError
    from fedveil.registry import Registry

    players = Registry[Callable[[int, int, Path | None], None]](
        "SUBJECT", {}, group="fedveil.verify"
    )
    if OWN not in players:
        needed = "pip install fedveil-studies (in a checkout: pip install ./studies)"
        raise FedVeilError(f"the worlds of FedVeil's own methods are not installed: {needed}")
    return players[OWN]


def _refuse_unread(
    subject: str | None,
    scores: Path | None,
    rows: str | None,
    steps: str | None,
    canaries: int | None,
) -> None:
    """Refuse an option that has no effect on the subject."""
    from fedveil.errors import FieldError

    if scores is None and rows is not None:
        raise FieldError("--rows", rows, "says what a score is of: it goes with --scores")
    if scores is not None and steps is not None:
        raise FieldError("--steps", steps, "goes with a mechanism, or without any subject")
    others = scores is not None or steps is not None
    if canaries is not None and subject is None and others:
        raise FieldError(
            "--canaries", canaries, "goes with an app, a job, or FedVeil's own methods"
        )
    if canaries is not None and subject is not None and not Path(subject).is_dir():
        accepted = "goes with the folder of an app or a job: a mechanism is compared run by run"
        raise FieldError("--canaries", canaries, accepted)


def _scored(
    subject: str | None,
    scores: Path,
    rows: str | None,
    claim: str | None,
    delta: float | None,
    alpha: float,
    lower_is_in: bool,
) -> "Judged":
    """Judge a claim by a table of scores."""
    from fedveil.errors import FieldError
    from fedveil_lab.verify import read_scores, verify_scores

    if subject is not None:
        raise FieldError("--scores", str(scores), "is for scores alone: leave the subject away")
    if rows is None:
        raise FieldError(
            "--rows",
            rows,
            "say runs, canaries or records: what a score is of decides what it proves",
        )
    inside, outside = read_scores(scores, rows)
    return verify_scores(
        inside,
        outside,
        rows=rows,
        claim=claim,
        delta=delta,
        alpha=alpha,
        lower_is_in=lower_is_in,
        subject=scores.name,
    )


def _described(claim: str | None, steps: str | None, delta: float | None) -> "Judged":
    """Judge a claim by the described steps."""
    from fedveil.errors import FieldError
    from fedveil_lab.verify import MechanismSteps, PrivacyClaim
    from fedveil_lab.verify.judged import described_alone

    if claim is None:
        raise FieldError(
            "--claim", claim, "is needed beside --steps: its relation and scope decide"
        )
    if steps is None:
        raise FieldError(
            "SUBJECT", None, "give a mechanism FILE.py:FUNCTION, --scores or --steps beside --claim"
        )
    return described_alone(
        "steps as described", PrivacyClaim.parse(claim), MechanismSteps.parse(steps), delta
    )


def _played(
    subject: str,
    claim: str | None,
    steps: str | None,
    sizes: dict[str, int | None],
    without: list[str] | None,
    effort: dict[str, Any],
    timeout: float | None,
    canaries: int | None,
) -> "Judged":
    """Judge a claim by runs: a mechanism in worst-case worlds, an app or a job with canaries."""
    from fedveil.errors import FieldError, require_count
    from fedveil_lab.verify.apps import verify_app
    from fedveil_lab.verify.budget import Effort
    from fedveil_lab.verify.claim import PrivacyClaim
    from fedveil_lab.verify.described import MechanismSteps
    from fedveil_lab.verify.flare import TIMEOUT, is_flare_job, verify_flare
    from fedveil_lab.verify.playing import verify_mechanism
    from fedveil_lab.verify.sections import section_beside
    from fedveil_lab.verify.worlds import Sizes, library

    place, colon, function = subject.rpartition(":")
    file = Path(place)
    app = Path(subject)
    if not app.is_dir() and not (colon and file.is_file()):
        accepted = "names no file and no folder: write FILE.py:FUNCTION, as in my.py:mechanism, or the folder of an app or a job"
        raise FieldError("SUBJECT", subject, accepted)
    section = section_beside(app if app.is_dir() else file.parent)
    described = None
    if steps is not None:
        described = MechanismSteps.parse(steps)
    elif section.steps:
        described = MechanismSteps.of(section.steps)
    flare = app.is_dir() and is_flare_job(app)
    usual = TIMEOUT if flare else 30.0
    spent = Effort(**effort, timeout=section.get("timeout", timeout, usual))
    text = section.get("claim", claim)
    asked: dict[str, Any] = {"effort": spent, "steps": described, "say": say}
    asked["canaries"] = require_count("--canaries", section.get("canaries", canaries, 0), least=0)
    if flare:
        return verify_flare(app, text, section, **asked)
    if app.is_dir():
        return verify_app(app, text, section, **asked)
    del asked["canaries"]
    own = PrivacyClaim.given(text)
    given = {name: section.get(name, value) for name, value in sizes.items()}
    made = Sizes(**{name: value for name, value in given.items() if value is not None})
    return verify_mechanism(
        file,
        function,
        own,
        library(own, made, section.get("without", without, [])),
        **asked,
    )


def _require_page(page: Path) -> None:
    """Refuse a page's name that does not end with .html, before anything is run."""
    from fedveil_lab.report.verdict_page import require_page

    require_page(page)


def _refuse_another(out: Path | None) -> None:
    """Refuse a folder that holds something else than a verdict, before anything is run."""
    from fedveil.files import refuse_strangers
    from fedveil_lab.verify.judged import FILES

    if out is not None:
        refuse_strangers(out, FILES)


def _keep(judged: "Judged", out: Path | None, page: Path | None) -> None:
    """Print and write a verdict, and exit with its code."""
    from fedveil_lab.runs.provenance import provenance
    from fedveil_lab.verify.judged import FILES

    folder = out or shared.fresh(Path("runs/verdict"))
    for table in judged.details():
        show([table], [""])
    show([judged.table()])
    made = provenance(judged.subject, judged.effort.get("seeds", []))
    judged.write(folder, made)
    if page is not None:
        from fedveil_lab.report.verdict_page import write_page

        write_page(page, judged, made)
        say(f"the page is {page}")
    say(f"written to {folder}: {', '.join(FILES)}", whole=True)
    if judged.caught:
        fail(judged.answer, CAUGHT)
