"""The page for swarms: a policy's total is the halt, and its arguments of a promise per patient are a site's filter."""

import json
import logging
import re
from math import sqrt
from pathlib import Path

import pytest
from nvflare.apis.fl_constant import ReturnCode

from fedveil.engines.history import total_of
from fedveil.methods import build
from fedveil.nvflare import FedVeilExecutor, PrivacyFilter, begin_ledger
from flare_kit import MODEL, ROUNDS
from test_nvflare_bad_input import DECLINED, of_job, own_lines
from test_nvflare_executor import PERSON, RECORD, TRAINING
from test_nvflare_filters import code, task

pytestmark = pytest.mark.nvflare
PAGE = Path(__file__).parents[4] / "docs" / "for-swarms.md"


@pytest.fixture
def trained(monkeypatch):
    """The jobs for which a site's executor ran."""
    ran, execute = [], FedVeilExecutor.execute

    def counted(self, task_name, shareable, fl_ctx, abort_signal):
        ran.append(fl_ctx.get_job_id())
        return execute(self, task_name, shareable, fl_ctx, abort_signal)

    monkeypatch.setattr(FedVeilExecutor, "execute", counted)
    return ran


@pytest.mark.parametrize(("unit", "parameters"), [("record", RECORD), ("person", PERSON)])
def test_the_total_is_where_training_ends_whoever_begins_the_job(
    unit, parameters, trained, tmp_path, caplog
):
    given = {"method": "record", "parameters": parameters, "training": TRAINING}
    free = of_job("job-0", tmp_path, FedVeilExecutor(), **given)
    assert code(free.do("train", task(1))) == ReturnCode.OK
    [memory] = free.scope.task_data_filters["in"][0]._memories.values()
    once = total_of(memory.ledger("job-0", 0)).mu
    policy = tmp_path / "policy.toml"
    policy.write_text(f"secure_source = false\n[total]\n{unit}_mu = {1.01 * sqrt(2) * once}\n")
    path = begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    place = {"ledger": str(tmp_path / "ledgers"), "head": str(tmp_path / "head")}
    trained.clear()
    for job, rounds in (("job-1", range(1, ROUNDS + 1)), ("job-2", [1])):
        one = of_job(job, tmp_path, FedVeilExecutor(), policy=str(policy), **place, **given)
        for number in rounds:
            before, allowed = path.read_bytes(), len(trained) < 2
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                reply = one.do("train", task(number))
            assert (code(reply) == ReturnCode.OK) == allowed, own_lines(caplog)
            if not allowed:
                assert code(reply) == DECLINED
                assert path.read_bytes() == before
    assert trained == ["job-1", "job-1"]


def test_the_pages_promise_per_patient_is_a_sites_filter(tmp_path):
    [text] = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    arguments = json.loads(text)
    begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    policy = tmp_path / "policy.toml"
    policy.write_text('trust = ["secure sum"]\n[total]\nperson_epsilon = 8.01\n')
    place = {"ledger": str(tmp_path / "ledgers"), "head": str(tmp_path / "head")}
    asks = PrivacyFilter(model=MODEL, key="site.key", policy=str(policy), **place, **arguments)
    assert asks.swarm
    promised = build(arguments["method"], **arguments["parameters"])
    assert promised.planned == 23
