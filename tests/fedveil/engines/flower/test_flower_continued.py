"""A server that goes on in the middle of a run: from the ledger that holds the rounds before, or not at all."""

import json
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.serverapp.strategy import FedAdam

from fedveil.accounting import Filter, Ledger, ParticipationFilter
from fedveil.accounting.ledger import RUN_OF_SITES
from fedveil.engines.answers import RoundAnswers
from fedveil.engines.flower.records import write_broadcast
from fedveil.engines.party import COMBINE, lacking_rounds
from fedveil.engines.server import ServerParty
from fedveil.errors import FedVeilError, FieldError, LedgerError, NoReplyError
from fedveil.files import LedgerFiles
from fedveil.flower import (
    ExactAccountant,
    FedVeilStrategy,
    InProcessGrid,
    ServerFolder,
    WrappedStrategy,
    from_arrays,
    privacy_mod,
    to_arrays,
)
from fedveil.mechanisms import ReproducibleSource, SecureSource
from fedveil.methods import Broadcast, PublicFacts, build
from test_flower_strategy import LAYOUT, VANILLA, app, run

pytestmark = pytest.mark.flower
GLOBAL = build("global", epsilon=8.0, rounds=6, clip=1.0)
LOCAL = build("sga-ldp", similarity="released", clip=1.0)
DELTA = 1e-5


class Killed(BaseException):
    """The server's process ends: nothing catches it."""


def until(number):
    """Ends the process after so many rounds, and holds the models that it had released."""
    kept = {}

    def evaluate(round_, arrays):
        kept["models"] = from_arrays(LAYOUT, arrays)
        if round_ == number:
            raise Killed

    return kept, evaluate


def killed(number, *arguments, method=GLOBAL, client=None, **options):
    """The models [d] after so many of six rounds of a server that then died, and its strategy."""
    strategy = FedVeilStrategy(*arguments, rounds=6, evaluate=False, **options)
    kept, evaluate = until(number)
    with pytest.raises(Killed):
        run(strategy, client or app(method=method), evaluate_fn=evaluate)
    if "folder" in options:
        options["folder"].leave()  # as the end of its process does
    return kept["models"], strategy


def epsilon(guarantee):
    return guarantee.epsilon(DELTA)


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_folder_goes_on_with_the_account_of_all_rounds(tmp_path, number, seed):
    folder = tmp_path / "server"
    models, before = killed(number, GLOBAL, LAYOUT, folder=ServerFolder(folder), seed=seed)
    assert epsilon(before.guarantee) < 7.9
    strategy = FedVeilStrategy(
        GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(folder), seed=seed, done=number
    )
    run(strategy, app(method=GLOBAL), start=models)
    assert epsilon(strategy.guarantee) == pytest.approx(8.0, abs=1e-6)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["guarantees"]["server"]["epsilon"] == pytest.approx(8.0, abs=1e-6)
    assert (summary["rounds"], summary["rounds_planned"]) == (6, 6)
    run_id = json.loads((folder / "ledger" / "server.jsonl").read_text().splitlines()[0])["run"]
    ledger = Ledger.parse(
        run_id, "server", (folder / "ledger" / "server.jsonl").read_text().splitlines()
    )
    assert [entry.key for entry in ledger.entries] == [(r, COMBINE) for r in range(1, 7)]
    assert {RUN_OF_SITES, "parties"} <= ledger.openings[0].keys()
    assert not lacking_rounds(ledger)


def test_a_round_that_was_released_and_lost_is_charged_twice(tmp_path):
    folder = tmp_path / "server"
    killed(4, GLOBAL, LAYOUT, folder=ServerFolder(folder))
    models, _ = killed(3, GLOBAL, LAYOUT, folder=ServerFolder(tmp_path / "other"))
    with pytest.raises(LedgerError):  # another run's models
        run(
            FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(folder), done=3),
            app(method=GLOBAL),
        )
    del models

    kept = {}
    again = tmp_path / "again"

    def evaluate(round_, arrays):
        kept[round_] = from_arrays(LAYOUT, arrays)
        if round_ == 4:
            raise Killed

    left = ServerFolder(again)
    first = FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=left, evaluate=False)
    with pytest.raises(Killed):
        run(first, app(method=GLOBAL), evaluate_fn=evaluate)
    left.leave()
    second = FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(again), done=3)
    run(second, app(method=GLOBAL), start=kept[3])
    assert len(second.server.ledger.entries) == 7
    assert epsilon(second.guarantee) > 8.5
    assert len((again / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_folder_that_goes_on_has_no_summary_of_before_and_is_let_go_of_where_it_cannot(tmp_path):
    folder = tmp_path / "server"
    killed(3, GLOBAL, LAYOUT, folder=ServerFolder(folder))
    (folder / "summary.json").write_text("{}")
    figures = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(figures.split("\n", 1)[0] + "\n")
    source = SecureSource()
    with pytest.raises(FieldError, match="lacks one of these rounds"):
        ServerFolder(folder).open(GLOBAL, LAYOUT, 6, source, "flower", 3)
    (folder / "metrics.jsonl").write_text(figures)
    again = ServerFolder(folder)
    again.open(GLOBAL, LAYOUT, 6, source, "flower", 3)
    again.begin("another run of Flower's", DELTA)  # what comes before may still refuse to go on
    assert not (folder / "summary.json").exists()
    again.leave()


def test_a_budget_goes_on_too(tmp_path):
    folder = tmp_path / "server"
    models, _ = killed(3, GLOBAL, LAYOUT, folder=ServerFolder(folder), budget=Filter(6.0, DELTA))
    strategy = FedVeilStrategy(
        GLOBAL,
        LAYOUT,
        rounds=6,
        folder=ServerFolder(folder),
        done=3,
        budget=Filter(6.0, DELTA),
        evaluate=False,
    )
    with pytest.raises(FedVeilError, match="budget"):
        run(strategy, app(method=GLOBAL), start=models)
    assert epsilon(strategy.guarantee) <= 6.0


def test_a_party_goes_on_with_its_own_ledger():
    models, first = killed(3, ServerParty(GLOBAL, LAYOUT))
    ledger = first.server.ledger
    second = FedVeilStrategy(ServerParty(GLOBAL, LAYOUT, ledger), rounds=6, done=3)
    run(second, app(method=GLOBAL), start=models)
    assert epsilon(second.guarantee) == pytest.approx(8.0, abs=1e-6)


@pytest.mark.parametrize("method", [GLOBAL, LOCAL, VANILLA])
def test_without_the_ledger_of_the_rounds_before_no_server_goes_on(tmp_path, method):
    full, short = Ledger("run", "server"), Ledger("run", "server")
    for ledger, number in ((full, 3), (short, 2)):
        party = ServerParty(method, LAYOUT, ledger, ReproducibleSource(0))
        run(FedVeilStrategy(party, rounds=number, seed=0, evaluate=False), app(method=method))
    given = {
        "no ledger": lambda: FedVeilStrategy(method, LAYOUT, rounds=6, done=3),
        "no ledger, seeded": lambda: FedVeilStrategy(method, LAYOUT, rounds=6, done=3, seed=0),
        "an empty folder": lambda: FedVeilStrategy(
            method, LAYOUT, rounds=6, done=3, folder=ServerFolder(tmp_path / "new")
        ),
        "an empty ledger": lambda: FedVeilStrategy(ServerParty(method, LAYOUT), rounds=6, done=3),
        "two rounds of three": lambda: FedVeilStrategy(
            ServerParty(method, LAYOUT, short), rounds=6, done=3
        ),
        "more than there are": lambda: FedVeilStrategy(
            ServerParty(method, LAYOUT, full), rounds=3, done=3
        ),
        "less than none": lambda: FedVeilStrategy(
            ServerParty(method, LAYOUT, full), rounds=6, done=-1
        ),
        "no number": lambda: FedVeilStrategy(ServerParty(method, LAYOUT, full), rounds=6, done="3"),
    }
    for name, build_it in given.items():
        with pytest.raises(FieldError, match="done"):
            pytest.fail(f"{name}: {build_it()}")
    assert not (tmp_path / "new").exists()


def test_a_server_opens_no_round_of_which_its_ledger_lacks_one_before():
    party = ServerParty(GLOBAL, LAYOUT)
    with pytest.raises(FieldError, match="ledgers"):
        party.open(torch.zeros(1, 6), 4, 6, 3)
    opened = party.open(torch.zeros(1, 6), 1, 6, 3)
    later = replace(opened, public=replace(opened.public, round=2))
    with pytest.raises(FieldError, match="ledgers"):
        party.combine(later, RoundAnswers({}))
    strategy = FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, clients=3)
    grid = InProcessGrid(
        app(method=GLOBAL), [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    )
    with pytest.raises(
        FieldError, match="ledgers"
    ):  # whoever calls the rounds of a strategy by hand
        strategy.configure_train(4, to_arrays(LAYOUT, torch.zeros(6)), ConfigRecord(), grid)


def test_other_models_than_were_released_are_refused_before_the_first_message(tmp_path):
    folder = tmp_path / "server"
    models, _ = killed(3, GLOBAL, LAYOUT, folder=ServerFolder(folder))
    lines = (folder / "ledger" / "server.jsonl").read_bytes()
    asked = []

    def mod(message, context, call_next):
        asked.append(message)
        return call_next(message, context)

    for other in (models + 1, torch.zeros(6)):
        kept = ServerFolder(folder)
        strategy = FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=kept, done=3)
        with pytest.raises(LedgerError, match="models"):
            run(strategy, app(mods=[mod]), start=other)
        kept.leave()
    assert not asked
    assert (folder / "ledger" / "server.jsonl").read_bytes() == lines


def test_a_server_that_died_before_its_first_line_begins_again_in_its_folder(tmp_path, monkeypatch):
    def die(*_):
        raise Killed

    folder = tmp_path / "server"
    with monkeypatch.context() as dying:
        dying.setattr(LedgerFiles, "begin", die)
        first = ServerFolder(folder)
        with pytest.raises(Killed):
            run(FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=first), app(method=GLOBAL))
        first.leave()
    with pytest.raises(FieldError, match="leave resume out"):
        FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(folder, resume=True))
    again = FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(folder), evaluate=False)
    run(again, app(method=GLOBAL))
    assert len(again.history) == 6


@pytest.mark.parametrize("what", ["ledger", "line", "edited", "metrics"])
def test_a_folder_that_lacks_one_of_the_rounds_is_refused_and_left_as_it_is(tmp_path, what):
    folder = tmp_path / "server"
    killed(3, GLOBAL, LAYOUT, folder=ServerFolder(folder))
    file = folder / ("metrics.jsonl" if what == "metrics" else "ledger/server.jsonl")
    if what == "ledger":
        file.unlink()
    elif what == "edited":
        file.write_text(
            file.read_text().replace('"mechanism": "gaussian"', '"mechanism": "none"', 1)
        )
    else:
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    left = {p.name: p.read_bytes() for p in folder.rglob("*.jsonl")}
    with pytest.raises(ValueError, match=r"done|edited") as refused:
        FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(folder), done=3)
    assert not any(word in str(refused.value) for word in ("delete", "remove"))
    assert {p.name: p.read_bytes() for p in folder.rglob("*.jsonl")} == left


def test_a_servers_folder_is_not_begun_anew_and_is_never_to_be_deleted(tmp_path):
    folder = tmp_path / "server"
    killed(3, GLOBAL, LAYOUT, folder=ServerFolder(folder))
    with pytest.raises(FieldError) as refused:
        FedVeilStrategy(GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(folder))
    assert "resume" in str(refused.value)
    assert "delete" not in str(refused.value)


@pytest.mark.parametrize("done", [0, 3])
def test_under_local_trust_a_second_server_states_no_total_of_rounds_that_it_did_not_ask(
    tmp_path, done
):
    """Their quotes are in no ledger of the server's; each client's own has them."""
    source, books = SecureSource(), {}

    def ledgers(party):
        return books.setdefault(party, Ledger("sites", party)), lambda line: None

    sites = app(mods=[privacy_mod(LAYOUT, LOCAL, ledgers=ledgers)])
    folder = ServerFolder(tmp_path / "server")
    ledger, store = folder.open(LOCAL, LAYOUT, 6, source, "flower")
    models, first = killed(
        3, ServerParty(LOCAL, LAYOUT, ledger, source, store=store), client=sites, folder=folder
    )
    assert first.guarantee.proven
    if done:
        second = FedVeilStrategy(
            LOCAL, LAYOUT, rounds=6, folder=ServerFolder(folder.path), done=done
        )
    else:  # all rounds once more, to nodes whose ledgers are those of another run
        books.clear()
        second = FedVeilStrategy(ServerParty(LOCAL, LAYOUT, ledger, source), rounds=6)
    run(second, sites, start=models)
    assert len(books["0"].entries) == 6
    assert not second.guarantee.proven
    assert "eps" not in second.guarantee.describe(DELTA)
    if done:
        summary = json.loads((folder.path / "summary.json").read_text())
        assert not any("epsilon" in values for values in summary["guarantees"].values())


def test_a_wrapped_strategy_goes_on_from_no_ledger(tmp_path):
    folder = tmp_path / "server"
    killed(3, GLOBAL, LAYOUT, folder=ServerFolder(folder))
    with pytest.raises(FieldError, match="done"):
        WrappedStrategy(FedAdam(), GLOBAL, LAYOUT, rounds=6, folder=ServerFolder(folder), done=3)


def test_a_second_server_meets_nodes_that_kept_no_ledger_and_nothing_leaves_them(tmp_path):
    """A run's own ledger would begin in the middle: Flower's second run is another one."""
    folder = ServerFolder(tmp_path / "server")
    models, _ = killed(3, LOCAL, LAYOUT, folder=folder, method=LOCAL)
    second = FedVeilStrategy(
        LOCAL, LAYOUT, rounds=6, folder=ServerFolder(folder.path), done=3, evaluate=False
    )
    with pytest.raises(NoReplyError):
        run(second, app(method=LOCAL), start=models)
    assert not second.history


@pytest.mark.parametrize("budget", [None, lambda p: ParticipationFilter(9)])
@pytest.mark.parametrize("method", [LOCAL, GLOBAL])
def test_a_node_whose_ledgers_forget_a_line_of_the_run_answers_no_more(runtime, method, budget):
    def anew(party):
        return Ledger("sites", party), lambda line: None

    mod = privacy_mod(LAYOUT, method, ledgers=anew, budget=budget)
    context = Context(1, 7, {"partition-id": 0}, RecordDict(), {})
    answered = []
    for number in (1, 2):
        public = PublicFacts(round=number, rounds=6, cohort=3, dimension=6)
        content = write_broadcast(Broadcast(models=torch.zeros(1, 6), public=public), LAYOUT)

        def train(message, context, number=number):
            answered.append(number)
            metrics = MetricRecord({"num-examples": 1})
            content = RecordDict({"arrays": to_arrays(LAYOUT, torch.ones(6)), "metrics": metrics})
            return Message(content, reply_to=message)

        mod(Message(content, 7, "train"), context, train)
    counted = method is LOCAL or budget is not None
    assert answered == ([1] if counted else [1, 2])


def test_an_accountant_that_loads_a_state_forgets_nothing_that_it_composed():
    config = PrivacyConfig(
        1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, None
    )
    before, after = ExactAccountant(config), ExactAccountant(config)
    event = GaussianPrivacyEvent(2.0, 100, 100)
    before.compose(event, 3)
    after.load_state_dict(before.state_dict())
    after.compose(event, 3)
    assert after.num_releases == 6
    with pytest.raises(FieldError, match="state"):
        after.load_state_dict(before.state_dict())
    assert after.num_releases == 6
