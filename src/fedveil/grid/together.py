"""Like runs side by side: one learner trains the clients of all of them in one call a round.

How many at once: an interruption loses those of the block that is being played. Small models gain by many, as one
operation trains the clients of all of them. Models whose training takes seconds gain next to nothing (dense layers of
167,178 parameters: 0.45 instead of 0.49 s a replicate, small convolutions nothing at all), and are played in small
blocks or one by one.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

from fedveil.config import Config
from fedveil.engines import Lockstep
from fedveil.engines.seams import Probe
from fedveil.runs.folder import new_run_id
from fedveil.runs.ledgers import Ledgers
from fedveil.runs.prepare import Setup, prepare
from fedveil.runs.runner import Judge, begin, conclude, one_thread, summary_of
from fedveil.runs.summary import Row, Summary, row_of

MOST = 20
BYTES = 1e9  # of models and data that a block keeps until its scores are there
SECONDS = 20.0  # that a block may take, about, unless one replicate takes longer


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
            for i, record in played.items():
                its = federations[i]
                rows[i].append(row_of(record, its.method, its.layout, its.client_sides))
            for first in list(played)[:1]:
                advance(rows[first][-1])
        seconds = (perf_counter() - began) / len(configs)
        conclusions = conclude(own)
        return [
            Summary(
                summary_of(s, f, lockstep.stopped.get(i, ""), book, rows[i], label, seconds, conclusions[i]), rows[i]
            )
            for i, (s, f, book) in enumerate(zip(setups, federations, ledgers, strict=True))
        ]


def block_size(setup: Setup, probes: Sequence[Probe], seconds: float) -> int:
    """How many runs like this one to play at once: as many as the memory and `SECONDS` allow, at most `MOST`.

    At least one, and two where several threads train: the three clients of one would leave a second thread idle.

    Parameters
    ----------
    setup : Setup
        Of one of them.
    probes : sequence of Probe
        Its own.
    seconds : float
        That one takes; infinite where that is not known.
    """
    x = setup.dealt.dataset.x
    kept = setup.config.rounds + 1 + sum(probe.load(setup) for probe in probes if isinstance(probe, Judge))
    held = 4 * setup.learner.layout.size * kept + x.element_size() * x.numel()
    return int(max(min(2, setup.config.workers), min(MOST, BYTES // held, SECONDS // seconds)))
