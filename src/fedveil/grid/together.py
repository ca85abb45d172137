"""Like runs side by side: one learner trains the clients of all of them in one call a round.

How many at once: an interruption loses those of the block that is being played. Small models gain by many, as one
operation trains the clients of all of them. Models whose training takes seconds gain next to nothing (dense layers of
167,178 parameters: 0.45 instead of 0.49 s a replicate, small convolutions nothing at all), and are played in small
blocks or one by one.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from torch import Tensor, nn

from fedveil.config import Config
from fedveil.engines import Lockstep
from fedveil.engines.seams import Probe
from fedveil.learning import predict
from fedveil.learning.learner import Learner
from fedveil.runs.folder import new_run_id
from fedveil.runs.ledgers import Ledgers
from fedveil.runs.prepare import Setup, prepare
from fedveil.runs.runner import Judge, begin, conclude, one_thread, summary_of
from fedveil.runs.summary import Row, Summary, row_of

MOST = 20
BYTES = 1e9  # of models and data that a block keeps until its scores are there
SECONDS = 20.0  # that a block may take, about, unless one replicate takes longer

# A second, about. One core was measured with digits: 17e9 (dense), 5.6e9 (convolutions); a GPU is taken for a hundred.
OPERATIONS = {"cpu": 1e10, "cuda": 1e12}
HANDLING = 2.5e-3  # seconds a client and round for noise, sums, measures and scores, however small the model


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


def block_size(config: Config, setup: Setup, kept: int, alone: int) -> int:
    """Replicates to play at once: as many as the memory and about `SECONDS` allow, at most `MOST`.

    At least one, and two where several threads train: the three clients of one would leave a second thread idle.

    Parameters
    ----------
    config : Config
        Of one run.
    setup : Setup
        What `prepare` made of it.
    kept : int
        Parameter vectors that a replicate keeps until it is scored.
    alone : int
        Examples that the adversary's own model is trained on, epochs included.
    """
    learner, x = setup.arguments["learner"], setup.dataset.x
    held = 4 * learner.layout.size * kept + x.element_size() * x.numel()
    seconds = seconds_of(config, setup, operations(learner, setup.arguments["initial"][0], x), alone)
    return int(max(min(2, config.workers), min(MOST, BYTES // held, SECONDS // seconds)))


def seconds_of(config: Config, setup: Setup, each: float, alone: int) -> float:
    """About how long one more replicate takes, with so many operations for one example's forward pass."""
    clients = setup.arguments["clients"]
    cohort = config.clients_per_round or len(clients)
    examples = sum(c.examples for c in clients) * cohort / len(clients)
    passes = config.rounds * config.local.epochs * examples + alone
    training = 3 * each * passes  # back is twice as much as forth
    return float(config.rounds * cohort * HANDLING + training / OPERATIONS[config.device])


def operations(learner: Learner, vector: Tensor, x: Tensor) -> float:
    """Floating-point operations of one example's forward pass: two for each use of a weight.

    PyTorch's own counter imports its compiler first, for seconds; dense layers and convolutions need none.

    Parameters
    ----------
    learner : Learner
        With the model.
    vector : Tensor
        [d], parameters.
    x : Tensor
        [N, ...], of which the first example is taken.
    """
    uses: list[float] = []

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        uses.append(weight.numel() * output.numel() / len(weight))

    layers = [part for part in learner.model.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        predict(learner.model, learner.layout, vector, x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return 2 * max(sum(uses), float(learner.layout.size))
