"""Games: which runs to play, and how to judge an attack by them.

A game is a class made from a configuration and options. `check` refuses what cannot work before anything is written.
`cells` lists its runs, also those of the undefended federation. `judge` makes verdicts from their outcomes. Probes of
the cells hold the adversary's view of a run. `fedveil_lab.attacks.ServerView` keeps what arrives at the server. A probe
that judges a run (`fedveil_lab.runs.runner.Judge`) stores its figures in the outcome. A malicious client is a behaviour
of the configuration.

Register your own game by ``@GAMES.register("name")``. Then ``fedveil audit CONFIG --game name`` plays it.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Protocol, TypeVar

from fedveil.errors import FieldError, nearest, require_choice, require_count
from fedveil.evidence import REPRODUCIBLE, versions
from fedveil.files import AUDIT, CELLS, CONFIG, SPEC, write_atomic
from fedveil.registry import Registry
from fedveil_lab.attacks import Verdict
from fedveil_lab.config import Config
from fedveil_lab.config.course import Comparison, Randomness, Setting
from fedveil_lab.config.variants import configure, variants_of
from fedveil_lab.games.folder import refuse_another
from fedveil_lab.grid import Cell, Finished, Store
from fedveil_lab.grid.cell import stated
from fedveil_lab.grid.jobs import Factory
from fedveil_lab.runs import Progress
from fedveil_lab.runs.folder import mark_private
from fedveil_lab.runs.prepare import resolve_device
from fedveil_lab.runs.provenance import provenance
from fedveil_lab.runs.runner import Silent, one_thread

RESULT = "audit.json"
USUAL = "participation"
UNNOISED = {
    "*.png": "private: of an inversion they show clients' examples; else figures measured without noise",
    f"{RESULT}, audit.md": "private: they tell what attacks that know the data found",
    CELLS: "private: see PRIVATE.txt of each run",
}
FLAGS = {"world": "--out-world"}  # options that the command line calls otherwise


@dataclass(frozen=True)
class Refused:
    """An attack that could not be run, and the reason."""

    attack: str
    setting: str
    reason: str


@dataclass(frozen=True, eq=False)
class Judgement:
    """Result of a game: verdicts on attacks, and notes.

    Attributes
    ----------
    verdicts : sequence of Verdict
        One verdict for each attack and setting.
    refused : list of Refused
        Attacks that could not be run.
    values : dict
        Further values for audit.json.
    notes : list of str
        Notes on the finished runs.
    """

    verdicts: Sequence[Verdict]
    refused: list[Refused] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


Found = TypeVar("Found", bound=Judgement, covariant=True)


class Game(Protocol[Found]):
    """Protocol of games: a way to attack federations; `known` holds the names of its attacks."""

    known: ClassVar[Collection[str]]

    def __init__(self, config: Config, compare: bool = False, **options: Any) -> None:
        """Take configuration and options; `compare` plays every setting of ``[compare]``. One option is ``attacks``."""

    @property
    def name(self) -> str:
        """Name of the game in the registry."""

    @property
    def config(self) -> Config:
        """The attacked configuration."""

    @property
    def together(self) -> bool:
        """Whether the runs are many and small, so that they are played side by side."""

    def question(self) -> dict[str, Any]:
        """Return the question as plain values, for the folder."""

    def check(self) -> list[str]:
        """Refuse a question that cannot work; return notes for the user."""

    def cells(self) -> Sequence[Cell]:
        """List the runs of the game."""

    def judge(self, finished: Finished) -> Found:
        """Make verdicts from finished runs."""


@dataclass(frozen=True, eq=False)
class Attacking:
    """Base of games of registered attacks on a configured federation.

    Parameters
    ----------
    config : Config
        Configuration of one run or of a comparison.
    compare : bool
        Whether to play every setting of ``[compare]`` instead of the one in ``[privacy]``.
    attacks : tuple of str
        Names of attacks of this game; empty: its usual ones.
    replicates : int
        Number of runs or clients behind each verdict; see the game.

    Raises
    ------
    FieldError
        If an attack is unknown, or there are too few replicates.
    """

    config: Config
    compare: bool = False
    attacks: tuple[str, ...] = ()
    replicates: int = 30

    known: ClassVar[Collection[str]]
    least: ClassVar[int] = 1
    together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in self.attacks:
            require_choice("--attack", name, self.known)
        require_count("--replicates", self.replicates, least=self.least)

    def question(self) -> dict[str, Any]:
        return {
            "attacks": list(self.chosen),
            "replicates": self.replicates,
            "seed": self.config.seed,
        }

    def usual(self) -> Iterable[str]:
        """List the attacks that are played if none is asked for."""
        return self.known

    @cached_property
    def chosen(self) -> tuple[str, ...]:
        """The requested attacks, or the usual ones."""
        return tuple(dict.fromkeys(self.attacks)) or tuple(self.usual())

    @cached_property
    def settings(self) -> list["Planned"]:
        """List the undefended federation, then the setting of ``[privacy]``, or each of ``[compare]``."""
        return settings_of(self.config, self.compare)


class Unconfigured:
    """Base class of games whose runs are not described by a configuration."""

    known: ClassVar[Collection[str]] = ()
    together: ClassVar[bool] = True
    config: ClassVar[Config] = stated(1)

    def question(self) -> dict[str, Any]:
        return {}

    def check(self) -> list[str]:
        return []


GAMES: Registry[type[Game[Judgement]]] = Registry("--game", {}, group="fedveil.games")


def game_of(
    config: Config, name: str | None = None, attacks: Sequence[str] = (), **options: Any
) -> Game[Judgement]:
    """Make the game that plays the given attacks.

    Parameters
    ----------
    config : Config
        Attacked configuration.
    name : str, optional
        Name in `GAMES`. Default: the game that has all `attacks`; among several the first, participation.
    attacks : sequence of str
        Names of attacks; the name of a game stands for its usual attacks.
    **options
        Options of that game.

    Raises
    ------
    FieldError
        If attacks belong to different games, or the game lacks an option.
    """
    if name is None:
        able, asked = _games_of(), []
        for attack in attacks:
            playing = _games_of(attack)
            able = [game for game in able if game in playing]
            asked.append(f"{attack} ({playing[0]})")
        if not able:
            raise FieldError(
                "--attack", ", ".join(asked), "are of different games: audit them apart"
            )
        name = able[0]
    kind = GAMES.choose(name)
    has = {}
    for game, other in GAMES.items():
        _configuration, *own = signature(other).parameters
        has[game] = own
    for option in sorted(options.keys() - set(has[name])):
        others = [game for game in has if option in has[game]]
        if others:
            reason = f"is no option of the game {name}, but of {', '.join(others)}"
        else:
            reason = nearest(option, has[name])
        raise FieldError(FLAGS.get(option, f"--{option}"), options[option], reason)
    return kind(config, attacks=tuple(attack for attack in attacks if attack != name), **options)


def _games_of(attack: str | None = None) -> list[str]:
    """List the games that play an attack, participation first; without an attack, all games."""
    names = sorted(GAMES, key=lambda game: game != USUAL)
    chosen = [game for game in names if attack is None or attack in (game, *GAMES[game].known)]
    if not chosen:
        known = set[str]()
        for kind in GAMES.values():
            known.update(kind.known)
        raise FieldError("--attack", attack, nearest(str(attack), known))
    return chosen


def spec_of(game: Game[Judgement]) -> dict[str, Any]:
    """Return the game's name and question, as spec.json has them."""
    return {"game": game.name, **game.question()}


def play(
    game: Game[Found],
    out: str | Path | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Factory | None = None,
) -> Found:
    """Play a game: make the runs that are not finished yet, and judge all of them.

    Parameters
    ----------
    game : Game
        The game.
    out : path, optional
        Folder that keeps the runs. The same call continues there, and more attacks or replicates use the runs in it.
        Another configuration, game or question is refused.
    progress : Progress, optional
        Receives the progress of runs.
    jobs : int
        Number of parallel runs, for games that play one run at a time.
    executor : callable, optional
        Makes the executor of the runs; see `Store.run`.

    Raises
    ------
    FieldError
        If something does not fit; nothing is written then.
    """
    began, progress = perf_counter(), progress or Silent()
    if out is None:
        path = None
    else:
        path = Path(out)
    store = Store(path)
    store.refuse_others(AUDIT)
    with one_thread():
        notes = game.check()
        spec = spec_of(game)
        if path is not None:
            refuse_another(path, spec, game.config)
        with store.opened(AUDIT):
            if path is not None:
                write_atomic(path / SPEC, (json.dumps(spec, indent=1) + "\n").encode())
                write_atomic(path / CONFIG, game.config.to_toml().encode())
                mark_private(path, UNNOISED)
            for note in notes:
                progress.say(note)
            finished = store.run(
                game.cells(), progress, jobs, together=game.together, executor=executor
            )
            telling = getattr(game, "judge_telling", None)  # of games that judge for minutes
            judgement: Found
            if telling is None:
                judgement = game.judge(finished)
            else:
                judgement = telling(finished, progress)
            for note in judgement.notes:
                progress.say(note)
            judgement.values.setdefault(
                "results", [verdict.to_dict() for verdict in judgement.verdicts]
            )
            judgement.values.setdefault("refused", [asdict(one) for one in judgement.refused])
            judgement.values.update(
                {"game": game.name, "notes": notes + judgement.notes, "source": REPRODUCIBLE}
            )
            judgement.values.update(_played(game.config), seconds=round(perf_counter() - began, 1))
            if path is not None:
                write_atomic(
                    path / RESULT, (json.dumps(judgement.values, indent=1) + "\n").encode()
                )
    return judgement


def _played(config: Config) -> dict[str, Any]:
    """Return the conditions under which a game was played; values not measured on data name their source."""
    if not hasattr(config, "data"):
        return {"versions": versions()}
    about = provenance(f"{config.data.name}, as in {config.name}", [config.seed])
    return {"versions": versions(), "numerics": Cell("", config).numerics, "provenance": about}


VANILLA = "vanilla"


@dataclass(frozen=True)
class Planned:
    """One setting: its label, its configuration, and the label of the setting whose average sigma it uses, or ""."""

    label: str
    config: Config
    matches: str = ""


def settings_of(config: Config, compare: bool) -> list[Planned]:
    """List the undefended federation, then the setting of ``[privacy]``, or each of ``[compare]``."""
    fixed = {"compare": Comparison(), "engine": "local", "device": resolve_device(config.device)}
    fixed["source"] = Randomness()
    single = config.model_copy(update=fixed)
    planned = [Planned(config.privacy.method, single)]
    if compare:
        planned = []
        for variant in variants_of(config):
            one = configure(config, variant.label, variant.setting).model_copy(update=fixed)
            planned.append(Planned(variant.label, one, variant.setting.match_sigma_of))
    plain = [p for p in planned if p.config.privacy.method == VANILLA]
    if not plain:
        plain = [
            Planned(
                VANILLA, configure(single, VANILLA, Setting.model_validate({"method": VANILLA}))
            )
        ]
    return [*plain, *(p for p in planned if p not in plain)]
