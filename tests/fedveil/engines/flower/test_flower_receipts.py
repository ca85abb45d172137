"""Receipts of nodes with key files and lifetime ledgers: what an auditor finds, and servers that cheat."""

from dataclasses import replace

import pytest
from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp

from fedveil.accounting import Receipt
from fedveil.engines.flower import records
from fedveil.engines.flower.roster import Nodes
from fedveil.errors import BudgetError, NoReplyError
from fedveil.evidence import check_receipts, replay
from fedveil.flower import (
    FedVeilStrategy,
    InProcessGrid,
    ServerFolder,
    begin_ledger,
    run_in_process,
    to_arrays,
)
from site_kit import LAYOUT, client_app, method, network, set_up

pytestmark = pytest.mark.flower
POLICY = 'trust = ["local"]\ntotal = { record_mu = 5.0 }\n'
FOLDERS = ("ledger", "head")


def nodes(folder, kind, n=4):
    """Configurations of nodes, each with a ledger of its own data set."""
    if kind == "secure":
        return set_up(folder, n)
    configs = []
    for i in range(n):
        own = folder / f"site{i}"
        own.mkdir()
        (own / "policy.toml").write_text(POLICY)
        begin_ledger(own / "ledger", i, by="the test", head=own / "head")
        places = {f"privacy.{name}": str(own / name) for name in FOLDERS}
        policy = str(own / "policy.toml")
        configs.append({"partition-id": i, "privacy.policy": policy, **places})
    return configs


def played(folder, kind, rounds=2, cheat=None, **options):
    """A deployed run of two rounds, whose server keeps the shares; the strategy."""
    made = method(sum=kind)
    configs = nodes(folder, kind)
    grid = InProcessGrid(client_app(method=made), configs)
    server = ServerFolder(folder / "run", keep=("shares",))
    strategy = FedVeilStrategy(
        made, LAYOUT, rounds=rounds, evaluate=False, folder=server, **options
    )
    if cheat is not None:
        cheat(strategy.server)
    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy.start(
            grid,
            to_arrays(LAYOUT, LAYOUT.read(network())),
            train_config=ConfigRecord({"lr": 0.5}),
        )

    run_in_process(app, grid=grid)
    return strategy


def sites(folder):
    return [folder / f"site{i}" / "ledger" for i in range(4)]


@pytest.mark.parametrize("kind", ["none", "secure"])
def test_an_auditor_finds_each_accepted_share_paid_for_in_the_sites_own_ledgers(tmp_path, kind):
    strategy = played(tmp_path, kind)
    run, own = tmp_path / "run", sites(tmp_path)
    checks = check_receipts(run, own)
    assert all(check.holds for check in checks), checks
    assert sum(check.kind == "promise" for check in checks) == 2
    again = replay(run, own, run, strategy.method, LAYOUT)
    assert [check.holds for check in again] == [True, True]
    few = check_receipts(run, own[:3])
    assert [c.holds for c in few if c.kind == "promise"] == [None, None]


def combining(change):
    """A server that combines other replies than it was sent."""

    def cheat(server):
        honest = server.combine

        def combine(broadcast, answers, *rest):
            if broadcast.public.round == 1:
                answers = change(answers)
            return honest(broadcast, answers, *rest)

        server.combine = combine

    return cheat


def leave_out(answers):
    replies = {partition: reply for partition, reply in answers.replies.items() if partition}
    return replace(answers, replies=replies, asked=len(replies))


def alter(answers):
    [release] = answers.replies[0]
    altered = (replace(release, value=release.value + 1),)
    return replace(answers, replies={**answers.replies, 0: altered})


@pytest.mark.parametrize("change", [leave_out, alter])
def test_a_site_whose_share_is_left_out_or_altered_declines_and_its_log_names_the_round(
    tmp_path, change, caplog
):
    strategy = played(tmp_path, "none", cheat=combining(change))
    last = strategy.history[-1]
    assert set(last.refused) == {0}
    assert "round 1" in last.refused[0]
    assert "left out, or altered" in last.refused[0]
    found = [c.what for c in check_receipts(tmp_path / "run", sites(tmp_path)) if c.holds is False]
    assert any("round 1" in what for what in found)


def test_all_sites_of_a_secure_sum_decline_if_a_share_was_exchanged(tmp_path):
    """The sum is then of random numbers, or of a share that the server knows: here it adds 1 to one of them."""
    with pytest.raises((BudgetError, NoReplyError)):
        played(tmp_path, "secure", cheat=combining(alter), attempts=1)


def test_a_server_that_shows_each_site_another_receipt_is_found_across_ledgers(
    tmp_path, monkeypatch
):
    """A split view: one site sees itself in a round that was without it."""

    def split(self, broadcast, nodes, config, kind, inner=Nodes.address):
        sent = inner(self, broadcast, nodes, config, kind)
        if broadcast.public.round != 2:
            return sent
        receipt = Receipt.parse(broadcast.public.receipt)
        other = replace(receipt, asked=receipt.asked + 1)
        public = replace(broadcast.public, receipt=other.text)
        lied = inner(
            self, replace(broadcast, public=public), dict(list(nodes.items())[:1]), config, kind
        )
        self.asked = {node: partition for partition, node in nodes.items()}
        self.sent = [*lied, *sent[1:]]
        return self.sent

    monkeypatch.setattr(Nodes, "address", split)
    played(tmp_path, "none")
    found = {
        c.what: c.why for c in check_receipts(tmp_path / "run", sites(tmp_path)) if c.holds is False
    }
    assert "1 lines name another root" in found["round 2: sites saw one view"]


def test_a_server_that_goes_on_in_its_folder_shows_the_receipt_before(tmp_path):
    made, configs = method(sum="none"), nodes(tmp_path, "none")
    grid = InProcessGrid(client_app(method=made), configs)
    for resume, rounds in ((False, 1), (True, 2)):
        strategy = FedVeilStrategy(
            made,
            LAYOUT,
            rounds=2,
            evaluate=False,
            folder=ServerFolder(tmp_path / "run", resume=resume),
        )
        app = ServerApp()

        @app.main()
        def main(grid, context, strategy=strategy, rounds=rounds):
            arrays = to_arrays(LAYOUT, LAYOUT.read(network()))
            if rounds == 2:
                strategy.start(grid, arrays)
                return
            sent = strategy.configure_train(1, arrays, ConfigRecord(), grid)
            strategy.aggregate_train(1, grid.send_and_receive(sent))
            strategy._folder.leave()

        run_in_process(app, grid=grid)
    checks = check_receipts(tmp_path / "run", sites(tmp_path))
    assert all(check.holds for check in checks), checks
    assert len([c for c in checks if c.kind == "promise"]) == 2


def test_a_seal_and_nothing_else_is_new_in_a_reply():
    values = records.write_reply((), LAYOUT, 0, method(sum="none").client, "ab" * 32)
    assert set(values["fedveil.reply"]) == {"partition-id", "side", "trust", "counted", "seal"}
