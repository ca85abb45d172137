"""Test a claim of a Flower app: the unchanged app runs on neighbouring data with canaries, and its outputs are judged."""

import pickle
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError, damaged, nearest, require_choice, require_count
from fedveil.reading import toml_of
from fedveil.registry import optional
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.canary_runs import (
    Design,
    Worlds,
    judge_by_canaries,
    run_settings,
    with_steps,
)
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps
from fedveil_lab.verify.isolation import FreshProcesses, NoVerdict, libraries_of
from fedveil_lab.verify.judged import Judged
from fedveil_lab.verify.player import said_of
from fedveil_lab.verify.playing import play, silent
from fedveil_lab.verify.screening import Say
from fedveil_lab.verify.sections import VerifySection, require_shown
from fedveil_lab.verify.transcripts import SiteTurn, Transcript
from fedveil_lab.verify.worlds import TwoWorlds

CANARIES = {
    "outlier": "numbers ten times as large as any that the client holds",
    "mislabelled": "an ordinary row with the next label",
}
NUMBER = r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
LINES = 64  # places for the numbers of an app's log
DELTA = re.compile(r"(?:\bdelta\b|δ)\s*(?:=|:|\bis\b|\bof\b)?" + NUMBER, re.IGNORECASE)
EPSILON = re.compile(r"(?:\beps(?:ilon)?\b|ε)[^\n]{0,50}?(?:=|:|\bis\b)" + NUMBER, re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class AppTable:
    """Table `[verify.app]`: how the app is run, and how its data are replaced.

    Attributes
    ----------
    clients : int
        Number of simulated nodes.
    data : str
        Function that loads a client's data, as ``module:function``. It is not needed for client-level zero-out.
    neighbours : str
        Function ``(data, unit, relation)`` that returns the client's data in both worlds, as ``module:function``.
    target : int
        Partition of the client whose data differ between the worlds; -1: the last.
    canaries : tuple of str
        Kinds of canary that are tried; each is a name in `CANARIES`.
    rows : int
        Number of records per person.
    config : dict
        Run configuration values that replace the app's own.
    """

    clients: int = 2
    data: str = ""
    neighbours: str = ""
    target: int = -1
    canaries: tuple[str, ...] = tuple(CANARIES)
    rows: int = 1
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        require_count("[verify.app] clients", self.clients)
        require_count("[verify.app] target", self.target, least=-1, most=self.clients - 1)
        require_count("[verify.app] rows", self.rows)
        for name in self.canaries:
            require_choice("[verify.app] canaries", name, CANARIES)
        for name in ("data", "neighbours"):
            value = getattr(self, name)
            if not isinstance(value, str) or (value and ":" not in value):
                raise FieldError(
                    f"[verify.app] {name}", value, "must be module:function, as in task:load_data"
                )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "AppTable":
        """Read the table from its TOML values; an unknown key is refused."""
        known = list(cls.__dataclass_fields__)
        for name in values:
            if name not in known:
                raise FieldError(f"[verify.app] {name}", values[name], nearest(name, known))
        canaries = tuple(values.get("canaries", CANARIES))
        return cls(**{**values, "canaries": canaries, "config": values.get("config", {})})


def components(folder: Path) -> tuple[str, str, dict[str, Any]]:
    """Read a Flower app's pyproject.toml: return the places of its server app and client app, and its configuration.

    Raises
    ------
    FieldError
        If the folder holds no Flower app.
    """
    file = folder / "pyproject.toml"
    if not file.is_file():
        if (folder / "job.py").is_file():
            accepted = "looks like the script of a FLARE job: export the job, and give its folder (the one with meta.json)"
            raise FieldError("SUBJECT", folder.name, accepted)
        raise FieldError(
            "SUBJECT",
            folder.name,
            "is no Flower app (no pyproject.toml) and no FLARE job (no meta.json)",
        )
    try:
        values = toml_of(file.read_text(encoding="utf-8"))
        app = values["tool"]["flwr"]["app"]
        parts = app["components"]
        return parts["serverapp"], parts["clientapp"], dict(app.get("config", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(
            "SUBJECT", file, error, "a Flower app names [tool.flwr.app.components] there"
        ) from error


def verify_app(
    folder: Path,
    claim: str | None,
    section: VerifySection,
    *,
    effort: Effort,
    canaries: int = 0,
    steps: MechanismSteps | None = None,
    say: Say = silent,
) -> Judged:
    """Run an unchanged Flower app in both worlds of a claim, and judge the claim by what the adversary sees.

    With `canaries` > 0 every client holds several canaries in each run, so a few runs suffice. With 0 each run has one
    canary, and all its outputs are compared.

    Parameters
    ----------
    folder : path
        Folder of the app, with its pyproject.toml.
    claim : str, optional
        The claim, such as ``"eps=1 delta=1e-5 zero-out client total central"``. Default: the claim in `section`.
    section : VerifySection
        Section `[verify]` with its tables.
    effort : Effort
        Limits on runs and time, and the error. Each run of the app has its own process.
    canaries : int
        Smallest number of canaries to judge, in as few runs as can hold them; 0: one canary per run.
    steps : MechanismSteps, optional
        Steps of the app, from which epsilon is also computed.
    say : callable
        Receives progress messages, the budget first.

    Raises
    ------
    NoVerdict
        If the app raises, hangs or asks for the network.
    """
    optional("flwr.app", "a Flower app needs Flower", '"fedveil[flower]"')
    server, client, config = components(folder)
    table = AppTable.of(section.app)
    beside = Path(__file__).with_name("flower_side.py")
    libraries = sorted({*libraries_of(beside), *_libraries(folder)})
    asked = "transcribed" if canaries else "left"
    with FreshProcesses(beside, asked, timeout=effort.timeout, libraries=libraries) as processes:
        base = {
            "folder": str(folder.resolve()),
            "serverapp": server,
            "clientapp": client,
            "config": {**config, **table.config},
            "clients": table.clients,
            "target": table.target % table.clients,
            "data": table.data,
            "neighbours": table.neighbours,
        }
        printed = printed_epsilons(processes, base)
        if printed:
            say(f"the app prints epsilon {', '.join(printed)}")
        own = PrivacyClaim.given(
            claim, f" (the app prints {', '.join(printed)})" if printed else ""
        )
        own.require_total("an app")
        if canaries:
            judged = _by_canaries(processes, base, own, table, canaries, effort, say)
        else:
            judged = play(processes, app_worlds(base, own, table), own, effort, say, place_of)
    note = "the app ran unchanged on FedVeil's in-process grid, its network closed"
    return with_steps(
        judged,
        steps,
        subject=folder.resolve().name,
        printed=", ".join(printed),
        notes=(*judged.notes, note),
    )


def place_of(place: int, count: int) -> str:
    """Where one of the numbers comes from that `flower_side.left` returns."""
    if place == 0:
        return "how many clients failed"
    if place == 1:
        return "how many messages there were"
    if place >= count - LINES:
        return "numbers in the log"
    return f"number {place - 1} of {count - 2 - LINES} in messages"


def _by_canaries(
    processes: FreshProcesses,
    base: Mapping[str, Any],
    claim: PrivacyClaim,
    table: AppTable,
    canaries: int,
    effort: Effort,
    say: Say,
) -> Judged:
    """Judge the claim with many canaries in each of a few runs."""
    _require_data(table)
    if not table.neighbours:
        require_shown(claim, "[verify.app]", table.rows)
    sites = [str(place) for place in range(table.clients)]
    design = Design.of(sites, claim, bool(table.neighbours))
    folder = Path(tempfile.mkdtemp(prefix="fedveil-app-"))
    shared = str(folder / "shared.pkl") if design.shared else ""
    out = folder / "left.pkl"

    def once(worlds: Worlds, seed: int) -> Transcript:
        run = run_settings(claim, worlds, shared, table.data, table.neighbours, table.rows)
        world = {**base, "trust": claim.trust, "zeroed": False, "run": run, "out": str(out)}
        processes.hold("canaries", world)
        outcome = processes.run("canaries", seed)
        if outcome.kind != "ok":
            raise NoVerdict(f"the app {said_of(outcome)}")
        return transcript_in(out, sites, outcome.said)

    try:
        return judge_by_canaries(once, design, canaries, effort, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def transcript_in(file: Path, sites: Sequence[str], said: str) -> Transcript:
    """Read what the clients of one run received and sent from the file that the run wrote.

    Raises
    ------
    NoVerdict
        If a client received no message.
    """
    kept = pickle.loads(file.read_bytes())
    turns = {}
    for site in sites:
        if site not in kept["turns"]:
            raise NoVerdict(f"the app asks client {site} nothing, or it failed")
        turns[site] = [SiteTurn(asked, answered) for asked, answered in kept["turns"][site]]
    return Transcript(turns, kept["final"], said)


def _require_data(table: AppTable) -> None:
    if not table.data:
        raise FieldError(
            "[verify.app] data",
            table.data,
            "must name the app's function that loads a client's data",
        )


def printed_epsilons(processes: FreshProcesses, base: Mapping[str, Any]) -> list[str]:
    """Run the app once on its own data, and return the epsilons that it prints; `NoVerdict` if it does not run."""
    processes.hold("as it is", {**base, "zeroed": None, "trust": "central"})
    one = processes.run("as it is", 0)
    if one.kind != "ok":
        raise NoVerdict(f"the app {said_of(one)}")
    return epsilons_in(one.said)


def epsilons_in(text: str) -> list[str]:
    """Find the epsilons that a text states, each once, without the deltas beside them."""
    return list(dict.fromkeys(EPSILON.findall(DELTA.sub("", text))))


def app_worlds(base: Mapping[str, Any], claim: PrivacyClaim, table: AppTable) -> list[TwoWorlds]:
    """Make a pair of neighbouring worlds for each kind of canary, in the claimed relation.

    Raises
    ------
    FieldError
        If an unchanged app cannot be run under this relation.
    """
    own = bool(table.neighbours)
    if not own:
        require_shown(claim, "[verify.app]", table.rows)
    _require_data(table)
    shared = {
        **base,
        "unit": claim.unit,
        "relation": claim.relation,
        "trust": claim.trust,
        "rows": table.rows if claim.unit == "person" else 1,
        "zeroed": False,
    }
    nothing = claim.unit == "client" and claim.relation == "zero-out" and not own
    made = []
    for name in ("of the app's author",) if own else table.canaries:
        inside = {**shared, "canary": name, "inside": True}
        if nothing:
            outside = {**inside, "zeroed": True}
            why = "in the other world the arrays that it answers are those that it was sent"
        else:
            outside = {**inside, "inside": False}
            why = f"in the other world it is another ({claim.relation})"
        made.append(
            TwoWorlds(name, f"{CANARIES.get(name, 'two data sets')}; {why}", inside, outside, own)
        )
    return made


def _libraries(folder: Path) -> list[str]:
    """List the installed modules that the app's files import."""
    found: set[str] = set()
    own = {path.name for path in folder.iterdir()} | {path.stem for path in folder.rglob("*.py")}
    for file in folder.rglob("*.py"):
        found |= {name for name in libraries_of(file) if name.partition(".")[0] not in own}
    return sorted(found)
