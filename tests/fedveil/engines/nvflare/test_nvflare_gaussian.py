"""FLARE's own form of static local DP: what leaves, how much it is noised, and what is counted."""

import math
import os
from pathlib import Path
from types import SimpleNamespace

import flare_needed  # noqa: F401
import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.client.config import TransferType

import fedveil as fv
from fedveil.engines.lifetime import read_ledger
from fedveil.engines.nvflare.gaussian import ASKED, forms_of
from fedveil.errors import FedVeilError, FieldError
from fedveil.gdp import epsilon_of_mu
from fedveil.nvflare import GaussianFilter, TaskKeeper, begin_ledger
from flare_kit import Site
from hello_kit import SITES, SimpleNetwork

pytestmark = pytest.mark.nvflare
SECRET = "patient 4711"


def context(folder, site="site-1", job="job-1", asked=None):
    """What the filter asks of FLARE, after `TaskKeeper` has seen a task; default: of the arrays of `difference`."""
    asked = forms_of(difference(kind=DataKind.WEIGHTS)) if asked is None else asked
    engine = SimpleNamespace(
        get_workspace=lambda: SimpleNamespace(get_run_dir=lambda job: str(folder / job))
    )
    return SimpleNamespace(
        get_engine=lambda: engine,
        get_identity_name=lambda default="": site,
        get_job_id=lambda default=None: job,
        get_prop={ASKED: asked}.get,
    )


def difference(scale=1.0, size=(40, 25), kind=DataKind.WEIGHT_DIFF, meta=None, **more):
    arrays = {
        "weight": np.full(size, scale, dtype=np.float32),
        "bias": np.full((), scale, dtype=np.float32),
        **more,
    }
    return DXO(
        kind, arrays, meta or {"NUM_STEPS_CURRENT_ROUND": 17, "initial_metrics": {SECRET: 1.0}}
    ).to_shareable()


def model(*given, **more):
    """Forms of a task's model with the arrays of such a difference."""
    return forms_of(difference(*given, kind=DataKind.WEIGHTS, **more))


def arrays(reply):
    return from_shareable(reply).data


def test_what_leaves_is_the_clipped_difference_with_the_stated_noise(tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=4, clip=0.5, seed=1)
    large = context(tmp_path, asked=model(size=(200, 200)))
    found = arrays(one.process(difference(1e6, size=(200, 200)), large))
    noise = found["weight"] - 0.5 / math.sqrt(200 * 200 + 1)
    assert noise.std() == pytest.approx(one.sigma, rel=0.02)
    assert abs(noise.mean()) < 4 * one.sigma / 200
    small = GaussianFilter(epsilon=1e6, rounds=1, clip=1e3, seed=1)
    found = arrays(small.process(difference(0.25), context(tmp_path, job="job-2")))
    assert found["weight"].mean() == pytest.approx(0.25, abs=small.sigma)


def test_a_scalar_is_clipped_and_noised_with_the_rest(tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=40, seed=2)
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
    asked = model(steps=np.array(0), note=np.zeros(3, dtype=np.int64))
    fl_ctx = context(tmp_path, asked=asked)
    reply = GaussianFilter(epsilon=8.0, rounds=1, seed=4).process(result, fl_ctx)
    assert SECRET not in str(reply)
    dxo = from_shareable(reply)
    assert dxo.get_meta_prop("NUM_STEPS_CURRENT_ROUND") == 1
    assert not dxo.data["note"].any()
    assert not dxo.data["steps"].any()


class Adding(Executor):
    """Training code that adds to all that FLARE sends beside a result."""

    def __init__(self, ends):
        super().__init__()
        self.ends = ends

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        shareable.add_cookie("note", SECRET)
        shareable.get_cookie_jar()["list"].append(SECRET)
        for sticky in (False, True):
            fl_ctx.set_prop(f"{SECRET}, {sticky}", 1, private=False, sticky=sticky)
        fl_ctx.get_prop("public")["note"] = SECRET
        if self.ends == "aborted":
            abort_signal.trigger(True)
        if self.ends == "unsafe":
            raise UnsafeJobError(SECRET)
        if self.ends == "raised":
            raise RuntimeError(SECRET)
        return difference() if self.ends == "done" else Shareable({SECRET: SECRET})


ENDS = {
    "done": ReturnCode.OK,
    "no difference": ReturnCode.TASK_RESULT_FILTER_ERROR,
    "raised": ReturnCode.EXECUTION_EXCEPTION,
    "aborted": ReturnCode.TASK_ABORTED,
    "unsafe": ReturnCode.UNSAFE_JOB,
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("kept", [True, False])
def test_what_training_code_adds_to_a_task_is_undone_with_a_keeper(kept, ends, tmp_path):
    one = Site("site-a", tmp_path, Adding(ends), [])
    one.scope.add_task_result_filter(GaussianFilter(epsilon=8.0, rounds=1, seed=4), "out")
    if kept:
        one.scope.add_task_data_filter(TaskKeeper(), "in")
    reply = one.do("train", difference(kind=DataKind.WEIGHTS))
    sent = [reply, one.context.get_all_public_props()]
    sent.append(one.engine.manager.new_context().get_all_public_props())
    assert [SECRET in str(part) for part in sent] == [not kept] * 3
    if kept:
        assert reply.get_return_code() == ENDS[ends]
        assert reply.get_cookie_jar() == {"task": "cookie of the server", "list": []}
    assert ("DXO" in reply) == (kept and ends == "done")


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_what_is_not_finite_is_a_zero_update_with_the_same_noise(scale, tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=1, seed=5)
    large = context(tmp_path, asked=model(size=(100, 100)))
    found = arrays(one.process(difference(scale, size=(100, 100)), large))["weight"]
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
        lambda: difference(weight=np.ones((40, 25), dtype=np.complex64)),
    ],
)
def test_a_result_of_another_kind_is_refused(result, tmp_path):
    with pytest.raises(FieldError):
        GaussianFilter(epsilon=8.0, rounds=1, seed=6).process(result(), context(tmp_path))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"n": (torch.int64, (2,))},
        {"w": (torch.complex64, (2,)), "v": (torch.float32, (2,))},
        {"w": (torch.bfloat16, (2,))},
    ],
)
def test_a_task_without_a_model_that_noise_can_be_added_to_is_refused(asked, tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=1, seed=6)
    with pytest.raises(FieldError):
        one.process(difference(), context(tmp_path, asked=asked))


OTHERS = {
    "another shape": difference(size=(2, 2)),
    "an array more": difference(more=np.ones(3, dtype=np.float32)),
    "a counter more": difference(steps=np.zeros(3, dtype=np.int64)),
    "another name": DXO(
        DataKind.WEIGHT_DIFF, {"weight": np.ones((40, 25)), "bias of 4711": np.ones(())}
    ).to_shareable(),
    "an array less": DXO(DataKind.WEIGHT_DIFF, {"weight": np.ones((40, 25))}).to_shareable(),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_arrays_than_the_tasks_are_refused_and_cost_nothing(case, tmp_path):
    """Also in the first round: their names and shapes would leave, and training code may choose them by its data."""
    one, fl_ctx = GaussianFilter(epsilon=8.0, rounds=1, seed=7), context(tmp_path)
    with pytest.raises(FieldError) as refused:
        one.process(OTHERS[case], fl_ctx)
    assert refused.value.field == "difference"
    one.process(difference(), fl_ctx)  # the one release of the budget is still there


def test_the_types_that_leave_are_those_of_the_tasks_model(tmp_path):
    double = difference(weight=np.ones((40, 25), dtype=np.float64))
    found = arrays(GaussianFilter(epsilon=8.0, rounds=1, seed=7).process(double, context(tmp_path)))
    assert {name: value.dtype for name, value in found.items()} == {
        "weight": np.float32,
        "bias": np.float32,
    }


def test_a_task_with_another_model_than_the_first_one_is_refused(tmp_path):
    one = GaussianFilter(epsilon=8.0, rounds=3, seed=7)
    one.process(difference(), context(tmp_path))
    with pytest.raises(FieldError):
        one.process(difference(size=(2, 2)), context(tmp_path, asked=model(size=(2, 2))))


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
    fl_ctx = context(tmp_path, asked=model(seen=np.zeros(3, dtype=np.int64)))
    one = GaussianFilter(epsilon=8.0, rounds=3, seed=7)
    with pytest.raises(FieldError):
        one.process(difference(seen=np.zeros(17, dtype=np.int64)), fl_ctx)
    for seen in (np.arange(3), np.arange(3, dtype=np.int32)):
        found = arrays(one.process(difference(seen=seen), fl_ctx))["seen"]
        assert (found.dtype, found.any()) == (np.int64, False)


@pytest.mark.slow
def test_a_recipe_of_flares_runs_with_the_filter_in_its_simulator(tmp_path, monkeypatch):
    """As results/flare-filters has it; FLARE's own script computes the difference."""
    recipes = pytest.importorskip("nvflare.app_opt.pt.recipes.fedavg")
    spec = pytest.importorskip("nvflare.recipe")
    here = Path(__file__).parent
    path = [str(Path(fv.__file__).parents[1]), str(here), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    recipe = recipes.FedAvgRecipe(
        name="gauss",
        min_clients=3,
        num_rounds=2,
        model=SimpleNetwork(),
        train_script=str(here / "hello_client.py"),
        params_transfer_type=TransferType.DIFF,
        aggregator_data_kind=DataKind.WEIGHT_DIFF,
    )
    recipe.add_client_input_filter(TaskKeeper(), tasks=["train"])
    one = GaussianFilter(epsilon=8.0, rounds=2, seed=1)
    recipe.add_client_output_filter(one, tasks=["train"])
    recipe.execute(spec.SimEnv(clients=SITES, workspace_root=str(tmp_path)))
    for site in SITES:
        text = "".join(log.read_text() for log in tmp_path.rglob(f"{site}/log.txt"))
        assert "release 2 of 2; conditional eps=8 " in text, text[-3000:]
    [saved] = tmp_path.rglob("FL_global_model.pt")
    model = torch.load(saved)["model"]
    assert max(float(torch.as_tensor(value).abs().max()) for value in model.values()) > one.sigma
