"""Comparisons and audits of a user's own federation: a function makes it for given clients, method and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter, warn

import torch
from torch import Tensor

from fedveil.accounting import PARTS
from fedveil.engines import AnyMethod, Federation, RunWarning
from fedveil.errors import FieldError, NoReplyError, cleaned, kind_of, require_count, require_rounds
from fedveil.gdp import rounded_down
from fedveil.learning import ClientData, LocalTraining, as_client
from fedveil.ranges import require_within
from fedveil.tables import broken_lines
from fedveil_lab.attacks.bounds import EpsilonBound
from fedveil_lab.config import Config, load
from fedveil_lab.games.game import Judgement, game_of, play
from fedveil_lab.games.own import Clients, Make, OwnGame, make_one
from fedveil_lab.games.scoring import Audit
from fedveil_lab.grid import Cell, Store
from fedveil_lab.grid.cell import stated
from fedveil_lab.grid.comparison import compare as compare_settings
from fedveil_lab.grid.comparison import named
from fedveil_lab.runs.runner import Progress, Silent
from fedveil_lab.runs.summary import Summary

WIDTH = 180  # columns of a comparison as text
ROUNDS_TO_NOUGHT = 0.005  # an epsilon below is printed as 0.00
OwnSetting = AnyMethod | None | tuple[AnyMethod | None, LocalTraining]


def compare(
    what: Make | Config | str | Path,
    clients: Clients | None = None,
    settings: Mapping[str, OwnSetting] | None = None,
    *,
    rounds: int | None = None,
    seeds: int = 1,
    delta: float = 1e-5,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> "Compared":
    """Run privacy settings with the same clients and seeds, and compare them in one table.

    Parameters
    ----------
    what : callable, Config or path
        ``make(clients, method, seed) -> Federation``, or a configuration with ``[compare]``, which needs no clients or
        settings.
    clients : sequence
        Clients as for `Federation`; they are passed to `make`.
    settings : mapping of str to method
        Methods as for `Federation`, by label; None means no privacy. A pair ``(method, LocalTraining(...))`` also sets
        the local training; `what` is then called with ``local=``. All are checked before the first run.
    rounds : int
        Number of rounds per run.
    seeds : int
        Number of repetitions, with seeds 0, 1, ..., or from the configuration's own seed on.
    delta : float
        Delta at which epsilons are stated.
    out : path, optional
        Folder for a configuration's runs.
    progress : Progress, optional
        Receives the progress; by default a bar on a terminal, and nothing elsewhere.

    Returns
    -------
    Compared
        Printed, it is the table of ``fedveil compare``.

    Examples
    --------
    >>> make = lambda clients, method, seed: fv.Federation(
    ...     model=model, clients=clients, method=method, seed=seed
    ... )
    >>> settings = {
    ...     "no privacy": None,
    ...     "epsilon 8": fv.GlobalDP(epsilon=8, delta=1e-5, rounds=2, clip=1.0),
    ... }
    >>> fv.compare(make, clients, settings, rounds=2)[-1].values["guarantee"]
    'formal eps=8 at delta=1e-05 (zero-out, client, central, total)'
    """
    if isinstance(what, Config | str | Path):
        config = _configuration(what)
        runs = compare_settings(config, out, seeds=seeds, progress=progress or shown())
        return Compared(tuple(runs))
    require_function(what)
    _require(
        "compare(make, clients, settings, rounds=10)",
        clients=clients,
        settings=settings,
        rounds=rounds,
    )
    if not isinstance(settings, Mapping):
        raise FieldError(
            "settings",
            kind_of(settings),
            'must name each: {"no privacy": None, "mine": method}',
        )
    if out is not None:
        raise FieldError(
            "out",
            str(out),
            "is for configurations; what a function makes has no file to run it again by",
        )
    planned, delta = require_rounds("rounds", rounds), require_within("delta", "delta", delta)
    cells = []
    for label, given in settings.items():
        for seed in range(require_count("seeds", seeds)):
            make = partial(_made, what, clients or (), given, seed)
            cells.append(Cell(label, stated(planned, seed, delta), make=make))
    for cell in cells[::seeds]:
        assert cell.make is not None
        with named(cell.label), catch_warnings():
            simplefilter("ignore", RunWarning)  # the run says it
            cell.make()
    finished = Store(None).run(cells, progress or shown())
    for why in finished.failed.values():
        raise NoReplyError(why)
    summaries = [finished.outcomes[cell.key].summary for cell in cells]
    for cell, summary in zip(cells[::seeds], summaries[::seeds], strict=True):
        for line in summary.values["data"]["warnings"]:
            warn(f"{cell.label}: {line}", RunWarning, stacklevel=2)
    return Compared(tuple(summaries))


@dataclass(frozen=True)
class Compared(Sequence[Summary]):
    """Finished runs of a comparison, ordered by setting, then by seed.

    Attributes
    ----------
    summaries : tuple of Summary
        Summaries of the runs.

    Examples
    --------
    >>> make = lambda clients, method, seed: fv.Federation(
    ...     model=model, clients=clients, method=method, seed=seed
    ... )
    >>> runs = fv.compare(make, clients, {"no privacy": None, "a median": fv.FedMedian()}, rounds=1)
    >>> [run.setting for run in runs]
    ['no privacy', 'a median']
    """

    summaries: tuple[Summary, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.summaries[index]

    def __len__(self) -> int:
        return len(self.summaries)

    def __str__(self) -> str:
        """Format the table and its notes."""
        from fedveil_lab.report.tables import comparison_notes, comparison_tables

        texts = [table.text(WIDTH) for table in comparison_tables(self.summaries, WIDTH)]
        for note in comparison_notes(self.summaries):
            texts.append(cleaned(note, len(note), keep="\n"))
        lines = list[str]()
        for text in texts:
            lines += broken_lines(text, WIDTH)
        return "\n".join(lines) + "\n"


def _configuration(what: Config | str | Path) -> Config:
    """Return a configuration as given, or from its file."""
    if isinstance(what, Config):
        return what
    return load(str(what))


def _made(make: Make, clients: Clients, given: OwnSetting, seed: int) -> Federation:
    if not isinstance(given, tuple):
        return make_one(make, clients, given, seed)
    method, local = given
    return make_one(make, clients, method, seed, local=local)


def require_function(what: Any) -> None:
    """Refuse an argument that is neither a configuration nor a function that makes a federation."""
    accepted = "must be a configuration, its path, or a function (clients, method, seed) that makes a Federation"
    if isinstance(what, type):
        raise FieldError("what", what.__name__, accepted)
    if not callable(what):
        raise FieldError("what", type(what).__name__, accepted)


def _require(call: str, **given: Any) -> None:
    """Refuse a function that is given without its other arguments."""
    for name, value in given.items():
        if not value:
            raise FieldError(name, value, f"it is needed beside a function: {call}")
    if not isinstance(given["clients"], Sequence):
        raise FieldError("clients", type(given["clients"]).__name__, "must be a list of clients")


def shown() -> Progress:
    """Make a bar on a terminal, and nothing elsewhere."""
    from rich.console import Console

    from fedveil_lab.report.progress import Display

    console = Console(stderr=True)
    if not console.is_terminal:
        return Silent()
    return Display(console)


def audit(
    what: Make | Config | str | Path,
    clients: Clients | None = None,
    method: AnyMethod | None = None,
    *,
    rounds: int | None = None,
    replicates: int | None = None,
    target: int = -1,
    instead: Any = None,
    reference: Any = None,
    delta: float = 1e-5,
    progress: Progress | None = None,
    **options: Any,
) -> "OwnAudit | Judgement":
    """Measure how well someone who sees every model can tell whether one client takes part, with and without `method`.

    The guarantee's relation decides what replaces the target in the other world. It is a client without examples
    (zero-out, or no client-level promise), one with the examples of `instead` or of another client (replace-one), or no
    client (add/remove). Rehearsals, half as many as the runs and at least 8, set thresholds and weights.

    Parameters
    ----------
    what : callable, Config or path
        ``make(clients, method, seed) -> Federation``, or a configuration: `options` are then those of
        `fedveil_lab.games.game_of`, and ``out`` for a folder.
    clients : sequence
        Clients as for `Federation`.
    method : optional
        Method that protects the clients. The same attacks also run against the federation without it.
    rounds : int
        Number of rounds per run.
    replicates : int, optional
        Number of runs per world. Default: 10, or the game's default for a configuration.
    target : int
        Number of the target client; the attacker holds its training examples.
    instead : client, optional
        Client that replaces the target; its examples need the same shape.
    reference : client, optional
        Examples on which nobody trains, for calibrated attacks. Default: held-out examples of the other clients.
    delta : float
        Delta of the bounded epsilons.
    progress : Progress, optional
        Receives the progress; by default a bar on a terminal, and nothing elsewhere.

    Examples
    --------
    >>> make = lambda clients, method, seed: fv.Federation(
    ...     model=model, clients=clients, method=method, seed=seed
    ... )
    >>> held = [(*client, *client) for client in clients]
    >>> result = fv.audit(
    ...     make, held, fv.GlobalDP(noise_multiplier=4.0, clip=1.0), rounds=1, replicates=4
    ... )
    >>> result.measured.lower <= result.measured.ceiling
    True
    """
    progress = progress or shown()
    if isinstance(what, Config | str | Path):
        out = options.pop("out", None)
        if replicates is not None:
            options["replicates"] = replicates
        return play(game_of(_configuration(what), **options), out, progress)
    require_function(what)
    _require("audit(make, clients, method, rounds=10)", clients=clients, rounds=rounds)
    for name, value in options.items():
        raise FieldError(name, value, "is for configurations alone: leave it out here")
    held = [as_client(c, f"clients[{i}]") for i, c in enumerate(clients or ())]
    if not -len(held) <= target < len(held):
        raise FieldError("target", target, f"there are clients 0 to {len(held) - 1}")
    where = range(len(held))[target]
    shadow, others = held[where], [*held[:where], *held[where + 1 :]]
    if reference is None:
        known = _held_out(others)
    else:
        known = as_client(reference, "reference")
    if instead is None:
        relation, stand_in = _relation(what, held, method), held[where - 1]
    else:
        relation, stand_in = "replace-one", as_client(instead, "instead")
    if relation == "zero-out":
        stand_in = ClientData(shadow.x[:0], shadow.y[:0])
    without = others
    if relation != "add/remove":
        without = [*held[:where], stand_in, *held[where + 1 :]]
    settings: dict[str, AnyMethod | None] = {"no defence": None}
    if method is not None:
        settings["with the method"] = method
    if replicates is None:
        replicates = 10
    game = OwnGame(
        what,
        {True: held, False: without},
        settings,
        require_rounds("rounds", rounds),
        require_count("replicates", replicates, least=4),
        (shadow, known),
        relation,
        require_within("delta", "delta", delta),
    )
    judged = play(game, progress=progress)
    return OwnAudit(
        **vars(judged), target=where, relation=relation, promised=judged.values["promised"]
    )


@dataclass(frozen=True, eq=False)
class OwnAudit(Audit):
    """Result of an audit of your own federation: attacks without the method first, then with it.

    Attributes
    ----------
    target : int
        Number of the target client.
    relation : str
        Neighbouring relation of the two worlds.
    promised : str
        The method's guarantee.

    Examples
    --------
    >>> make = lambda clients, method, seed: fv.Federation(
    ...     model=model, clients=clients, method=method, seed=seed
    ... )
    >>> result = fv.audit(make, [(*c, *c) for c in clients], fv.FedMedian(), rounds=1, replicates=4)
    >>> type(result).__name__, result.target
    ('OwnAudit', 2)
    """

    target: int = -1
    relation: str = ""
    promised: str = ""

    @property
    def measured(self) -> EpsilonBound:
        """Lower bound of epsilon that all attacks on the method prove together."""
        return self.together[self.verdicts[-1].setting]

    def __str__(self) -> str:
        """Format the answer, a line for each attack, then the promise beside the measured bound."""
        from fedveil_lab.report.audit_tables import answered

        own = [v for v in self.verdicts if v.setting == self.verdicts[-1].setting]
        answer = answered(own[0].setting, own, max(own, key=attrgetter("point")))
        lines = [f"Can others tell whether client {self.target} takes part? {answer}"]
        for v in self.verdicts:
            area = f"AUC {v.point:.3f} ({v.low:.2f}-{v.high:.2f})"
            lines.append(f"{v.setting}, {v.attack}: {area} over {v.n} runs")
        measured = f"epsilon >= {rounded_down(self.measured.lower)}; so many runs can prove at most {self.measured.ceiling:.2f}"
        if self.measured.ceiling < ROUNDS_TO_NOUGHT:
            measured = "nothing, as so few runs can prove no epsilon above 0"
        lines.append(f"promised: {self.promised}; measured: {measured} ({self.relation}, 95%)")
        return "\n".join(lines)


def _relation(make: Make, clients: Clients, method: AnyMethod | None) -> str:
    """Return the relation of a method's promise for a client, after a round of the method."""
    promise = make_one(make, clients, method, 0).run(1).guarantee
    if promise.proven and promise.unit not in PARTS:
        return promise.relation
    return "zero-out"


def _held_out(clients: Sequence[ClientData]) -> ClientData | None:
    """Join the held-out examples of the given clients."""
    x, y = list[Tensor](), list[Tensor]()
    for client in clients:
        if client.test_x is not None and client.test_y is not None:
            x.append(client.test_x)
            y.append(client.test_y)
    if not x:
        return None
    return ClientData(torch.cat(x), torch.cat(y))
