"""A Flower app's own loop: the node answers with FedVeil's steps, whatever the train function returns."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

import fedveil as fv
from fedveil.engines.flower.lending import Lent, lending
from fedveil.errors import FieldError, NoReplyError
from fedveil.flower import (
    FedVeilStrategy,
    ServerFolder,
    app_loop,
    begin_ledger,
    privacy_mod,
    run_in_process,
)
from fedveil.learning import LocalTraining, PrivateTrainer
from fedveil.mechanisms import ReproducibleSource

pytestmark = pytest.mark.flower
N, STEPS = 30, 3
X, Y = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 2
METHOD = fv.RecordDP(
    loop="app", noise_multiplier=0.7, clip=0.5, examples=N, rounds=2, steps=STEPS, rate=0.4
)


def network():
    torch.manual_seed(1)
    return nn.Linear(4, 2)


LAYOUT = fv.Layout.from_module(network())


def play(train):
    """Return the released model [d] of two clients with a seed."""
    own = PrivateTrainer(network(), LAYOUT, LocalTraining(lr=0.3), METHOD.noisy_steps)
    client = ClientApp(mods=[privacy_mod(LAYOUT, METHOD, seed=5, trainer=own)])
    client.train()(partial(answered, train))
    server, released = ServerApp(), []

    @server.main()
    def main(grid, context):
        strategy = FedVeilStrategy(METHOD, LAYOUT, rounds=2, evaluate=False, seed=5)
        strategy.start(grid, ArrayRecord(network().state_dict()))
        released.append(strategy.models[0])

    run_in_process(server, client, 2)
    return released[0]


def answered(train, message, context):
    """A train function of an app, around what it does with its model and optimiser."""
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    answer = train(net, torch.optim.SGD(net.parameters(), lr=0.3))
    if isinstance(answer, Error):
        return Message(answer, reply_to=message)
    metrics = MetricRecord({"num-examples": N, "train_loss": 1.0})
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


def epochs(net, optimizer, passes=1):
    loader = app_loop(net, optimizer, (X, Y), passes=passes)
    for _ in range(passes):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()


def spoils(net, optimizer):
    epochs(net, optimizer)
    with torch.no_grad():
        net.weight.add_(X.sum())


def answers_with_an_error(net, optimizer):
    epochs(net, optimizer)
    return Error(7, str(float(X.sum())))


def goes_on(net, optimizer):
    """Fine-tunes behind the loop, with its own data and hooks of the loop still on."""
    epochs(net, optimizer)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(X), Y).backward()
    try:
        optimizer.step()
    except FieldError:
        return


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "train", [spoils, answers_with_an_error, goes_on, partial(epochs, passes=3)]
)
def test_what_leaves_is_the_loops_alone(train):
    assert torch.equal(play(train), play(epochs))


def fails_afterwards(net, optimizer):
    epochs(net, optimizer)
    raise KeyError("patient-4711")


def stops_early(net, optimizer):
    for x, y in app_loop(net, optimizer, (X, Y)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if len(y) != 2:  # the made-up batch has two rows
            raise KeyError("patient-4711")


@pytest.mark.parametrize(
    ("train", "level", "said"),
    [
        (fails_afterwards, "WARNING", "KeyError"),
        (answers_with_an_error, "WARNING", "error 7"),
        (stops_early, "ERROR", "failed"),
    ],
)
def test_a_failure_after_the_loop_is_logged_at_the_site_as_one(train, level, said, caplog):
    caplog.set_level("WARNING", "flwr")
    with suppress(NoReplyError):  # a simulation ends with an exception of every client
        play(train)
    found = [r for r in caplog.records if said in r.getMessage() and r.levelname == level]
    assert found
    assert all("patient-4711" not in r.getMessage() for r in found)


def never(net, optimizer):
    """Trains on the data themselves."""
    nn.functional.cross_entropy(net(X), Y).backward()
    optimizer.step()


def twice(net, optimizer):
    epochs(net, optimizer)
    app_loop(net, optimizer, (X, Y))


def quietly(net, optimizer):
    try:
        app_loop(nn.Linear(3, 2), optimizer, (X, Y))
    except FieldError:
        return


@pytest.mark.parametrize("train", [never, twice, quietly])
def test_no_loop_or_two_are_errors_that_a_simulation_raises(train):
    with pytest.raises(NoReplyError, match="app_loop"):
        play(train)


@pytest.mark.parametrize(("planned", "asked"), [(2, []), (3, [2])])
def test_a_round_that_its_server_lost_costs_one_of_the_plan(tmp_path, planned, asked):
    """Two rounds are asked; the server dies when the nodes have answered the second."""
    method, nodes = replace(METHOD, rounds=planned), []
    for i in range(2):
        ledger, head = tmp_path / f"site{i}", tmp_path / f"head{i}"
        begin_ledger(ledger, i, by="a test", head=head)
        nodes.append({"privacy.ledger": str(ledger), "privacy.head": str(head)})

    def begun(run, resume):
        own = PrivateTrainer(network(), LAYOUT, LocalTraining(lr=0.3), method.noisy_steps)
        mod = privacy_mod(LAYOUT, method, trainer=own, run=run)
        client, server = ClientApp(mods=[mod]), ServerApp()
        client.train()(partial(answered, epochs))
        folder = ServerFolder(tmp_path / "run", resume=resume)
        strategy = FedVeilStrategy(method, LAYOUT, rounds=2, evaluate=False, folder=folder)

        @server.main()
        def main(grid, context):
            strategy.start(grid, ArrayRecord(network().state_dict()))

        return strategy, partial(run_in_process, server, client, 2, node_configs=nodes)

    first, play_first = begun("first", False)
    combine = first.server.combine

    def dies(*arguments, **named):
        if first.history:
            raise KeyboardInterrupt
        return combine(*arguments, **named)

    first.server.combine = dies
    with pytest.raises(KeyboardInterrupt):
        play_first()
    second, play_second = begun("second", True)
    play_second()
    assert [log.number for log in second.history] == asked
    assert ("budget" in second.stopped) == (not asked)
    for i in range(2):
        text = (tmp_path / f"site{i}" / f"{i}.jsonl").read_text()
        assert text.count('"digest": "open"') == planned


def test_no_message_or_no_trainer_no_loop():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    with pytest.raises(FieldError, match="app_loop"):
        app_loop(net, optimizer, (X, Y))
    lent = Lent(ReproducibleSource(1), None, LAYOUT.read(net))
    with lending(lent), pytest.raises(FieldError, match="trainer"):
        app_loop(net, optimizer, (X, Y))
