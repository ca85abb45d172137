"""Checkpoint of a deployed server's run after a round, in one file; another server can continue from it.

It holds released models and values that follow from them, and no secret: no key, no seed, no noise.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedveil.accounting import guarantee_values, unprotected
from fedveil.accounting.bounds import Heuristic
from fedveil.engines.history import Best, total_of
from fedveil.engines.party import SERVER
from fedveil.engines.sealed import sealed, unsealed
from fedveil.engines.serving import QUOTED_BEFORE, Standing
from fedveil.engines.states import pack, unpack
from fedveil.errors import FieldError, damaged
from fedveil.evidence.books import read_books
from fedveil.evidence.rows import METRICS_FILE, Row, parse_row
from fedveil.files import SERVERS_LEDGER, make_folder, write_atomic

FOLDER, FILE, SUMMARY = "checkpoint", "round.safetensors", "summary.json"
OF_QUOTES = "a client of every round, by its quotes"  # party with the promise that a server states under local trust
STATE, BEST, SAID = "state/", "best/", "said"
FIX = "restore it, or begin another run in another folder; this folder stays, as its ledger says what was spent"


def write_standing(
    folder: Path,
    standing: Standing,
    bound: Mapping[str, Any],
    lines: int,
    said: Mapping[str, Any],
) -> None:
    """Write the checkpoint of a run into a folder, in place of the last one.

    Parameters
    ----------
    folder : Path
        Folder of the server.
    standing : Standing
        State after a round; the round's ledger line must be on the disk.
    bound : mapping
        Values that must not change when the run continues.
    lines : int
        Number of lines of the server's ledger.
    said : mapping
        Values of the run's summary that no ledger has.
    """
    tensors: dict[str, Tensor] = {"models": standing.models}
    plain: dict[str, Any] = {
        "round": standing.round,
        "partitions": list(standing.partitions),
        "lines": lines,
    }
    for prefix, value in ((STATE, standing.state), (BEST, standing.best)):
        inner, plain[prefix] = pack(value)
        for name, tensor in inner.items():
            tensors[prefix + name] = tensor
    make_folder(folder / FOLDER)
    plain |= {"bound": dict(bound), SAID: dict(said)}
    write_atomic(folder / FOLDER / FILE, sealed(tensors, plain))


def read_standing(
    folder: Path, state: Any, bound: Mapping[str, Any]
) -> tuple[Standing, int] | None:
    """Read a folder's checkpoint, and the number of lines of the server's ledger at that time.

    Parameters
    ----------
    folder : Path
        Folder of the server.
    state : object
        Fresh state of the method's server side.
    bound : mapping
        Values that must equal the checkpoint's (`write_standing`).

    Returns
    -------
    (Standing, int) or None
        None before the end of the first round.

    Raises
    ------
    FieldError
        If the file is damaged, or belongs to another run.
    """
    path = folder / FOLDER / FILE
    if not path.exists():
        return None
    try:
        tensors, plain = unsealed(path)
        known = dict(plain["bound"])
        if known == dict(bound):
            own = unpack(state, _below(tensors, STATE), plain[STATE])
            best = unpack(Best(), _below(tensors, BEST), plain[BEST])
            standing = Standing(
                plain["round"],
                tensors["models"],
                own,
                best,
                tuple(plain["partitions"]),
            )
            return standing, int(plain["lines"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged("folder", path, error, FIX) from error
    name = next(name for name in {**known, **bound} if known.get(name) != bound.get(name))
    accepted = f"the run in {folder} was begun with {known.get(name)}: go on with that, or give another folder"
    raise FieldError(name, bound.get(name), accepted)


def summary_so_far(folder: Path) -> tuple[dict[str, Any], list[Row]] | None:
    """Summarise the unfinished run of a deployed server, with its rounds; None for any other folder.

    Everything that was charged counts, also a round whose models were lost. Under local trust a server knows no total.

    Raises
    ------
    FieldError
        If the checkpoint is damaged.
    LedgerError
        If the ledger is damaged.
    """
    path = folder / FOLDER / FILE
    if (folder / SUMMARY).exists() or not path.exists():
        return None
    try:
        _, plain = unsealed(path)
        if SAID not in plain:
            return None
        done, said = int(plain["round"]), dict(plain[SAID])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged("RUN", path, error, FIX) from error
    ledger = next(iter(read_books([folder / SERVERS_LEDGER]).runs.values()))[SERVER].ledger
    central = said["trust"] == "central"
    if central:
        promise = total_of(ledger)
    else:
        promise = replace(unprotected(said["trust"]), bound=Heuristic(QUOTED_BEFORE), scope="total")
    delta = float((ledger.opening or {}).get("delta", 1e-5))
    stopped = f"not finished: {done} of {said['rounds_planned']} rounds are done; killed, or still running"
    stated = {SERVER if central else OF_QUOTES: guarantee_values(promise, delta)}
    values = {
        **said,
        "guarantee": promise.describe(delta),
        "guarantees": stated,
        "stopped": stopped,
        "finished": False,
    }
    return values, rows_of(folder / METRICS_FILE)[:done]


def rows_of(file: Path) -> list[Row]:
    """Read the rounds of a run, up to the first missing or damaged line."""
    rows: list[Row] = []
    if not file.exists():
        return rows
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(parse_row(line))
        except (ValueError, KeyError):
            break
    return rows


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
