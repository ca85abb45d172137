"""Commands of a site's operator: `fedveil ledger` of data, `fedveil keys` of sums, `fedveil node` for Flower."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedveil.cli.checked import show_checked, show_receipts
from fedveil.cli.pieces import Command, argument, path_argument, path_option
from fedveil.cli.shared import REFUSED, show

if TYPE_CHECKING:
    from fedveil.accounting import Policy
    from fedveil.accounting.ledger import Ledger
    from fedveil.engines.ledger_head import Head
    from fedveil.tables import Table

BY = "Who does this, and why; it is recorded."
HEAD = "Folder on another disk, for the head and its key."
BOOK = "The ledger, FOLDER/DATASET.jsonl: its name is the data set's."


@click.group("ledger", no_args_is_help=True)
def ledger() -> None:
    """Begin, show, check or close the lifetime ledger of a data set."""


@ledger.command("begin", cls=Command)
@path_argument("path", "PATH", BOOK)
@click.option("--by", required=True, metavar="WHO", help=BY)
@path_option("--head", "FOLDER", HEAD, required=True)
def ledger_begin(path: Path, by: str, head: Path) -> None:
    """Begin the ledger of a data set, once.

    An existing ledger is never replaced: past costs stay.
    """
    from fedveil.engines.lifetime import begin_ledger

    click.echo(f"begun: {begin_ledger(_named(path).parent, path.stem, by, head=head)}")


@ledger.command("head", cls=Command)
@path_argument("path", "PATH", BOOK)
@click.option("--by", required=True, metavar="WHO", help=BY)
@path_option("--head", "FOLDER", HEAD, required=True)
def ledger_head(path: Path, by: str, head: Path) -> None:
    """Make the head of a ledger that has none.

    This is for a ledger of an earlier version, or if the folder with its head was lost.

    The ledger is accepted as complete. Look at it first, with `fedveil ledger show`.
    """
    from fedveil.engines.lifetime import make_head

    click.echo(f"made: {_of_head(make_head(_named(path).parent, path.stem, by, head=head))}")


@ledger.command("close", cls=Command)
@path_argument("path", "PATH", BOOK)
@click.option(
    "--by", required=True, metavar="WHO", help="Who closes the ledger, and why; this is recorded."
)
@path_option("--head", "FOLDER", "Folder of the ledger's head.", required=True)
@path_option("--archive", "FOLDER", "New folder for the closed ledger.", required=True)
def ledger_close(path: Path, by: str, head: Path, archive: Path) -> None:
    """Close a ledger and begin the next one, at the end of a year.

    The next ledger begins with all past costs.

    Every line is checked first. Budgets and policies continue to count. Runs in progress are refused afterwards, and
    secure sums need a new key. So close a ledger between studies.
    """
    from fedveil.engines.closing import close_ledger

    closed = close_ledger(_named(path).parent, path.stem, by, archive=archive, head=head)
    click.echo(f"closed: {closed.archive}, {closed.lines} lines, sha256 {closed.digest}")
    click.echo(f"begun: {closed.ledger}, which carries the costs of {closed.releases} releases")


@ledger.command("show", cls=Command)
@path_argument("path", "PATH", BOOK)
@path_option("--policy", "FILE", "Policy file; what it still allows is shown.")
@click.option(
    "--delta",
    type=float,
    default=1e-5,
    show_default=True,
    help="Failure probability of record-level epsilons, if no policy says it.",
)
@path_option("--head", "FOLDER", "Folder of the ledger's head, which is then checked.")
@path_option(
    "--csv",
    "FILE",
    "File to write, a line for each release: epsilon, epsilon so far, what is left.",
)
@path_option(
    "--closed", "FILE", "Ledger that was closed before this one, to check what was carried over."
)
def ledger_show(
    path: Path,
    policy: Path | None,
    delta: float,
    head: Path | None,
    csv: Path | None,
    closed: Path | None,
) -> None:
    """Check a ledger, and show its runs and what was spent.

    The ledger is not changed.

    For a run's own ledger (RUN/ledger/server.jsonl) it shows the parties, and whether the ledger begins in the middle
    of the run.
    """
    from fedveil.accounting import Policy
    from fedveil.engines.closing import require_closed
    from fedveil.engines.lifetime import read_head, read_ledger, read_policy
    from fedveil.errors import FieldError
    from fedveil.evidence import spent_of

    rule = read_policy(policy) or Policy(distance=1.0, delta=delta)
    if path.is_dir():
        held = [
            str(file)
            for file in sorted(path.rglob("*.jsonl"))
            if file.parent.name.startswith("ledger")
        ]
        raise FieldError(
            "PATH",
            str(path),
            f"is a folder; name a ledger in it: {', '.join(held) or 'it has none'}",
        )
    if of_run(path):
        if csv is not None:
            write_releases(csv, ledger_of_run(path), rule)
        show(*tables_of_run(path, rule))
        return
    ledger, lines, _ = read_ledger(path)
    if csv is not None:
        write_releases(csv, ledger, rule)
    spent = spent_of(ledger, rule)
    of_head = (
        "head: not looked at (--head FOLDER): whether lines are missing at the end is not known"
    )
    if head is not None:
        of_head = _of_head(read_head(path, head))
    if closed is not None:
        require_closed(path, closed)
    notes = [*spent.notes, *late_runs(lines), *carried_over(ledger, closed), of_head]
    show([runs_of(ledger, lines), spent], notes)


@ledger.command("check", cls=Command)
@path_argument(
    "report",
    "REPORT.json",
    "File of `fedveil report`; its promises are added up again from the ledgers.",
)
@path_option(
    "--ledgers",
    "PATH",
    "A ledger, or a folder of ledgers; repeatable.",
    required=True,
    multiple=True,
)
@path_option("--head", "FOLDER", "Folder of the data sets' heads.")
def ledger_check(report: Path, ledgers: tuple[Path, ...], head: Path | None) -> None:
    """Check a report's promises against ledgers.

    This needs only the library.

    To compare the report's pages, use `fedveil report --verify`. Exit codes: 1, something does not agree; 5, a promise
    was not checked.
    """
    from fedveil.evidence import check_promises

    show_checked(report, check_promises(report, ledgers, head))


@ledger.command("receipts", cls=Command)
@path_argument("run", "RUN", "The run's folder, or its server's ledger.")
@path_option("--ledgers", "PATH", "A site's ledger or a folder; repeatable.", multiple=True)
def ledger_receipts(run: Path, ledgers: tuple[Path, ...]) -> None:
    """Check a run's receipts against ledgers.

    Each accepted share must be paid for in a ledger, and all sites must have seen the same receipts. Ledgers in the
    run's own folder count, too. Exit codes: 1, something does not agree; 5, an accepted share is in no given ledger.
    """
    from fedveil.evidence import check_receipts

    show_receipts(run, check_receipts(run, ledgers))


def of_run(path: Path) -> bool:
    """Whether a file is a ledger of one run, and not of a data set."""
    from fedveil.reading import json_of

    try:
        with path.open("rb") as file:
            first = json_of(file.readline(1 << 20))
        return (
            isinstance(first, dict) and "dataset" not in first and {"run", "party"} <= first.keys()
        )
    except (OSError, ValueError):
        return False


def tables_of_run(path: Path, policy: "Policy") -> "tuple[list[Table], list[str]]":
    """Make a table with one line for each party of a run's ledgers (and the costs if there is one party), and notes."""
    from fedveil.engines.party import begun_midway
    from fedveil.evidence import read_books, spent_of
    from fedveil.tables import Table

    rows, notes, ledgers = [], [], []
    for run, books in read_books([path]).runs.items():
        for party, book in books.items():
            rounds = [entry.key[0] for entry in book.ledger.entries]
            span = f"{min(rounds)} to {max(rounds)}" if rounds else ""
            rows.append((run, party, span, len(rounds)))
            ledgers.append(book.ledger)
            midway = begun_midway(book.ledger)
            if midway:
                notes.append(
                    f"{party}: what it states as a total holds if {midway}. See SECURITY.md."
                )
    table = Table(("run", "party", "rounds", "releases"), rows, str(path), ("releases",))
    if len(ledgers) > 1:
        return [table], notes
    spent = spent_of(ledgers[0], policy)
    return [table, replace(spent, title="spent in this run")], [*spent.notes, *notes]


def ledger_of_run(path: Path) -> "Ledger":
    """Read the one ledger of a run's file.

    Raises
    ------
    FieldError
        If the file holds ledgers of several parties.
    """
    from fedveil.errors import FieldError
    from fedveil.evidence import read_books

    found = [book.ledger for books in read_books([path]).runs.values() for book in books.values()]
    if len(found) != 1:
        raise FieldError(
            "--csv", str(path), f"needs the ledger of one party, and there are {len(found)}"
        )
    return found[0]


def write_releases(file: Path, ledger: "Ledger", policy: "Policy") -> None:
    """Write one line for each release as comma-separated values."""
    from fedveil.evidence import release_csv, release_rows
    from fedveil.files import write_atomic

    write_atomic(file, release_csv(release_rows(ledger, policy, policy.delta)))


def late_runs(lines: list[str]) -> list[str]:
    """Return a note for each run whose ledger lacks its first rounds, as if the server continued without its ledger."""
    import json

    first: dict[str, int] = {}
    for values in map(json.loads, lines):
        if "budget" not in values:
            first[values["run"]] = min(values["round"], first.get(values["run"], values["round"]))
    why = "it was not asked before, or that run's server went on from another one; its own total may be too small"
    return [
        f"run {run} begins at round {round_}: {why}" for run, round_ in first.items() if round_ > 1
    ]


def carried_over(ledger: "Ledger", checked: Path | None) -> list[str]:
    """Return notes on the costs carried over from a closed ledger; `checked` is that ledger, if it was compared."""
    from fedveil.engines.closing import CLOSED
    from fedveil.reading import json_of

    before = json_of(ledger.head or "{}").get(CLOSED)
    if before is None:
        return []
    count = sum(times for times, _ in ledger.carried)
    whole = f"carried over: the costs of {count} releases, of a ledger begun {before['begun']}, sha256 {before['digest']}"
    if checked is None:
        return [f"{whole}. Its lines were not looked at (--closed FILE)"]
    return [f"{whole}. {checked} has these bytes, and its lines cost this"]


def _named(path: Path) -> Path:
    from fedveil.errors import FieldError

    if path.suffix != ".jsonl":
        raise FieldError("PATH", str(path), "must end in .jsonl")
    return path


def _of_head(head: "Head") -> str:
    lines = "1 line" if head.count == 1 else f"{head.count} lines"
    return f"head: agrees, {lines} of {head.checksum[:16]}...; begun {head.begun} by: {head.by}"


def runs_of(ledger: "Ledger", lines: list[str]) -> "Table":
    """Make a table with one line for each run in a ledger."""
    import json

    from fedveil.accounting import OPEN
    from fedveil.tables import Table

    head = json.loads(ledger.head or "{}")
    runs: dict[str, dict[tuple[int, str, int], dict[str, Any]]] = {}
    for values in map(json.loads, lines):
        if "budget" not in values:  # only the last line of a release counts
            release = values["round"], values["purpose"], values["attempt"]
            runs.setdefault(values["run"], {})[release] = values
    rows = []
    for run, latest in runs.items():
        rounds = [values["round"] for values in latest.values()]
        unfinished = [values for values in latest.values() if values["digest"] == OPEN]
        sources = {values.get("source") or "not said" for values in latest.values()}
        span = f"{min(rounds)} to {max(rounds)}"
        rows.append((run, span, len(latest), len(unfinished), ", ".join(sorted(sources))))
    title = f"data set {head['dataset']}, begun {head['begun']} by: {head['by']}"
    numbers = ("releases", "begun, not closed")
    return Table(("run", "rounds", *numbers, "source of noise"), rows, title, numbers)


KEY_FILE = "The key's file, mode 0600; it never leaves the site."


@click.group("keys", no_args_is_help=True)
def keys() -> None:
    """Make, show or end a site's key for the secure sums of one study."""


@keys.command("new", cls=Command)
@path_argument("path", "FILE", KEY_FILE)
def keys_new(path: Path) -> None:
    """Make a key, once for a study.

    The command prints the public half. The other sites add it to `peers` in their policies.
    """
    from fedveil.engines.site_keys import make_key

    _show_key(make_key(path).public)


@keys.command("show", cls=Command)
@path_argument("path", "FILE", KEY_FILE)
def keys_show(path: Path) -> None:
    """Print the public half of a key."""
    from fedveil.engines.site_keys import read_key

    _show_key(read_key(path).public)


@keys.command("end", cls=Command)
@path_argument("path", "FILE", KEY_FILE)
def keys_end(path: Path) -> None:
    """Destroy a key when its study is over.

    Anybody who gets a key later can unmask this site's recorded shares.
    """
    from fedveil.engines.site_keys import end_key

    key = end_key(path)
    click.echo(f"ended: {key.public.hex()}. Remove copies and backups of the file as well.")


def _show_key(public: bytes) -> None:
    from fedveil.secure import fingerprint

    click.echo(f"public key:  {public.hex()}")
    click.echo(f"fingerprint: {fingerprint([public])} (compare it by telephone)")


FOLDER = "The node's folder, with policy.toml, ledgers/ and bin/."
APP = "A .fab file, or the folder of an app, which is then built."


@click.group("node", no_args_is_help=True)
def node() -> None:
    """Run a Flower node under its operator's policy."""


@node.command("init", cls=Command)
@path_argument("folder", "FOLDER", FOLDER)
@path_option(
    "--head", "FOLDER", "On another disk: for the ledger's head and its key.", required=True
)
@click.option(
    "--dataset", required=True, metavar="NAME", help="Name of the data set, and of its one ledger."
)
@click.option(
    "--by", required=True, metavar="WHO", help="Who begins the ledger, and why; this is recorded."
)
def node_init(folder: Path, head: Path, dataset: str, by: str) -> None:
    """Write a node's folder: policy, ledger, head, key, commands.

    The output lists what you still have to decide.
    """
    from fedveil.node.site import begin_site

    policy = begin_site(folder, head, dataset, by)
    click.echo(
        f"written: {policy}, with a ledger and its head. Nothing leaves yet. Still to decide, in that file:"
    )
    click.echo(
        "  [total]  what all releases together may cost: the kinds of cost that may leave at all"
    )
    click.echo("  [sum]    where a secure sum is allowed: whose keys, and on what terms")
    click.echo("  [node]   client (your own code), or apps or signers (whose code may run here)")
    click.echo("  [node]   projects, federations, accounts, runs: who may use the node")
    click.echo(
        f"Then: fedveil node check {folder}; fedveil node start {folder} flower-supernode ..."
    )


@node.command("check", cls=Command)
@path_argument("folder", "FOLDER", FOLDER)
@click.option(
    "--rehearse",
    is_flag=True,
    help="Let your own client train once on the site's data; nothing is released.",
)
@click.option(
    "--node-config",
    default="",
    metavar="TEXT",
    help="For the rehearsal: what flower-supernode would get.",
)
@click.option(
    "--train-config",
    default="",
    metavar="TEXT",
    help="For the rehearsal: what a server would send, such as lr=0.1.",
)
def node_check(folder: Path, rehearse: bool, node_config: str, train_config: str) -> None:
    """Check what the node's policy binds on this machine.

    Exit code 2: something required is missing.

    FOLDER is a node's own folder, or the startup kit of a FLARE site (with local/ and startup/).
    """
    from fedveil.errors import FieldError
    from fedveil.node.kit import check_kit, is_kit
    from fedveil.tables import Table

    if is_kit(folder):
        if rehearse:
            raise FieldError(
                "--rehearse",
                str(folder),
                "is for a node's folder: a FLARE site trains in its jobs alone",
            )
        findings = check_kit(folder)
    else:
        from fedveil.node.site import check_site, rehearsed

        findings = check_site(folder)
        if rehearse:
            findings.append(rehearsed(folder, node_config, train_config))
    rows = [(finding.what, finding.binds, finding.why) for finding in findings]
    show([Table(("what", "binds", "why"), rows, str(folder))])
    if any(finding.binds == "no" and finding.needed for finding in findings):
        raise click.exceptions.Exit(REFUSED)


@node.command(
    "start",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@path_argument("folder", "FOLDER", FOLDER)
@argument("command", "COMMAND...", "flower-supernode --superlink ...", nargs=-1, required=True)
def node_start(folder: Path, command: tuple[str, ...]) -> None:
    """Start flower-supernode or flower-superexec under the policy.

    Flower then starts the commands in the node's folder in place of its own.
    """
    from fedveil.node.site import start

    start(folder, list(command))


@node.command("hash", cls=Command)
@path_argument("app", "APP", APP)
def node_hash(app: Path) -> None:
    """Print the SHA-256 of an app's bundle, for policy.node.apps."""
    click.echo(_sha256(app))


@node.command("key", cls=Command)
@path_argument("path", "FILE", "The key's file, mode 0600.")
def node_key(path: Path) -> None:
    """Make a key that approves apps.

    The command prints the public half. Add it to policy.node.signers.
    """
    from fedveil.node.bundle import make_signer

    click.echo(make_signer(path))


@node.command("sign", cls=Command)
@path_argument("app", "APP", APP)
@path_option("--key", "FILE", "Made by `fedveil node key`.", required=True)
@click.option(
    "--until",
    required=True,
    type=click.DateTime(formats=["%Y-%m-%d"]),
    help="Last day (UTC) of the approval.",
)
def node_sign(app: Path, key: Path, until: datetime) -> None:
    """Approve an app's bundle until a day.

    Put the printed line into the run's configuration.
    """
    from fedveil.node.bundle import APPROVAL, approve

    click.echo(f'{APPROVAL}="{approve(key, _sha256(app), until.date())}"')


def _sha256(app: Path) -> str:
    """Return the SHA-256 of a bundle's file, or of the bundle that Flower builds from a folder."""
    import hashlib

    from fedveil.errors import FieldError

    content = app.read_bytes() if app.is_file() else b""
    if not content:
        from flwr.cli.build import build_fab_from_disk

        try:
            content = build_fab_from_disk(app)
        except (ValueError, OSError) as error:
            raise FieldError(
                "APP", str(app), f"is no bundle, and no folder of a Flower app: {error}"
            ) from error
    return hashlib.sha256(content).hexdigest()
