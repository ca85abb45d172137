"""FedRE refuses what leaves it without usable noise, by the name of what to change, before data are touched."""

import math

import pytest
import torch
from torch import nn

from engine_kit import Faulty, federation
from fedveil.calibration import LayerSensitivity
from fedveil.errors import FieldError, HeuristicError
from fedveil.methods import FedRE, build

VARIANTS = ("private", "public")


@pytest.mark.parametrize("scores", VARIANTS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", v) for v in (0.0, -1.0, math.inf, math.nan, 1e300, 1e-30, 5e-324)]
    + [("delta", v) for v in (0.0, 1.0, math.nan, 5e-324)],
)
def test_budgets_that_are_none_are_refused(scores, field, value):
    with pytest.raises(FieldError) as refused:
        FedRE(scores=scores, **{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("options", "field", "fix"),
    [
        ({"clip": 1e-29}, "privacy.epsilon", "or raise privacy.clip"),
        ({"noise_to_clip": 1e300}, "privacy.noise_to_clip", "lower it, or lower"),
        ({"noise_to_clip": 1e-300}, "privacy.noise_to_clip", "raise it, or raise"),
        ({"clip": {"nope": 1.0}}, "privacy.clip", "is no layer"),
        ({"clip": {"1": 1.0}}, "privacy.clip", "missing: 3"),
        (
            {"clip": {f"{i}.{kind}": 1.0 for i in (1, 3) for kind in ("weight", "bias")}},
            "privacy.clip",
            "each layer",
        ),
    ],
)
def test_noise_of_nothing_or_of_no_float_is_refused_before_anybody_trains(options, field, fix):
    made = federation("fedre", method=build("fedre", **options))
    with pytest.raises(FieldError, match=fix) as refused:
        made.run(1)
    assert refused.value.field == field
    assert all(not made.party(p).ledger.entries for p in range(4))


def test_a_tiny_epsilon_at_a_proof_costs_what_delta_alone_allows():
    made = federation("fedre", method=build("fedre", epsilon=1e-9, scores="public"))
    scale = torch.tensor(made.run(1).rounds[0].client_scales[0])
    # mu-GDP at epsilon 0 has delta 2 Phi(mu/2) - 1, about mu / sqrt(2 pi)
    assert float((0.4 / scale).norm()) == pytest.approx(1e-5 * math.sqrt(2 * math.pi), rel=1e-4)


def test_a_bound_below_what_floats_clip_to_is_refused():
    with pytest.raises(FieldError, match="clip = 1e-31"):
        FedRE(clip={"1": 0.2, "3": 1e-31})


@pytest.mark.parametrize("total", ["epsilon", "delta"])
def test_totals_that_have_no_shares_are_refused(total):
    with pytest.raises(FieldError, match=f"{total} = 1e-310"):
        LayerSensitivity(
            **{"epsilon": 1.0, "delta": 1e-5, total: 1e-310}, clip=1.0, rounds=1
        ).split([1.0, 2.0])


@pytest.mark.parametrize("scores", VARIANTS)
def test_a_layer_without_parameters_has_no_share(scores):
    normal = nn.LayerNorm(3, elementwise_affine=False)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 3), normal, nn.Dropout(0.5), nn.Tanh(), nn.Linear(3, 2)
    )

    def of(clip):
        method = build("fedre", scores=scores, clip=clip)
        return federation("fedre", method=method, model=model, learner=Faulty({}, model=model))

    record = of({"1": 0.2, "5": 0.1}).run(1).rounds[0]
    assert not record.zeroed
    assert [len(scale) for scale in record.client_scales.values()] == [2] * 4
    with pytest.raises(FieldError, match=r"privacy\.clip = '2'"):
        of({"1": 0.2, "2": 0.1, "5": 0.1}).run(1)


CAUSES = {  # why a variant's noise has no epsilon: the options, and a word of the cause that its reason names
    "ratio": ({"noise_to_clip": 1.0, "scores": "public"}, "ratio"),
    "sample": ({"sensitivity": "sample"}, "examples"),
    "uniform": ({"split": "uniform"}, "replaced"),
    "private": ({}, "private"),
}


def test_each_variant_without_a_proof_says_its_own_cause_and_has_no_epsilon():
    reasons = []
    for options, word in CAUSES.values():
        run = federation("fedre", method=build("fedre", **options)).run(1)
        assert run.guarantee.status == "heuristic"
        with pytest.raises(HeuristicError, match=word) as refused:
            run.guarantee.epsilon(1e-5)
        reasons.append(str(refused.value))
    assert len(set(reasons)) == len(CAUSES)
    assert federation("fedre", method=build("fedre", scores="public")).run(1).guarantee.proven
