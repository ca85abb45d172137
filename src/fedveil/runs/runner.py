"""Run one experiment from its configuration."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from statistics import median
from threading import RLock
from time import perf_counter
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fedveil.accounting.guarantee import read_off
from fedveil.config.experiment import Config
from fedveil.config.folders import refuse_used
from fedveil.engines import Federation, RoundRecord
from fedveil.engines.seams import Probe
from fedveil.learning import evaluate, evaluate_clients
from fedveil.runs import summary
from fedveil.runs.deal import data_digest
from fedveil.runs.folder import UNNOISED, RunFolder, new_run_id
from fedveil.runs.ledgers import Ledgers
from fedveil.runs.prepare import Setup, prepare, resolve_device
from fedveil.runs.totals import guarantees_of

_TURN = RLock()  # torch's number of threads and its tracer of models are the process's


class Progress(Protocol):
    """Is told how a run goes."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """A run starts, or goes on after `done` rounds."""

    def advance(self, row: summary.Row) -> None:
        """A round is done."""

    def say(self, text: str) -> None:
        """Something that the user should know."""

    def end(self) -> None:
        """The run is over, whatever happened."""


class Silent:
    """Tells nobody."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Nothing."""

    def advance(self, row: summary.Row) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


@runtime_checkable
class Judge(Probe, Protocol):
    """What a probe has besides its figures if it judges a whole run, such as an attack on it.

    What it keeps lives in the process: a run that was interrupted begins anew.
    """

    def begin(self, setup: Setup) -> None:
        """Take what the adversary holds before the run begins."""

    def load(self, setup: Setup) -> int:
        """Parameter vectors that it keeps of a run."""

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Plain values for the summary, of several runs at once: what is trained for them is trained together."""


def run(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    setting: str = "",
    memo: Path | None = None,
    probes: Sequence[Probe] = (),
) -> summary.Summary:
    """Run an experiment.

    Parameters
    ----------
    config : Config
        Of one run; its ``[compare]`` is not looked at.
    out : path, optional
        The run's folder. Without one the ledgers live in memory and nothing is written.
    resume : bool
        Go on in `out` after the last whole round. With the reproducible source and the same device, the result is the
        same to the bit as without the interruption, on any number of workers.
    progress : Progress, optional
        Is told how it goes.
    setting : str
        The run's label; by default the method's name.
    memo : Path, optional
        A folder where first rounds are kept for other runs that begin alike; may be deleted at any time.
    probes : sequence of Probe
        Measure more after each round; what they return are the row's "figures".

    Raises
    ------
    FieldError, ConfigError
        If something does not fit; before anything is written, unless only training shows it.
    LedgerError
        If a ledger of a resumed run was edited or shortened.
    NoReplyError
        If a round ends without a usable reply.
    """
    progress = progress or Silent()
    config = config.model_copy(update={"device": resolve_device(config.device)})
    path = None if out is None else Path(out)
    if path is not None and not resume:
        refuse_used(path)
    label = setting or config.privacy.method
    with one_thread(), ExitStack() as left:
        began = perf_counter()
        setup = prepare(config, memo)
        for warning in () if setting else setup.warnings:  # a comparison says them once, beside its table
            progress.say(warning)
        folder = None if path is None else RunFolder(path, config, resume=resume, message=progress.say)
        if folder is not None:
            left.callback(folder.close)
        ledgers = folder.ledgers if folder else Ledgers(new_run_id(config))
        own = begin(probes, setup)
        federation = setup.federation(ledgers, own, (lambda text: None) if setting else progress.say)
        rows: list[summary.Row] = []
        if folder is not None:
            folder.create()
            if folder.checkpoint is not None:
                folder.checkpoint.restore(federation)
            rows = folder.rows

        def on_round(record: RoundRecord) -> None:
            row = summary.row_of(record, federation.method, federation.layout, federation.client_sides)
            if folder is None:
                rows.append(row)
            else:
                folder.finish_round(federation, row)
            progress.advance(row)

        progress.begin(label, federation.round, config.rounds)
        try:
            history = federation.run(config.rounds, on_round)
        finally:
            progress.end()
            ledgers.flush()
            if folder is not None:
                folder.leave()
        seconds = perf_counter() - began
        values = summary_of(setup, federation, history.stopped, ledgers, rows, label, seconds, conclude([own])[0])
        if folder is not None:
            folder.finish(history.state_dicts, values)
    return summary.Summary(values, rows)


def begin(probes: Sequence[Probe], setup: Setup) -> list[Probe]:
    """Copies of the probes for one run, told what they need."""
    own = [copy(probe) for probe in probes]
    for probe in own:
        if isinstance(probe, Judge):
            probe.begin(setup)
    return own


def conclude(runs: Sequence[Sequence[Probe]]) -> list[dict[str, Any]]:
    """What the probes of several runs of like cells conclude: for each run, by the probe's name."""
    conclusions: list[dict[str, Any]] = [{} for _ in runs]
    for alike in zip(*runs, strict=True):
        if isinstance(alike[0], Judge):
            for values, concluded in zip(conclusions, type(alike[0]).conclude(alike), strict=True):
                values[alike[0].name] = concluded
    return conclusions


def judged(probes: Sequence[Probe]) -> bool:
    """Whether one of them judges the whole run."""
    return any(isinstance(probe, Judge) for probe in probes)


def summary_of(
    setup: Setup,
    federation: Federation,
    stopped: str,
    ledgers: Ledgers,
    rows: list[summary.Row],
    label: str,
    seconds: float,
    concluded: Mapping[str, Any],
) -> dict[str, Any]:
    """What summary.json holds of a run that is over."""
    config = setup.config
    dataset = setup.dealt.dataset
    method, delta = federation.method, config.privacy.budget.delta
    guarantee, parties = guarantees_of(method, ledgers.books, delta, read_off(config.read_off))
    core = summary.core_of(label, method, federation.layout, rows, guarantee, delta, config.trainer)
    return {
        **core,
        "name": config.name,
        "method": config.privacy.method,
        "aggregator": config.aggregator.name if config.aggregator else "",
        "task": "classification" if dataset.classes else "regression",
        "test_metrics": _test_metrics(setup, federation, federation.models),
        **_of_public_model(setup, federation),
        **summary.majority_of(federation.clients, dataset.classes),
        "guarantees": parties,
        "participations": _participations(federation, ledgers),
        "private": dict(UNNOISED),
        "published_metrics": {"mode": config.publish.metrics, "text": config.publish.describe()},
        "rounds_planned": config.rounds,
        "stopped": stopped,
        **best_of(federation),
        "clients": len(federation.clients),
        "examples": int(median(c.examples for c in federation.clients)),
        **({} if setup.poisoning is None else {"malicious": setup.poisoning.values(federation)}),
        "data": {
            "name": dataset.name,
            "note": dataset.note,
            "licence": dataset.licence,
            "digest": data_digest(config.data),
            "largest_class": setup.dealt.largest_class,
            "warnings": [*setup.warnings, *federation.warnings.said.values()],
        },
        "derived_from": config.privacy.options.get("derived_from", ""),
        "seed": config.seed,
        "source": summary.REPRODUCIBLE if config.source.kind == "reproducible" else "secure",
        "engine": config.engine,
        "device": config.device,
        "workers": config.workers,
        **({"concluded": concluded} if concluded else {}),
        "seconds": {**core["seconds"], "this_call": round(seconds, 3)},
    }


def _participations(federation: Federation, ledgers: Ledgers) -> dict[str, int]:
    """How many clients released so often, by the number of releases; of clients that protect themselves."""
    if federation.method.client.trust == "central":
        return {}
    lines = {party: len(book.entries) for party, book in ledgers.books.items()}
    made = Counter(lines.get(str(p), 0) for p in range(len(federation.clients)))
    return {str(count): made[count] for count in sorted(made)}


def best_of(federation: Federation) -> dict[str, Any]:
    """The least loss of the validation clients, as released, and whose it was."""
    if federation.validators is None or not federation.validators.best.round:
        return {}
    best = federation.validators.best
    return {"best": {"validation": best.loss, "round": best.round}}


def _of_public_model(setup: Setup, federation: Federation) -> dict[str, Any]:
    """What the first model reaches, where it is one of public examples alone: on what clients hold out, and tested."""
    if setup.config.model.start != "public":
        return {}
    first, clients = setup.starts[:1], federation.clients
    chosen = [0] * len(clients)
    model, layout, names = federation.learner.model, federation.layout, federation.metrics
    pooled = evaluate_clients(model, layout, first, clients, chosen, names)[1]
    return {"public_model": {"metrics": pooled, "test_metrics": _test_metrics(setup, federation, first)}}


def _test_metrics(setup: Setup, federation: Federation, models: Tensor) -> dict[str, float]:
    """A single model on the set's own test half, where there is one."""
    data = setup.dealt.dataset
    if data.test_x is None or data.test_y is None or len(models) != 1:
        return {}
    model = federation.learner.model
    return evaluate(model, federation.layout, models[0], data.test_x, data.test_y, federation.metrics)


@contextmanager
def one_thread() -> Iterator[None]:
    """The same bits on every machine; workers train clients side by side. Runs in threads of one process take turns."""
    with _TURN:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
