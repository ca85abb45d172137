"""`fedveil verify` without a subject: test what FedVeil's own methods guarantee."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil_lab.cli import shared
from fedveil_lab.cli.shared import fail, say, show

if TYPE_CHECKING:
    from fedveil.tables import Table
    from fedveil_lab.attacks.verdict import Verdict
    from fedveil_studies.own_methods.game import PartyGame

PARTS = ("game", "noise", "canaries")


def verify_own(runs: int, canaries: int, out: Path | None) -> None:
    """Play the distinguishing game on every method's path, and test its noise over ten rounds.

    Exit code 1 if a claim is beaten, or noise is not what the ledger declares.

    With canaries: crafted clients and records, in or out by a coin, in one run of each method, and again with planted
    bugs, which the audit has to find.
    """
    from fedveil.tables import Table
    from fedveil_studies import own_methods

    folder = out or shared.fresh(Path("runs/guarantees"))
    if canaries:
        crafted = own_methods.canary_game(canaries)
        _refuse_another(folder, {"canaries": crafted})
        _canaries(crafted, folder)
        return
    game, noise = own_methods.guarantees_game(runs), own_methods.noise_game()
    _refuse_another(folder, {"game": game, "noise": noise})
    played = _played(game, _claim)
    head = ("method", "d", "claim", "mu, lower bound", "claim held")
    table = Table(head, list(map(_claim, played)))
    _keep(folder, "game", game, played, table, "none: worst-case vectors")
    if not any(verdict.point > 0 for verdict in played):
        few = f"{runs} runs show nothing: no lower bound is above 0, so no claim was tested; raise --runs"
        say(few)
    drawn = _played(noise, _noise)
    head = ("method", "d", "noise as declared", "p", "fits least")
    table = Table(head, list(map(_noise, drawn)))
    _keep(folder, "noise", noise, drawn, table, "none: known vectors")
    beaten, faults = _broken(played), _broken(drawn)
    if beaten:
        first = beaten[0].setting
        fail(f"{len(beaten)} of {len(played)} claims are beaten, first that of {first}", 1)
    if faults:
        first = f"{faults[0].setting}: {faults[0].notes[0]}"
        many = len(faults)
        fail(f"the noise of {many} methods is not what their ledgers declare; first {first}", 1)


def _refuse_another(folder: Path, games: "Mapping[str, PartyGame]") -> None:
    """Refuse a folder that holds anything else, or what `verify` found when it was asked for something else."""
    from fedveil.errors import FieldError, damaged
    from fedveil.files import refuse_strangers
    from fedveil.reading import json_of

    known = []
    for name in PARTS:
        known += [f"{name}.json", f"{name}.md"]
    refuse_strangers(folder, known)
    for name, game in games.items():
        file = folder / f"{name}.json"
        if not file.is_file():
            continue
        try:
            stored = dict(json_of(file.read_bytes()))
        except (ValueError, TypeError) as error:
            raise damaged("--out", file, error, "give another --out") from error
        different = [key for key, value in game.question().items() if stored.get(key) != value]
        if different:
            accepted = f"holds {file.name} with another {', '.join(different)}; give another --out"
            raise FieldError("--out", str(folder), accepted)


def _played(game: "PartyGame", line: Callable[..., list[str]]) -> "Sequence[Verdict]":
    """Play a game, and show a line a cell as it ends."""
    from fedveil_lab.games import play
    from fedveil_lab.runs.runner import Silent

    class Shown(Silent):
        def advance(self, row: dict[str, Any]) -> None:
            say("  ".join(line(*row["verdicts"])))

    return play(game, progress=Shown()).verdicts


def _broken(verdicts: "Sequence[Verdict]") -> "list[Verdict]":
    return [verdict for verdict in verdicts if verdict.details.get("broken")]


def _keep(
    folder: Path,
    name: str,
    game: "PartyGame",
    verdicts: "Sequence[Verdict]",
    table: "Table",
    data: str,
) -> None:
    """Write a part's table and verdicts, and show the table."""
    import json

    from fedveil_lab.runs.provenance import provenance

    folder.mkdir(parents=True, exist_ok=True)
    seeds, told = set[int](), []
    for verdict in verdicts:
        told.append(verdict.to_dict())
        if "dimension" in verdict.details:
            seeds.add(int(verdict.details["dimension"]))
    record = {"provenance": provenance(data, sorted(seeds)), **game.question()}
    record["verdicts"] = told
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / f"{name}.md").write_text("\n".join(table.markdown()).strip() + "\n")
    show([table], [f"written to {folder}: {name}.json, {name}.md"], whole=True)


def _claim(verdict: "Verdict") -> list[str]:
    from fedveil.gdp import rounded_down

    claim, bound = verdict.notes[0], rounded_down(verdict.point)
    if claim.startswith("epsilon"):
        bound += f" (epsilon {rounded_down(verdict.details['epsilon at delta 0'])})"
    mark = {0.0: "yes", 1.0: "**NO**", None: "no claim to hold"}[verdict.details.get("broken")]
    return [verdict.setting, f"{verdict.details['dimension']:.0f}", claim, bound, mark]


def _noise(verdict: "Verdict") -> list[str]:
    mark = {0.0: "yes", 1.0: "**NO**"}[verdict.details["broken"]]
    dimension = f"{verdict.details['dimension']:.0f}"
    return [verdict.setting, dimension, mark, f"{verdict.point:.2g}", verdict.notes[0]]


NOTE = """measured: lower bound at 95% from one run, whatever the mechanism does to the canaries together; at most: \
the bound if every guess were right; independent: a bound on mu that loses less, where scores are \
independent given the coins; bugs: the larger bound, and whether what is declared is exceeded (an epsilon at any delta \
of its curve, by the independent rates)"""


def _canaries(game: "PartyGame", folder: Path) -> None:
    """One table: declared, measured, and measured with planted bugs."""
    from fedveil.tables import NOTHING, Table, shown
    from fedveil_studies.own_methods.canaries import EVERY

    def line(measured: "Verdict", *bugs: "Verdict") -> list[str]:
        figures = [measured.details.get("declared"), measured.point, measured.details["ceiling"]]
        if measured.figure.startswith("mu"):
            figures.append(measured.details["independent mu"])
        else:
            figures.append(None)
        row = [measured.setting, measured.figure.split(",")[0]]
        row += [shown(figure, ".2f") for figure in figures]
        by_bug = {}
        for bug in bugs:
            name = bug.setting.removeprefix(f"{measured.setting}: ")
            by_bug[name] = _largest_measured(bug)
        return row + [by_bug.get(bug, NOTHING) for bug in EVERY]

    verdicts = _played(game, line)
    methods = [one for one in verdicts if not one.setting.endswith(EVERY)]
    rows = []
    for method in methods:
        own = [one for one in verdicts if one.setting.split(": ")[0] == method.setting]
        rows.append(line(*own))
    head = ("method", "figure", "declared", "measured", "at most", "independent", *EVERY)
    _keep(folder, "canaries", game, verdicts, Table(head, rows, notes=[NOTE]), "none: crafted")
    beaten = _broken(methods)
    if beaten:
        fail(
            f"{len(beaten)} of {len(rows)} promises are broken, first that of {beaten[0].setting}",
            1,
        )


def _largest_measured(verdict: "Verdict") -> str:
    largest = max(verdict.point, 0.0)
    if verdict.figure.startswith("mu"):
        largest = max(verdict.point, verdict.details["independent mu"])
    found = "not found"
    if verdict.details.get("broken"):
        found = "found"
    return f"{largest:.2f}, {found}"
