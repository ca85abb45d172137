"""Like runs side by side: one learner trains the clients of all of them in one call a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from fedveil.config import Config
from fedveil.engines import Lockstep
from fedveil.engines.probe import Probe
from fedveil.runs.blocks import block_size
from fedveil.runs.folder import new_run_id
from fedveil.runs.judging import Judge, begin, conclude
from fedveil.runs.ledgers import Ledgers
from fedveil.runs.prepare import Setup, prepare
from fedveil.runs.runner import one_thread, summary_of
from fedveil.runs.summary import Row, Summary, row_of


def run_together(
    configs: Sequence[Config],
    probes: Sequence[Sequence[Probe]],
    label: str,
    advance: Callable[[Row], None],
    like: Setup,
) -> list[Summary]:
    """Run configurations that differ in seeds and in who takes part alone; each ends in the bits it would have alone.

    Nothing is written, and ledgers live in memory. A run that ends early says why in its summary.

    Parameters
    ----------
    configs : sequence of Config
        On the embedded engine.
    probes : sequence of sequence of Probe
        Of each.
    label : str
        Of all of them.
    advance : callable
        Is told of each round of the first that is still going.
    like : Setup
        Of one run like these.
    """
    began = perf_counter()
    with one_thread():
        setups = [prepare(config, like=like) for config in configs]
        own = [begin(some, setup) for some, setup in zip(probes, setups, strict=True)]
        ledgers = [Ledgers(new_run_id(config)) for config in configs]
        federations = [s.federation(book, some) for s, book, some in zip(setups, ledgers, own, strict=True)]
        lockstep = Lockstep(federations)
        rows: list[list[Row]] = [[] for _ in configs]
        for played in lockstep.rounds(configs[0].rounds):
            for i, one in played.items():
                its = federations[i]
                rows[i].append(row_of(one.record, its.method, its.layout, its.client_sides))
            for first in list(played)[:1]:
                advance(rows[first][-1])
        seconds = (perf_counter() - began) / len(configs)
        found = conclude(own)
        return [
            Summary(summary_of(s, f, lockstep.stopped.get(i, ""), book, rows[i], label, seconds, found[i]), rows[i])
            for i, (s, f, book) in enumerate(zip(setups, federations, ledgers, strict=True))
        ]


def most(setup: Setup, probes: Sequence[Probe]) -> int:
    """How many runs like this one are worth playing side by side."""
    kept, alone = setup.config.rounds + 1, 0
    for probe in probes:
        if isinstance(probe, Judge):
            vectors, examples = probe.load(setup)
            kept, alone = kept + vectors, alone + examples
    return block_size(setup.config, setup, kept, alone)
