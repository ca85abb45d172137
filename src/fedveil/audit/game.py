"""Games: which runs to play, and what they say of an attack.

A game is a plain class. `build` reads what the command line or a caller asks for; `check` refuses what cannot work
before anything is written; `cells` are its runs, the undefended federation's among them; `judge` makes verdicts of
their outcomes. What the adversary sees of a run is the business of the cells' probes: `fedveil.attacks.ServerView`
keeps what arrives at the server, and a probe that judges a run (`fedveil.runs.judging.Judge`) leaves its figures in
the outcome, so that they outlive the process. A malicious client is a behaviour of the configuration.

A game of yours joins by ``@GAMES.register("name")``; then ``fedveil audit CONFIG --game name`` plays it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, Self

from fedveil.attacks import Verdict
from fedveil.config import Config
from fedveil.config.folders import AUDIT, CONFIG, SPEC
from fedveil.grid import Cell, Finished, Store
from fedveil.registry import Registry
from fedveil.runs import Progress
from fedveil.runs.ledgers import write_atomic
from fedveil.runs.provenance import provenance
from fedveil.runs.runner import Silent, one_thread
from fedveil.runs.summary import NUMERICS, REPRODUCIBLE, versions

RESULT = "audit.json"


@dataclass(frozen=True)
class Refused:
    """An attack that could not be run, and why."""

    attack: str
    setting: str
    reason: str


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a game found.

    Attributes
    ----------
    verdicts : sequence of Verdict
        One an attack and setting.
    refused : list of Refused
        Attacks that could not be run.
    values : dict
        What audit.json holds.
    notes : list of str
        What only the finished runs show.
    """

    verdicts: Sequence[Verdict]
    refused: list[Refused] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Game(Protocol):
    """A way of attacking federations."""

    @property
    def name(self) -> str:
        """In the registry."""

    @property
    def config(self) -> Config:
        """Of what is attacked."""

    @property
    def together(self) -> bool:
        """Whether its runs are many and small, and played side by side."""

    @classmethod
    def build(cls, config: Config, compare: bool, options: Mapping[str, Any]) -> Self:
        """Read a configuration and what else was asked for; `compare` means every setting of ``[compare]``."""

    def question(self) -> dict[str, Any]:
        """Plain values: what is asked, for the folder."""

    def check(self) -> list[str]:
        """Refuse what cannot work; say what is odd."""

    def cells(self) -> Sequence[Cell]:
        """The runs."""

    def judge(self, finished: Finished) -> Judgement:
        """Verdicts from finished runs."""


GAMES: Registry[type[Game]] = Registry("--game", {})


def verdict_rows(found: Judgement) -> list[list[str]]:
    """Attack, setting, figure with its unit of replication, point, interval, n, without the defence, validity."""
    valid = {True: "yes", False: "no", None: "-"}
    return [
        [
            v.attack,
            v.setting,
            f"{v.figure}, over {v.replication}",
            f"{v.point:.3f}",
            f"{v.low:.3f} to {v.high:.3f}" if v.low < v.high else "-",  # one unit has no interval
            str(v.n),
            "-" if v.without_defence is None else f"{v.without_defence:.3f}",
            valid[v.valid],
        ]
        for v in found.verdicts
    ]


def play(game: Game, out: str | Path | None = None, progress: Progress | None = None, jobs: int = 1) -> Judgement:
    """Play a game: run what is not finished, and judge.

    Parameters
    ----------
    game : Game
        Built.
    out : path, optional
        Keeps the runs; the same call goes on there, and another game or more replicates find what they share. Its
        audit.json is that of the last call.
    progress : Progress, optional
        Is told how it goes.
    jobs : int
        Runs at once, for games that play theirs one by one.

    Raises
    ------
    FieldError
        If something does not fit, before anything is written.
    """
    began, progress = perf_counter(), progress or Silent()
    path = None if out is None else Path(out)
    store = Store(path)
    store.refuse_others(AUDIT)
    with one_thread():
        notes = game.check()
        with store.alone(AUDIT):
            if path is not None:
                write_atomic(
                    path / SPEC, (json.dumps({"game": game.name, **game.question()}, indent=1) + "\n").encode()
                )
                write_atomic(path / CONFIG, game.config.to_toml().encode())
            for note in notes:
                progress.say(note)
            found = game.judge(store.run(game.cells(), progress, jobs, together=game.together))
            for note in found.notes:
                progress.say(note)
            about: dict[str, Any] = {"game": game.name, "notes": notes + found.notes, "source": REPRODUCIBLE}
            about |= {"versions": versions(), "numerics": NUMERICS, "seconds": round(perf_counter() - began, 1)}
            about["provenance"] = provenance(f"{game.config.data.name}, as in {game.config.name}", [game.config.seed])
            found.values.update(about)
            if path is not None:
                write_atomic(path / RESULT, (json.dumps(found.values, indent=1) + "\n").encode())
    return found
