"""Clients trained in threads come out to the bit as they do one after another."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fedveil.layout import Layout
from fedveil.learning import (
    BatchedTrainer,
    ClientData,
    LocalTraining,
    SequentialTrainer,
    WorkerTrainer,
)
from fedveil.learning.threads import Threads


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also where the tests were begun in the background, which is told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(4 * 9, 3),
    )


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


def clients(sizes: list[int]) -> list[ClientData]:
    g = torch.Generator().manual_seed(1)
    return [
        ClientData(torch.rand(n, 1, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g))
        for n in sizes
    ]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_bits_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    model, data = network(), clients([7, 0, 30, 12, 5])
    layout = Layout.from_module(model)
    local = LocalTraining(epochs=2, batch_size=4, lr=0.1)
    starts, keys = layout.read(model).expand(5, -1), [(3, 1, p) for p in range(5)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = SequentialTrainer(model, layout, local).train(starts, data, keys)
        trainer = WorkerTrainer(model, layout, local, workers=workers)
        assert trainer.workers == workers
        together = trainer.train(starts, data, keys)
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.model, b.model)  # type: ignore[union-attr]
        assert a.loss == b.loss  # type: ignore[union-attr]


def test_a_client_that_raises_leaves_the_others_alone() -> None:
    model, data = network(), clients([6, 6, 6])
    bad = ClientData(
        torch.rand(6, 2, 8, 8), torch.zeros(6, dtype=torch.int64)
    )  # two channels where one is needed
    layout = Layout.from_module(model)
    trainer = WorkerTrainer(model, layout, LocalTraining(lr=0.1), workers=2)
    starts, keys = layout.read(model).expand(4, -1), [(0, 1, p) for p in range(4)]
    results = trainer.train(starts, [data[0], bad, data[1], data[2]], keys)
    assert [isinstance(r, Exception) for r in results] == [False, True, False, False]


def test_unknown_modules_are_trained_by_one_worker(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(nn.functional.dropout(x, 0.5, self.training))

    with caplog.at_level("INFO"):
        trainer = WorkerTrainer(Mine(), Layout.from_module(Mine()), LocalTraining(), workers=2)
    assert trainer.workers == 1
    assert "Mine" in caplog.text


@pytest.mark.flaky(reruns=2)  # when a signal arrives is up to the system
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("kind", [WorkerTrainer, BatchedTrainer])
def test_an_interruption_ends_all_threads_within_a_step(
    kind: type[WorkerTrainer] | type[BatchedTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = dense() if kind is BatchedTrainer else network(), clients([40, 40, 40, 40])
    layout, stay = Layout.from_module(model), Threads.raise_if_stopped
    seen: list[int] = []

    def counted(threads: Threads) -> None:  # before every step
        seen.append(1)
        if len(seen) == 20:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # as Ctrl-C does
        stay(threads)

    monkeypatch.setattr(Threads, "raise_if_stopped", counted)
    before, local = threading.active_count(), LocalTraining(epochs=10, batch_size=4, lr=0.01)
    trainer = kind(
        model, layout, local, workers=2, **({"block": 1} if kind is BatchedTrainer else {})
    )
    starts, keys = layout.read(model).expand(4, -1), [(0, 1, p) for p in range(4)]
    with pytest.raises(KeyboardInterrupt):
        trainer.train(starts, data, keys)
    ended = time.monotonic() + 10  # a thread that was told to end may not have had its turn
    while threading.active_count() > before and time.monotonic() < ended:
        time.sleep(0.01)
    assert threading.active_count() == before
    assert len(seen) < 4 * 100 / 2
    whole = kind(model, layout, local, workers=2).train(starts, data, keys)
    again = trainer.train(starts, data, keys)  # the trainer is as good as new
    assert all(torch.equal(a.model, b.model) for a, b in zip(whole, again, strict=True))  # type: ignore[union-attr]


@pytest.mark.flaky(reruns=2)  # when a signal arrives is up to the system
@pytest.mark.usefixtures("interruptible")
def test_no_thread_of_an_interrupted_call_works_on() -> None:
    threads, main, done = Threads(), threading.main_thread().ident, []
    gate = threading.Event()

    def slow(member: int, job: str) -> None:
        for step in range(50):
            threads.raise_if_stopped()
            if job == "a" and step == 3:
                for _ in range(2):  # the second Ctrl-C while the first one's threads are waited for
                    signal.pthread_kill(main, signal.SIGINT)
                    gate.wait(0.05)
            done.append(job)
            gate.wait(0.005)

    with pytest.raises(KeyboardInterrupt):
        threads.run([0, 1], ["a", "b", "c"], slow)
    before = len(done)
    threads.run([0, 1], ["d", "e"], lambda member, job: gate.wait(0.1) and None)
    assert len(done) == before < 100


def test_what_a_job_raises_is_raised() -> None:
    def work(member: int, job: int) -> None:
        raise ValueError(job)

    with pytest.raises(ValueError, match=r"0|1"):
        Threads().run([0, 1], [0, 1, 2, 3], work)


def test_a_single_client_is_trained_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = dense(), clients([8, 8])
    layout = Layout.from_module(model)

    def interrupted(threads: Threads) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Threads, "raise_if_stopped", interrupted)
    trainer = BatchedTrainer(model, layout, LocalTraining(lr=0.01), workers=2, block=1)
    starts, keys = layout.read(model).expand(2, -1), [(0, 1, p) for p in range(2)]
    with pytest.raises(KeyboardInterrupt):
        trainer.train(starts, data, keys)
    [found] = trainer.train(starts[:1], data[:1], keys[:1])
    assert not isinstance(found, Exception)


class Pools(nn.Module):
    """Pooling after ReLU, once by modules, once by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.r1, self.p1 = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.c2, self.out = nn.Conv2d(4, 6, 2), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.p1(self.r1(self.c1(x)))
        return self.out(nn.functional.max_pool2d(torch.relu(self.c2(x)), 2).flatten(1))


def test_a_module_of_ones_own_that_can_be_read_has_several_workers() -> None:
    assert (
        WorkerTrainer(Pools(), Layout.from_module(Pools()), LocalTraining(), workers=2).workers == 2
    )
