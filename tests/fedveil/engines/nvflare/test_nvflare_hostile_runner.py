"""A hostile job in FLARE's client runner: strange questions, strange answers, and questions at the same time."""

import numpy as np
import pytest
import torch
from hostile_parts import ANSWERS
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.accounting import OPEN
from fedveil.engines.lifetime import read_ledger
from fedveil.engines.nvflare.shareables import read_reply, write_broadcast
from fedveil.engines.nvflare.validating import VALIDATION_TASK
from fedveil.layout import Layout
from fedveil.methods import Broadcast, PublicFacts, build
from fedveil.nvflare import PrivacyFilter, ReleaseFilter, begin_ledger
from flare_kit import MODEL, SITES, Site, Trainer, learner
from hello_kit import SimpleNetwork
from intruder_kit import PATTERNS, SECRET, VALUE
from recorder_kit import pieces
from test_nvflare_executor import RECORD
from test_nvflare_validating import NOISED, WATCHER, question, watcher

pytestmark = pytest.mark.nvflare
LAYOUT = learner().layout


def task(round_=1, layout=LAYOUT, at=0.0):
    facts = PublicFacts(round=round_, rounds=3, cohort=len(SITES), dimension=layout.size)
    models = torch.full((1, layout.size), at)
    return write_broadcast(Broadcast(models=models, public=facts), layout, SITES)


def site(folder, executor=None, behind=(), model=MODEL, **given):
    asks = PrivacyFilter(model=model, method="sga-ldp", **{"seed": 0, **given})
    return Site("site-a", folder, executor or Trainer(0), [asks, *behind, ReleaseFilter()])


def holds(reply):
    """Whether what leaves holds a planted value, in texts or arrays."""
    return any(pattern in piece for piece in pieces(dict(reply)) for pattern in PATTERNS)


class Answering(Executor):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        shareable.add_cookie(SECRET, VALUE)
        fl_ctx.set_prop(SECRET, VALUE, private=False, sticky=True)
        return self.make()


def another_kind():
    return DXO(f"WEIGHTS {SECRET}", {SECRET: np.full(3, VALUE)}, {SECRET: VALUE}).to_shareable()


def deeper():
    inner = DXO(DataKind.COLLECTION, {SECRET: DXO(DataKind.WEIGHTS, {"w": np.full(3, VALUE)})})
    return DXO(DataKind.COLLECTION, {"first": inner}).to_shareable()


def another_code():
    reply = make_reply(f"{SECRET} {VALUE}")
    reply[SECRET] = VALUE
    return reply


@pytest.mark.parametrize("make", [*ANSWERS, another_kind, deeper, another_code])
def test_no_kind_of_answer_lets_a_planted_value_leave(make, tmp_path):
    layout = Layout.from_module(SimpleNetwork())
    one = site(tmp_path, Answering(make), model="hello_kit:SimpleNetwork")
    reply = one.do("train", task(layout=layout))
    assert reply.get_return_code() == ReturnCode.OK
    assert not holds(reply)
    [model] = read_reply(reply, layout, build("sga-ldp").client)
    assert model.value.isfinite().all()
    assert SECRET not in str(one.engine.manager.new_context().get_all_public_props())


def nested():
    inner = DXO(DataKind.WEIGHTS, {"w": np.ones(2)})
    outer = DXO(DataKind.COLLECTION, {"first": inner, "second": inner})
    found = task()
    outer.meta = dict(found["DXO"]["meta"])
    return outer.to_shareable()


def failed():
    found = task()
    found.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    return found


def marked():
    found = task()
    found["DXO"]["meta"]["fedveil.reply"] = {}
    return found


def differing():
    found = task()
    found["DXO"]["kind"] = DataKind.WEIGHT_DIFF
    return found


def named_twice():
    found = task()
    found["DXO"]["data"]["fedveil.hypothesis.1|more"] = np.ones(2)
    return found


@pytest.mark.parametrize("make", [nested, marked, differing, named_twice, Shareable])
def test_a_strange_question_trains_nothing(make, tmp_path):
    one = site(tmp_path)
    reply = one.do("train", make())
    assert reply.get_return_code() == ReturnCode.TASK_DATA_FILTER_ERROR
    assert (one.executor.trained, "DXO" in reply) == (0, False)


def test_a_question_with_a_code_of_failure_is_an_ordinary_one(tmp_path):
    reply = site(tmp_path / "a").do("train", failed())
    usual = site(tmp_path / "b").do("train", task())
    assert str(reply["DXO"]["data"]) == str(usual["DXO"]["data"])


class Replacing(Filter):
    """A filter behind the site's own that hands on a copy of the task."""

    def process(self, shareable, fl_ctx):
        if not hasattr(self, "done"):
            self.done = True
            return Shareable.from_bytes(shareable.to_bytes())
        return shareable


def test_cookies_do_not_leave_though_a_filter_replaced_the_task(tmp_path):
    one = site(tmp_path, Answering(ANSWERS[0]))
    one.scope.add_task_data_filter(Replacing(), "in")
    reply = one.do("train", task())
    assert reply.get_cookie_jar() == {"task": "cookie of the server", "list": []}
    assert not holds(reply)


@pytest.mark.parametrize("executor", [Trainer(0), Answering(ANSWERS[1])])
def test_another_executor_measures_no_loss(executor, tmp_path):
    """A job may name one executor for training, and another one for the validating task."""
    one = watcher(tmp_path, "record", RECORD, NOISED)
    one.runner.task_router.add_executor([VALIDATION_TASK], executor)
    reply = one.do(VALIDATION_TASK, question(WATCHER))
    assert reply.get_return_code() == ReturnCode.TASK_DATA_FILTER_ERROR
    assert not holds(reply)


class Asking(Trainer):
    """Asks the site once more while it trains, as FLARE lets a server do by a message beside the tasks."""

    def __init__(self, second):
        super().__init__(0)
        self.second, self.site, self.reply = second, None, None

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        second, self.second = self.second, None
        if second is not None:
            self.reply = self.site.do("train", second)
        return super().execute(task_name, shareable, fl_ctx, abort_signal)


@pytest.mark.parametrize(("round_", "at"), [(1, 0.0), (1, 0.5), (2, 0.0)])
def test_what_leaves_of_two_questions_at_once_is_in_the_ledger(round_, at, tmp_path):
    path = begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "heads")
    kept = {"ledger": str(tmp_path / "ledgers"), "head": str(tmp_path / "heads")}
    executor = Asking(task(round_, at=at))
    one = executor.site = site(tmp_path, executor, seed=None, **kept)
    replies = [one.do("train", task(1)), executor.reply]
    left = [reply for reply in replies if reply.get_return_code() == ReturnCode.OK]
    ledger, _, _ = read_ledger(path)
    paid = [entry for entry in ledger.all_entries if entry.digest != OPEN]
    assert len(left) <= len(paid)
    models = [read_reply(reply, LAYOUT, build("sga-ldp").client)[0].value for reply in left]
    assert all(torch.isfinite(model).all() for model in models)
    if len(models) == 2:
        assert not torch.equal(*models)
