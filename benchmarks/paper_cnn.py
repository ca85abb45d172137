"""One step of the metric-privacy paper's CNN (6.5 million parameters, 1x128x128, batch 32, Adam)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.agreement import full_precision
from benchmarks.timing import Case, Lap, Stopwatch, interleave, ratios, summary
from fedveil import ClientData, Layout, LocalTraining
from fedveil.learning import WorkerTrainer, build_model, make_trainer
from fedveil.learning.streams import epoch_orders

SHAPE, CLASSES, BATCH, STEPS, RATE = (1, 128, 128), 4, 32, 4, 1e-3
TOLERANCE = (
    0.02  # of the distance moved: Adam divides by tiny gradients, whose last bits then count
)
PLAIN, PLAIN_2 = "plain loop, 1 thread", "plain loop, 2 threads"
OURS, OURS_2 = "FedVeil, 1 worker", "FedVeil, 2 workers"


class Plain(nn.Module):
    """The same network as most people write it: NCHW, ReLU before pooling."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        net: Any = self.own
        x = F.max_pool2d(F.relu(net.conv1(x)), 2)
        x = F.max_pool2d(F.relu(net.conv2(x)), 2)
        x = F.relu(net.conv3(x)).flatten(1)
        x = net.drop1(F.relu(net.dense1(x)))
        return net.dense3(net.drop2(F.relu(net.dense2(x))))


class PlainSteps:
    """Autograd and torch.optim.Adam on one model."""

    def __init__(self, client: ClientData, device: str, dropout: float = 0.1) -> None:
        self.net = Plain(network(dropout)).to(device)
        self.x, self.y = client.x.to(device), client.y.to(device)
        self.device = device

    def rounds(self, count: int) -> Sequence[Lap]:
        """Laps of one step, of `count` times the client's steps."""
        watch = Stopwatch(self.device)
        for _ in range(count):
            self.train(torch.randperm(len(self.x)))
            watch.lap()
        return each(watch.laps, STEPS)

    def train(self, order: Tensor) -> None:
        """One epoch with a fresh optimiser, as every client of a round has."""
        optimizer = torch.optim.Adam(self.net.parameters(), lr=RATE)
        for rows in order.to(self.device).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(self.net(self.x[rows]), self.y[rows]).backward()
            optimizer.step()


class TrainerSteps:
    """A trainer of FedVeil on as many equal clients as it has workers, or two to compare worker counts."""

    def __init__(
        self, trainer: Any, start: Tensor, client: ClientData, clients: int, device: str
    ) -> None:
        self.trainer, self.start, self.clients, self.device = (
            trainer,
            start,
            [client] * clients,
            device,
        )
        self.round = 0

    def rounds(self, count: int) -> Sequence[Lap]:
        """Laps of one step of one client."""
        watch = Stopwatch(self.device)
        starts = self.start.expand(len(self.clients), -1)
        for _ in range(count):
            self.round += 1
            keys = [(0, self.round, i) for i in range(len(self.clients))]
            for outcome in self.trainer.train(starts, self.clients, keys):
                if isinstance(outcome, Exception):
                    raise outcome
            watch.lap()
        return each(watch.laps, STEPS * len(self.clients))


def each(laps: Sequence[Lap], steps: int) -> list[Lap]:
    """Share every lap out among its steps."""
    return [Lap(lap.wall / steps, lap.cpu / steps) for lap in laps]


def paper_cnn(device: str = "cpu", quick: bool = False, say: Any = print) -> dict[str, Any]:
    """Time a step of every trainer, loading and reading the parameters included, and check that they agree."""
    torch.set_num_threads(1)
    model, client = network(), images()
    layout, local = (
        Layout.from_module(model),
        LocalTraining(batch_size=BATCH, lr=RATE, optimizer="adam"),
    )
    start = layout.read(model)
    steps = lambda trainer, clients: TrainerSteps(trainer, start, client, clients, device).rounds  # noqa: E731
    loop: Callable[[int], Sequence[Lap]] = PlainSteps(client, device).rounds
    ours = lambda **more: make_trainer(model, layout, local, device=device, **more)  # noqa: E731
    cases = [Case(PLAIN, loop), Case(OURS, steps(ours(), 1))]
    if device == "cpu":
        cases += [
            Case(PLAIN_2, loop, threads=2),
            Case(OURS_2, steps(ours(workers=2), 2)),
            Case("FedVeil, 1 worker, bfloat16 (opt-in)", steps(ours(precision="bfloat16"), 1)),
        ]
    check = agreement(client, device)
    word = "agree" if check["agree"] else "DO NOT AGREE"
    say(
        f"  trainer and plain loop {word}: apart by {check['difference_norm_over_distance_moved']:.1e} of the way gone"
    )
    interleave(cases, 1)  # warms up
    rows = {name: summary(laps) for name, laps in interleave(cases, 1 if quick else 5).items()}
    for name, row in rows.items():
        say(
            f"  {name:40}{row['minimum_ms']:9.1f} ms a step at least,{row['median_ms']:9.1f} median"
        )
    return {
        "device": device,
        "rows": rows,
        "times_as_long_as_ours": ratios(rows, OURS),
        "agreement": check,
    }


def agreement(client: ClientData, device: str) -> dict[str, Any]:
    """Two steps without dropout from the same start on the same batches."""
    model = network(0.0)
    layout, few = (
        Layout.from_module(model),
        ClientData(client.x[: 2 * BATCH], client.y[: 2 * BATCH]),
    )
    local = LocalTraining(batch_size=BATCH, lr=RATE, optimizer="adam")
    start, key = layout.read(model), (0, 1, 0)
    loop = PlainSteps(few, device, 0.0)
    with full_precision():
        loop.train(torch.from_numpy(epoch_orders([key], [few.examples], 1)[0, 0]))
        ours = WorkerTrainer(model, layout, local, device, 1).train(start[None], [few], [key])[0]
    if isinstance(ours, Exception):
        raise ours
    theirs = layout.read(loop.net.own.cpu())
    apart = float((ours.model - theirs).norm() / (theirs - start).norm())
    return {
        "difference_norm_over_distance_moved": apart,
        "tolerance": TOLERANCE,
        "agree": apart <= TOLERANCE,
    }


def network(dropout: float = 0.1) -> nn.Module:
    """The paper's CNN, always from the same start."""
    return build_model("alzheimer_cnn", input_shape=SHAPE, outputs=CLASSES, seed=0, dropout=dropout)


def images() -> ClientData:
    """A client of four batches."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(STEPS * BATCH, *SHAPE, generator=generator)
    return ClientData(x, torch.randint(CLASSES, (len(x),), generator=generator))
