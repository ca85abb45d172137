"""Attacks on a site in FLARE's own client runner: two tasks at once, subclasses, filters that write."""

import threading

import pytest
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode

from fedveil.engines.lifetime import read_head, read_ledger
from fedveil.engines.nvflare.quiet import EXECUTORS, PARTS, RUNTIME
from fedveil.nvflare import PrivacyFilter, ReleaseFilter, begin_ledger
from flare_kit import MODEL, Site, Trainer
from intruder_kit import SECRET, VALUE
from test_nvflare_filters import code, site, task

pytestmark = pytest.mark.nvflare


class Waiting(Trainer):
    """Training that waits in its first task until a second one has come back."""

    def __init__(self):
        super().__init__(0)
        self.began, self.may_end = threading.Event(), threading.Event()

    def execute(self, *arguments):
        if not self.began.is_set():
            self.began.set()
            assert self.may_end.wait(60)
        return super().execute(*arguments)


def test_of_two_tasks_at_once_one_release_leaves_and_is_charged(tmp_path):
    """A server may send a task beside the one that trains (FLARE's `DO_TASK`): both are of one round."""
    ledgers, heads = tmp_path / "ledgers", tmp_path / "heads"
    begin_ledger(ledgers, "site-a", by="the tests", head=heads)
    own = {"ledger": str(ledgers), "head": str(heads), "seed": None, "participations": 5}
    one, replies = site(tmp_path, Waiting(), **own), {}
    first = threading.Thread(target=lambda: replies.update(first=one.do("train", task())))
    first.start()
    assert one.executor.began.wait(60)
    replies["second"] = one.do("train", task())
    one.executor.may_end.set()
    first.join(60)
    left = [name for name, reply in replies.items() if code(reply) == ReturnCode.OK]
    ledger, _, torn = read_ledger(ledgers / "site-a.jsonl")
    read_head(ledgers / "site-a.jsonl", heads)
    assert not torn
    assert len(left) == len(ledger.all_entries) == 1


@pytest.mark.parametrize("path", sorted(PARTS | RUNTIME | EXECUTORS))
def test_a_subclass_of_a_listed_class_is_on_no_list(path, tmp_path):
    """A job's own class may do what its parent does not."""
    module, _, name = path.rpartition(".")
    parent = getattr(pytest.importorskip(module), name, None)
    if parent is None:
        pytest.skip("this FLARE has no such class")
    part = object.__new__(type(f"My{name}", (parent,), {}))
    one = site(tmp_path)
    one.engine.components = {"it": part}
    allowed = path in EXECUTORS  # training code of the job: a right of its own lets it in
    assert (code(one.do("train", task())) == ReturnCode.OK) == allowed


class Mine(ReleaseFilter):
    """A job's own last filter, in the clothes of the site's."""

    def process(self, shareable, fl_ctx):
        return shareable


def test_a_subclass_of_the_last_filter_is_refused(tmp_path):
    one = site(tmp_path)
    one.runner.task_result_filters = {"train/out": [Mine()]}
    assert code(one.do("train", task())) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert one.executor.trained == 0


class Writing(Filter):
    """A job's filter of the other direction: it writes wherever FLARE sends something along."""

    def process(self, shareable, fl_ctx):
        shareable[SECRET] = VALUE
        shareable.set_header(SECRET, VALUE)
        shareable.add_cookie(SECRET, VALUE)
        for sticky in (False, True):
            fl_ctx.set_prop(f"{SECRET}, {sticky}", VALUE, private=False, sticky=sticky)
        return shareable


def test_what_a_filter_of_incoming_tasks_writes_does_not_leave(tmp_path):
    filters = [PrivacyFilter(model=MODEL, method="sga-ldp", seed=0), ReleaseFilter()]
    one = Site("site-a", tmp_path, Trainer(0), filters)
    one.runner.task_data_filters = {"train/in": [Writing()]}
    reply = one.do("train", task())
    assert code(reply) == ReturnCode.OK
    lasting = one.engine.manager.new_context().get_all_public_props()
    assert SECRET not in f"{reply} {one.context.get_all_public_props()} {lasting}"
