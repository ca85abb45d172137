"""Runs of federations that a function makes: what no configuration describes lives in memory alone."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from fedveil.config import Config
from fedveil.config.privacy import Budget, Privacy
from fedveil.engines import RoundRecord
from fedveil.grid.cell import Cell
from fedveil.learning.metrics import task_of
from fedveil.methods import Publishing
from fedveil.runs.summary import REPRODUCIBLE, Row, Summary, core_of, guarantees_of, row_of


def stated(rounds: int, seed: int = 0, delta: float = 1e-5) -> Config:
    """What is known of a run without a configuration; it has no data and no model, and asking for them is an error."""
    privacy = Privacy.model_construct(budget=Budget(delta=delta))
    return Config.model_construct(name="made", rounds=rounds, seed=seed, privacy=privacy)


def play_made(cell: Cell, advance: Callable[[Row], None] = lambda row: None) -> Summary:
    """Run a cell whose federation a function makes, and sum it up as a run of a configuration would be.

    Parameters
    ----------
    cell : Cell
        With `make`; its probes are shown every round, behind those that the federation has.
    advance : callable
        Is told of each round.

    Raises
    ------
    NoReplyError
        If a round has no usable reply.
    """
    assert cell.make is not None
    rows: list[Row] = []
    delta, federation = cell.config.privacy.budget.delta, cell.make()
    federation.probes += cell.probes

    def on_round(record: RoundRecord) -> None:
        rows.append(row_of(record, federation.method, federation.layout, federation.client_sides))
        advance(rows[-1])

    history = federation.run(cell.config.rounds, on_round)
    guarantee, parties = guarantees_of(federation.method, federation.books(), delta)
    values = {
        **core_of(cell.label, federation.method, federation.layout, rows, guarantee, delta),
        "task": "classification" if task_of(federation.clients[0].y) == "classes" else "regression",
        "guarantees": parties,
        "rounds_planned": cell.config.rounds,
        "stopped": history.stopped,
        "clients": len(federation.clients),
        "examples": int(median(c.examples for c in federation.clients)),
        "published_metrics": {"text": Publishing().describe()},
        "derived_from": "",
        "data": {"name": "your clients", "note": "", "warnings": list(federation.warnings.said.values())},
        "seed": cell.config.seed,
        "source": "secure" if federation.source.deployable else REPRODUCIBLE,
    }
    return Summary(values, rows)
