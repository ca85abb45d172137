"""A deployed server's folder goes on from its checkpoint and its ledger alone, and leaves what it must."""

import json
import shutil

import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file

from fedveil.accounting import Filter, Ledger, ParticipationFilter, Release, digest
from fedveil.aggregation import FedAdam
from fedveil.engines.history import total_of
from fedveil.engines.party import COMBINE
from fedveil.engines.server import ServerParty
from fedveil.errors import BudgetError, FieldError, LedgerError
from fedveil.files import FolderLock
from fedveil.flower import FedVeilStrategy, ServerFolder, WrappedStrategy, privacy_mod
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import build
from fedveil_lab.report.statement.check import check
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import write_report
from test_flower_continued import Killed, until
from test_flower_strategy import LAYOUT, app, run

pytestmark = pytest.mark.flower
ADAM = build("global", FedAdam(lr=0.1), epsilon=8.0, rounds=5, clip=1.0)
DELTA = 1e-5


def strategy(folder, method=ADAM, resume=False, **options):
    given = {
        "rounds": 5,
        "seed": 1,
        "evaluate": False,
        "folder": ServerFolder(folder, resume=resume),
        **options,
    }
    return FedVeilStrategy(method, LAYOUT, **given)


def sites(method):
    """Nodes whose noise can be drawn again, and whose ledgers outlast a server."""
    books = {}

    def ledgers(party):
        return books.setdefault(party, Ledger("sites", party)), lambda line: None

    own = {} if method.client.trust == "central" else {"seed": 3, "ledgers": ledgers}
    return app(mods=[privacy_mod(LAYOUT, method, **own)])


def killed(folder, number, method=ADAM, client=None, **options):
    before = strategy(folder, method, **options)
    with pytest.raises(Killed):
        run(before, client or app(method=method), evaluate_fn=until(number)[1])
    return before


def ledger_of(folder):
    lines = (folder / "ledger" / "server.jsonl").read_text().splitlines()
    return Ledger.parse(json.loads(lines[0])["run"], "server", lines)


@pytest.mark.parametrize("method", [ADAM, build("group", hypotheses=2, noise_multiplier=1.0)])
def test_models_optimiser_and_account_are_those_of_a_run_that_was_never_killed(tmp_path, method):
    whole, client = strategy(tmp_path / "whole", method), sites(method)
    run(whole, sites(method))
    killed(tmp_path / "run", 3, method, client)
    assert not (tmp_path / "run" / "summary.json").exists()
    asked = []
    second = strategy(
        tmp_path / "run", method, resume=True, on_round=lambda log: asked.append(log.number)
    )
    assert second.done == 3
    run(second, client, start=torch.full((6,), 9.0))  # first arrays are of no account
    assert asked == [4, 5]
    assert torch.equal(second.models, whole.models)
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert all(
        torch.equal(kept[name], value)
        for name, value in load_file(tmp_path / "whole" / "model.safetensors").items()
    )
    one, other = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "run")
    )
    assert (one["rounds"], one["clients"]) == (other["rounds"], other["clients"])
    assert method is not ADAM or one["guarantee"] == other["guarantee"]
    assert len(ledger_of(tmp_path / "run").entries) == 5


def test_an_app_with_plain_averaging_goes_on_and_counts_its_rounds_from_the_beginning(tmp_path):
    def wrapped(name, resume=False):
        folder = ServerFolder(tmp_path / name, resume=resume)
        return WrappedStrategy(
            FedAvg(), ADAM, LAYOUT, rounds=5, seed=1, evaluate=False, folder=folder
        )

    whole = wrapped("whole")
    run(whole, sites(ADAM))
    with pytest.raises(Killed):
        run(wrapped("run"), sites(ADAM), evaluate_fn=until(3)[1])
    second, measured, told = wrapped("run", resume=True), [], []

    def noted(message, context, call_next):
        told.append(message.content.get("config", {}).get("server-round"))
        return call_next(message, context)

    result = run(
        second,
        app(mods=[noted, privacy_mod(LAYOUT, ADAM)]),
        evaluate_fn=lambda number, arrays: measured.append(number),
    )
    assert torch.equal(second.models, whole.models)
    assert measured == [3, 4, 5]
    assert [number for number in told if number] == [4] * 3 + [5] * 3
    assert list(result.train_metrics_clientapp) == [4, 5]


def test_a_strategy_that_was_changed_by_hand_does_not_go_on(tmp_path):
    """Its own step may remember, as a class below FedAvg may."""
    killed(tmp_path / "run", 2)
    inner = FedAvg()
    inner.configure_train = lambda *arguments: []
    with pytest.raises(FieldError, match="resume"):
        WrappedStrategy(
            inner, ADAM, LAYOUT, rounds=5, folder=ServerFolder(tmp_path / "run", resume=True)
        )


def test_with_secure_noise_no_round_that_is_stored_is_charged_again_and_one_that_is_lost_is(
    tmp_path,
):
    folder = tmp_path / "run"
    before = killed(folder, 3, seed=None)
    stored = (folder / "checkpoint" / "round.safetensors").read_bytes()
    killed_again = strategy(folder, resume=True, seed=None)
    with pytest.raises(Killed):
        run(killed_again, app(method=ADAM), evaluate_fn=until(4)[1])
    (folder / "checkpoint" / "round.safetensors").write_bytes(
        stored
    )  # round 4 is in the ledger, its models are lost
    last = strategy(folder, resume=True, seed=None)
    assert torch.equal(last.models, before.models)
    run(last, app(method=ADAM))
    rounds = [entry.key[0] for entry in ledger_of(folder).entries]
    assert sorted(rounds) == [1, 2, 3, 4, 4, 5]
    assert last.guarantee.epsilon(DELTA) > 8.5
    final = ledger_of(folder).find((5, COMBINE))
    assert final.digest == digest((Release("model", last.models),))


def test_a_federation_that_was_met_is_waited_for(tmp_path):
    killed(tmp_path / "run", 2)
    second = strategy(tmp_path / "run", resume=True, patience=0.1)
    run(second, app(method=ADAM), partitions=2)  # one of three is gone
    assert [log.number for log in second.history] == [3, 4, 5]
    assert "0" not in second.history[0].failed
    assert set(second.history[0].failed) == {2}


def test_a_finished_run_stays_as_it_is(tmp_path):
    first = strategy(tmp_path / "run")
    run(first, app(method=ADAM))
    left = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.json*")}
    again = strategy(tmp_path / "run", resume=True)
    result = run(again, app(method=ADAM))
    assert torch.equal(again.models, first.models)
    assert result.arrays is not None
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.json*")} == left


def test_a_run_whose_summary_was_not_written_is_finished(tmp_path):
    run(strategy(tmp_path / "run"), app(method=ADAM))
    whole = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").unlink()
    run(strategy(tmp_path / "run", resume=True), app(method=ADAM))
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (found["guarantee"], found["rounds"], found["stopped"]) == (whole["guarantee"], 5, "")


def test_a_budget_that_is_used_up_ends_the_run_that_went_on(tmp_path):
    killed(tmp_path / "run", 3, budget=Filter(6.0, DELTA))
    second = strategy(tmp_path / "run", resume=True, budget=Filter(6.0, DELTA))
    run(second, app(method=ADAM))
    assert "budget" in second.stopped
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["guarantees"]["server"]["epsilon"] <= 6.0


@pytest.mark.parametrize(
    "budget", [None, Filter(6.5, DELTA), Filter(6.0, 1e-4), ParticipationFilter(9)]
)
def test_a_declared_budget_holds_whoever_goes_on(tmp_path, budget):
    folder = tmp_path / "run"
    killed(folder, 2, budget=Filter(6.0, DELTA))
    run(
        strategy(folder, resume=True, budget=Filter(6.0, DELTA)), app(method=ADAM)
    )  # it ends at the budget
    left = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(FieldError) as refused:
        strategy(folder, resume=True, budget=budget)
    assert refused.value.field == "budget"
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == left
    assert FolderLock(folder).try_take()


REFUSED = {
    "other rounds": ("rounds", lambda f: strategy(f, resume=True, rounds=6)),
    "another method": ("method", lambda f: strategy(f, build("vanilla"), resume=True)),
    "another layout": (
        "layout",
        lambda f: FedVeilStrategy(
            ADAM,
            Layout.from_shapes({"bias": (6,)}),
            rounds=5,
            seed=1,
            folder=ServerFolder(f, resume=True),
        ),
    ),
    "other randomness": ("seed", lambda f: strategy(f, resume=True, seed=None)),
    "rounds that are said": ("done", lambda f: strategy(f, resume=True, done=3)),
    "another folder": ("resume", lambda f: strategy(f.with_name("other"), resume=True)),
    "no truth": ("resume", lambda f: strategy(f, resume="yes")),
    "a wrapped strategy": (
        "resume",
        lambda f: WrappedStrategy(
            __import__("flwr.serverapp.strategy").serverapp.strategy.FedAdam(),
            ADAM,
            LAYOUT,
            rounds=5,
            folder=ServerFolder(f, resume=True),
        ),
    ),
    "a state that is not released": (
        "resume",
        lambda f: strategy(
            f, build("global", FedAdam(), order="printed", noise_multiplier=1.0), resume=True
        ),
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_go_on_is_refused_and_leaves_the_folder_as_it_is(tmp_path, name):
    folder = tmp_path / "run"
    killed(folder, 3)
    left = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    field, make = REFUSED[name]
    with pytest.raises(FieldError, match=field) as refused:
        make(folder)
    assert "delete" not in str(refused.value)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == left
    assert FolderLock(folder).try_take()


@pytest.mark.parametrize("what", ["checkpoint", "ledger", "line", "metrics"])
def test_a_damaged_folder_is_refused(tmp_path, what):
    folder = tmp_path / "run"
    killed(folder, 3)
    file = folder / {"checkpoint": "checkpoint/round.safetensors", "metrics": "metrics.jsonl"}.get(
        what, "ledger/server.jsonl"
    )
    content = file.read_bytes()
    if what in ("checkpoint", "ledger"):
        middle = content.index(b'"attempt": 0') + 11 if what == "ledger" else len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        file.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    with pytest.raises((FieldError, LedgerError)):
        strategy(folder, resume=True)
    lock = FolderLock(folder)
    assert lock.try_take()
    lock.release()


def test_a_party_of_ones_own_goes_on_too(tmp_path):
    def party(folder):
        source = ReproducibleSource(1)
        ledger, store = folder.open(ADAM, LAYOUT, 5, source, "flower")
        return ServerParty(ADAM, LAYOUT, ledger, source, store=store)

    first = ServerFolder(tmp_path / "run")
    with pytest.raises(Killed):
        run(
            FedVeilStrategy(party(first), rounds=5, seed=1, folder=first),
            app(method=ADAM),
            evaluate_fn=until(3)[1],
        )
    second = ServerFolder(tmp_path / "run", resume=True)
    found = FedVeilStrategy(party(second), rounds=5, seed=1, folder=second)
    run(found, app(method=ADAM))
    assert [log.number for log in found.history] == [4, 5]


class OwnLoop(FedVeilStrategy):
    """An app's own rounds, as strategies with a loop of their own have them."""

    rounds_played = 5

    def start(self, grid, initial_arrays, **options):
        arrays = initial_arrays
        for number in range(1, self.rounds_played + 1):
            messages = self.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = self.aggregate_train(number, grid.send_and_receive(messages, timeout=60))
        return arrays


def test_a_loop_of_the_apps_own_leaves_model_summary_and_no_lock(tmp_path):
    folder = tmp_path / "run"
    own = OwnLoop(ADAM, LAYOUT, rounds=5, seed=1, folder=ServerFolder(folder))
    run(own, app(method=ADAM))
    whole = strategy(tmp_path / "whole")
    run(whole, app(method=ADAM))
    assert torch.equal(own.models, whole.models)
    assert load_file(folder / "model.safetensors").keys() == {"weight"}
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 5
    assert FolderLock(folder).try_take()


def test_so_does_one_that_a_budget_ends(tmp_path):
    folder = tmp_path / "run"
    own = OwnLoop(
        ADAM, LAYOUT, rounds=5, seed=1, folder=ServerFolder(folder), budget=Filter(6.0, DELTA)
    )
    with pytest.raises(BudgetError):
        run(own, app(method=ADAM))
    assert "budget" in json.loads((folder / "summary.json").read_text())["stopped"]
    assert FolderLock(folder).try_take()


@pytest.mark.parametrize("lost", [False, True])
def test_a_page_of_a_run_that_was_killed_says_so_and_counts_all_that_was_charged(tmp_path, lost):
    folder = tmp_path / "run"
    killed(folder, 3, seed=None)
    if lost:
        stored = (folder / "checkpoint" / "round.safetensors").read_bytes()
        with pytest.raises(Killed):
            run(strategy(folder, resume=True, seed=None), app(method=ADAM), evaluate_fn=until(4)[1])
        (folder / "checkpoint" / "round.safetensors").write_bytes(stored)
    write_report(gather([folder], [], None, None), tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert "not finished" in (tmp_path / "report" / "report.html").read_text()
    [one] = report["evidence"]["runs"]
    charged = json.loads(json.dumps(total_of(ledger_of(folder)).epsilon(DELTA)))
    assert one["promises"]["server"]["epsilon"] == pytest.approx(charged)
    assert one["rounds"] == 3 + lost
    shutil.copytree(folder / "ledger", tmp_path / "elsewhere" / "ledger")
    found = {
        c.what: c.holds
        for c in check(tmp_path / "report" / "report.json", [tmp_path / "elsewhere"])
    }
    assert found
    assert False not in found.values()
    run(strategy(folder, resume=True, seed=None), app(method=ADAM))
    write_report(gather([folder], [], None, None), tmp_path / "later")
    assert "not finished" not in (tmp_path / "later" / "report.html").read_text()
