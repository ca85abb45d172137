"""Track a federation in MLflow or TensorBoard, each figure marked: the experimenter's view, or a release.

A tracking server is one more party. What a run measures without noise (accuracies, losses, norms, who failed) may go
there only if it may see the hospitals' data; what was released, with its noise, may go anywhere. So every name begins
with ``experimenter/`` or ``released/``, and `Tracker(..., released_only=True)` sends nothing of the first kind.

    python examples/tracking.py tensorboard runs/board     # pip install tensorboard
    python examples/tracking.py mlflow sqlite:///mlflow.db # pip install mlflow
    python examples/tracking.py print
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

import fedveil as fv

Sink = Callable[[Mapping[str, float], int], None]  # figures by name, and the round
OURS, RELEASED = "experimenter/", "released/"


def marked(record: fv.RoundRecord) -> dict[str, float]:
    """Figures of a round under names that say whose they are.

    Released are the metrics that were published to the clients, and the loss that validation clients released: with
    noise, unless the run publishes in the clear, which its promise then says. All else was measured without noise,
    also where the model itself carries some.
    """
    own = {f"{OURS}{name}": value for name, value in (record.metrics or {}).items()}
    own |= {f"{OURS}server/{name}": value for name, value in record.round.report.items()}
    own |= {f"{OURS}failed": len(record.round.failed), f"{OURS}seconds": record.seconds}
    shown = {f"{RELEASED}{name}": value for name, value in record.published.items()}
    if record.validation is not None:
        shown[f"{RELEASED}validation_loss"] = record.validation
    return {name: float(value) for name, value in {**own, **shown}.items() if math.isfinite(value)}


class Tracker:
    """A callback for ``Federation.run(rounds, on_round=Tracker(sink))``.

    Parameters
    ----------
    sink : callable
        Takes figures by name and the round.
    released_only : bool
        Leave out the experimenter's view: for a tracking server that must not see it.
    """

    def __init__(self, sink: Sink, *, released_only: bool = False) -> None:
        self._sink, self._released_only = sink, released_only

    def __call__(self, record: fv.RoundRecord) -> None:
        figures = marked(record)
        if self._released_only:
            figures = {name: value for name, value in figures.items() if name.startswith(RELEASED)}
        if figures:
            self._sink(figures, record.round.number)


def tensorboard(folder: str) -> Sink:
    """A sink into event files of TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def write(figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def mlflow(uri: str) -> Sink:
    """A sink into an MLflow run."""
    import mlflow as library

    library.set_tracking_uri(uri)
    library.set_experiment("fedveil")
    return lambda figures, step: library.log_metrics(dict(figures), step=step)


def printed(_: str = "") -> Sink:
    """A sink onto the terminal."""
    return lambda figures, step: print(
        step, {name: round(value, 4) for name, value in figures.items()}
    )


def promise_of(history: fv.History, delta: float) -> dict[str, str]:
    """What to write beside the figures, as parameters or tags: the promise with unit, relation, trust and total."""
    return {"promise": history.guarantee.describe(delta), "noise source": history.source}


def federation() -> fv.Federation:
    """Three hospitals that publish noised metrics under one total."""
    x = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    clients = [(x[i:180:3], y[i:180:3], x[180 + i :: 3], y[180 + i :: 3]) for i in range(3)]
    private = fv.GlobalDP(noise_multiplier=1.0, clip=0.2)
    evaluation = fv.Evaluation(publishing=fv.Publishing(metrics="noised", noise_multiplier=8.0))
    return fv.Federation(
        model=torch.nn.Linear(4, 2), clients=clients, method=private, evaluation=evaluation, seed=1
    )


SINKS: dict[str, Callable[[str], Sink]] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "print": printed,
}


def main(arguments: list[str]) -> dict[str, Any]:
    """Track three rounds."""
    kind, place = (
        (arguments[0] if arguments else "print"),
        (arguments[1] if len(arguments) > 1 else ""),
    )
    history = federation().run(3, on_round=Tracker(SINKS[kind](place)))
    said = promise_of(history, 1e-5)
    if kind == "mlflow":
        import mlflow as library

        library.set_tags(said)
    print(said)
    return said


if __name__ == "__main__":
    main(sys.argv[1:])
