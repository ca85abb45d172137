"""FLARE's own form of static local DP: what leaves, how much it is noised, and what is counted."""

import math
from types import SimpleNamespace

import flare_needed  # noqa: F401
import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.engines.lifetime import read_ledger
from fedveil.errors import FedVeilError, FieldError
from fedveil.gdp import epsilon_of_mu
from fedveil.nvflare import GaussianFilter, TaskKeeper, begin_ledger
from flare_kit import Site

pytestmark = pytest.mark.nvflare
SECRET = "patient 4711"


def context(folder, site="site-1", job="job-1"):
    engine = SimpleNamespace(
        get_workspace=lambda: SimpleNamespace(get_run_dir=lambda job: str(folder / job))
    )
    return SimpleNamespace(
        get_engine=lambda: engine,
        get_identity_name=lambda default="": site,
        get_job_id=lambda default=None: job,
        get_prop=lambda name: None,
    )


def difference(scale=1.0, size=(40, 25), kind=DataKind.WEIGHT_DIFF, meta=None, **more):
    arrays = {
        "weight": np.full(size, scale, dtype=np.float32),
        "bias": np.float32(scale).reshape(()),
        **more,
    }
    return DXO(
        kind, arrays, meta or {"NUM_STEPS_CURRENT_ROUND": 17, "initial_metrics": {SECRET: 1.0}}
    ).to_shareable()


def arrays(reply):
    return from_shareable(reply).data


def test_what_leaves_is_the_clipped_difference_with_the_stated_noise(tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=4, clip=0.5, seed=1)
    found = arrays(one.process(difference(1e6, size=(200, 200)), context(tmp_path)))
    noise = found["weight"] - 0.5 / math.sqrt(200 * 200 + 1)
    assert noise.std() == pytest.approx(one.sigma, rel=0.02)
    assert abs(noise.mean()) < 4 * one.sigma / 200
    small = GaussianFilter(epsilon=1e6, rounds=1, clip=1e3, seed=1)
    found = arrays(small.process(difference(0.25), context(tmp_path, job="job-2")))
    assert found["weight"].mean() == pytest.approx(0.25, abs=small.sigma)


def test_a_scalar_is_clipped_and_noised_with_the_rest(tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=2000, seed=2)
    found = [
        float(arrays(one.process(difference(0.0), context(tmp_path)))["bias"]) for _ in range(40)
    ]
    assert np.std(found) == pytest.approx(one.sigma, rel=0.3)


def test_all_rounds_together_cost_the_stated_epsilon_and_no_more_leave(tmp_path):
    one, fl_ctx = GaussianFilter(epsilon=8.0, rounds=3, seed=3), context(tmp_path)
    for _ in range(3):
        one.process(difference(), fl_ctx)
    [memory] = one._memories.values()
    total = one.guarantee(memory.ledger("job-1", 0))
    assert total.epsilon(1e-5) == pytest.approx(8.0, rel=1e-6)
    assert total.epsilon(1e-5) <= 8.0
    assert (total.relation, total.trust, total.unit) == ("replace-one", "local", "client")
    with pytest.raises(FedVeilError):
        one.process(difference(), fl_ctx)


def test_sites_with_one_seed_have_noise_of_their_own(tmp_path):
    one = [GaussianFilter(epsilon=8.0, rounds=1, seed=9) for _ in range(2)]
    found = [
        arrays(each.process(difference(0.0), context(tmp_path, site)))["weight"].ravel()
        for each, site in zip(one, ("site-1", "site-2"), strict=True)
    ]
    assert abs(np.corrcoef(found)[0, 1]) < 0.2


def test_sensitivity_by_hand_a_half_of_the_noise_fails():
    one = GaussianFilter(epsilon=2.0, rounds=5, clip=3.0, seed=0)
    moved = 2 * 3.0  # of any two clipped differences
    assert epsilon_of_mu(math.sqrt(5) * moved / one.sigma, 1e-5) == pytest.approx(2.0, rel=1e-6)
    assert epsilon_of_mu(math.sqrt(5) * moved / (one.sigma / 2), 1e-5) > 4.0


def test_nothing_else_leaves(tmp_path):
    result = difference(steps=np.array(5), note=np.arange(3, dtype=np.int64))
    result[SECRET] = SECRET
    result.set_header("note", SECRET)
    reply = GaussianFilter(epsilon=8.0, rounds=1, seed=4).process(result, context(tmp_path))
    assert SECRET not in str(reply)
    dxo = from_shareable(reply)
    assert dxo.get_meta_prop("NUM_STEPS_CURRENT_ROUND") == 1
    assert not dxo.data["note"].any()
    assert not dxo.data["steps"].any()


class Adding(Executor):
    """Training code that adds to all that FLARE sends beside a result."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        shareable.add_cookie("note", SECRET)
        shareable.get_cookie_jar()["list"].append(SECRET)
        for sticky in (False, True):
            fl_ctx.set_prop(f"{SECRET}, {sticky}", 1, private=False, sticky=sticky)
        fl_ctx.get_prop("public")["note"] = SECRET
        return difference()


@pytest.mark.parametrize("kept", [True, False])
def test_what_training_code_adds_to_a_task_is_undone_with_a_keeper(kept, tmp_path):
    one = Site("site-a", tmp_path, Adding(), [])
    one.scope.add_task_result_filter(GaussianFilter(epsilon=8.0, rounds=1, seed=4), "out")
    if kept:
        one.scope.add_task_data_filter(TaskKeeper(), "in")
    reply = one.do("train", Shareable())
    sent = [reply, one.context.get_all_public_props()]
    sent.append(one.engine.manager.new_context().get_all_public_props())
    assert [SECRET in str(part) for part in sent] == [not kept] * 3
    assert reply.get_return_code() == ReturnCode.OK
    if kept:
        assert reply.get_cookie_jar() == {"task": "cookie of the server", "list": []}


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_what_is_not_finite_is_a_zero_update_with_the_same_noise(scale, tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=1, seed=5)
    found = arrays(one.process(difference(scale, size=(100, 100)), context(tmp_path)))["weight"]
    assert np.isfinite(found).all()
    assert found.std() == pytest.approx(one.sigma, rel=0.05)


@pytest.mark.parametrize(
    "result",
    [
        lambda: difference(kind=DataKind.WEIGHTS),
        lambda: DXO(DataKind.METRICS, {"loss": 1.0}).to_shareable(),
        lambda: DXO(
            DataKind.COLLECTION, {"a": DXO(DataKind.WEIGHT_DIFF, {"w": np.ones(2)})}
        ).to_shareable(),
        lambda: DXO(DataKind.WEIGHT_DIFF, {"n": np.arange(2)}).to_shareable(),
        lambda: DXO(DataKind.WEIGHT_DIFF, {"w": np.ones(2, dtype=np.complex64)}).to_shareable(),
        lambda: DXO(
            DataKind.WEIGHT_DIFF, {"w": torch.ones(2, dtype=torch.bfloat16)}
        ).to_shareable(),
    ],
)
def test_a_result_of_another_kind_is_refused(result, tmp_path):
    with pytest.raises(FieldError):
        GaussianFilter(epsilon=8.0, rounds=1, seed=6).process(result(), context(tmp_path))


def test_other_arrays_than_the_first_ones_are_refused(tmp_path):
    one, fl_ctx = GaussianFilter(epsilon=8.0, rounds=3, seed=7), context(tmp_path)
    one.process(difference(), fl_ctx)
    counted = {"steps": np.zeros(3, dtype=np.int64)}
    double = {"weight": np.ones((40, 25), dtype=np.float64)}
    for other in (
        difference(size=(2, 2)),
        difference(more=np.ones(3, dtype=np.float32)),
        difference(**counted),
        difference(**double),
    ):
        with pytest.raises(FieldError):
            one.process(other, fl_ctx)


def test_a_failed_result_is_its_code_alone(tmp_path):
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    failed[SECRET] = SECRET
    reply = GaussianFilter(epsilon=8.0, rounds=1, seed=8).process(failed, context(tmp_path))
    assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert SECRET not in str(reply)


def test_a_lifetime_ledger_holds_over_jobs(tmp_path):
    ledgers, heads = tmp_path / "ledgers", tmp_path / "heads"
    begin_ledger(ledgers, "site-1", by="the tests", head=heads)
    kept = {"ledger": str(ledgers), "head": str(heads)}
    for job, leave in (("one", 2), ("two", 1)):
        one = GaussianFilter(epsilon=8.0, rounds=3, **kept)
        for _ in range(leave):
            one.process(difference(), context(tmp_path, job=job))
    with pytest.raises(FedVeilError):
        one.process(difference(), context(tmp_path, job="two"))
    ledger, _, _ = read_ledger(ledgers / "site-1.jsonl")
    assert len(ledger.all_entries) == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"rounds": 0}, "rounds"),
        ({"clip": -1.0}, "clip"),
        ({"seed": None}, "ledger"),
    ],
)
def test_what_cannot_work_is_refused_when_the_filter_is_made(changes, field):
    with pytest.raises(FieldError) as refused:
        GaussianFilter(**{"epsilon": 8.0, "rounds": 3, "seed": 0, **changes})
    assert refused.value.field == field


def test_the_shape_of_an_integer_array_tells_nothing_of_a_round(tmp_path):
    """It leaves as zeros: their number would be a number of patients."""
    one, fl_ctx = GaussianFilter(epsilon=8.0, rounds=3, seed=7), context(tmp_path)
    one.process(difference(seen=np.zeros(3, dtype=np.int64)), fl_ctx)
    for seen in (np.zeros(17, dtype=np.int64), np.zeros(3, dtype=np.int32)):
        with pytest.raises(FieldError):
            one.process(difference(seen=seen), fl_ctx)
    assert not arrays(one.process(difference(seen=np.arange(3)), fl_ctx))["seen"].any()
