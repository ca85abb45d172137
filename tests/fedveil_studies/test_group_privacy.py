"""The group-privacy study: what it counts as leakage, and that it runs on the real hospitals."""

import math

import pytest
import torch

from fedveil.accounting import EuclideanLaplace, epsilon_of_mu
from fedveil.accounting import epsilon as epsilon_of
from fedveil.data import SOURCES
from fedveil.methods.group_privacy import mean_length
from fedveil_lab.config import load
from fedveil_lab.grid import Cell, Store
from fedveil_studies import networks
from fedveil_studies.frame import Choices, Reproduction, Study, find
from fedveil_studies.frame.claims import judge
from fedveil_studies.frame.described import ClaimOf
from fedveil_studies.frame.evidence import Evidence
from fedveil_studies.frame.models import validated
from fedveil_studies.frame.result import Result
from fedveil_studies.group_privacy import figure_1, figure_5

STUDY = find("group-privacy")


def test_published_medians_are_the_participations_that_they_count():
    # n / nu a participation: every printed median of table 1, averaged over 10 runs, is a multiple of 11 / nu / 10
    for (table, row, _, figure), published in STUDY.published.items():
        if table != "1":
            continue
        each = 11 / float(row.removeprefix("nu = "))
        steps = published.value / each * (20 if figure == "median" else 10)
        assert steps == pytest.approx(round(steps), abs=20 * 0.06 / each)


def test_synthetic_hypotheses_and_leakages_are_followed_by_kind(tmp_path):
    keys = [
        "rounds=12",
        "clients_per_round=40",
        "data.users=80",
        "privacy.noise_multiplier=0.5",
        "local.lr=0.4",
    ]
    config = load("group-privacy-synthetic", keys)
    cell = Cell("made", config, probes=(STUDY.probes["optima"](config),))
    outcome = Store(tmp_path).run([cell]).outcomes[cell.key]
    assert outcome.series("distance 0")[-1] < outcome.series("distance 0")[0] / 2
    assert (
        outcome.series("most 0") == outcome.series("most 1") == list(range(1, 13))
    )  # everybody, every round
    assert STUDY.curves["leaked"]([outcome], "0").y[-1] == 12 * 2 / 0.5


def shown_of(released):
    """Rounds in which users of the first kind sent something: what they sent, and the hypotheses after it."""
    return [(s, m) for s, m in zip(released.sent, released.models, strict=True) if 0 in s]


def test_figure_1_shows_what_users_of_each_kind_released():
    scale = STUDY.described.scales["paper"].model_copy(update={"set": {"rounds": 7}})
    short = Study("short", STUDY.described.model_copy(update={"scales": {"paper": scale}}), {})
    asked = Reproduction(short, Choices(workers=1))
    released, outcome = figure_1.played(asked, "two")
    assert [sum(map(len, sent.values())) for sent in released.sent] == [7] * 7  # users a round
    assert len(outcome.rows) == len(released.models) == 7
    apart = [
        float(sent[0].mean(0).sub(model).norm(dim=1).min()) for sent, model in shown_of(released)
    ]
    assert max(apart) < 2  # noise of five steps of at most .1 a coordinate
    figure = figure_1.vectors(asked)
    first, last = figure.axes[6:8]  # the row of two hypotheses with noise
    for axes, rounds in ((first, range(5)), (last, range(2, 7))):
        shown = sum(
            len(drawn.get_offsets())
            for drawn in axes.collections
            if drawn.get_label().startswith("users")
        )
        assert shown == 7 * len(rounds)


def test_noises_are_compared_at_one_composed_guarantee():
    made = {}
    for name in ("laplace", "gaussian"):
        values = {"rounds": 20, "data": {"features": 10}, "privacy": {"radius": 0.5}}
        STUDY.changes[name](values)
        made[name] = values["privacy"]
    sigma = made["gaussian"]["noise_multiplier"] * 0.5 / mean_length(10)
    assert epsilon_of_mu(math.sqrt(20) * 0.5 / sigma, 1e-5) == pytest.approx(8.0)
    epsilon = 10 / (made["laplace"]["noise_multiplier"] * 0.5)
    assert epsilon_of([(EuclideanLaplace(10, epsilon * 0.5), 20)], 1e-5) == pytest.approx(
        8.0, rel=2e-3
    )


@pytest.mark.few(0)
@pytest.mark.data
@pytest.mark.skipif(
    not SOURCES["cms-inpatient"].available, reason="the hospital charges are not here"
)
def test_a_short_run_on_the_hospitals(tmp_path):
    config = load(
        "group-privacy-hospitals", ["rounds=3", "clients_per_round=20", "stopping.sample=10"]
    )
    cell = Cell("short", config)
    finished = Store(tmp_path).run([cell])
    outcome = finished.outcomes[cell.key]
    most = STUDY.measures["leakage"]([outcome], "max").value
    made = outcome.summary.values["participations"]
    assert sum(made.values()) == 2075
    assert sum(int(k) * v for k, v in made.items()) == 60
    assert most == pytest.approx(11 / 3 * max(map(int, made)))
    assert STUDY.measures["leakage"]([outcome], "median").value == 0
    assert 0.05 < STUDY.measures["settled"]([outcome], "validation").value < 20
    errors = {
        name: STUDY.measures["hospital"]([outcome], name).value
        for name in ("median", "worst", "small", "large")
    }
    assert 0 < errors["median"] < errors["worst"]
    chosen = [
        STUDY.measures["noisy choice"]([outcome], f"{epsilon}").value
        for epsilon in ("0", "16", "inf")
    ]
    losses = validated(outcome).losses
    assert chosen[0] == pytest.approx(float(losses.mean()), rel=0.02)  # any of them
    assert chosen[0] > chosen[1] > chosen[2] == pytest.approx(float(losses.min(1).values.mean()))
    assert errors["small"] != errors["large"]
    share = STUDY.curves["share leaked"]([outcome], "")
    assert share.y[-1] == 1


@pytest.mark.data
@pytest.mark.skipif(
    not SOURCES["mnist-by-writer"].available, reason="the writers' digits are not here"
)
@pytest.mark.slow
def test_digits_are_inverted_beside_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_5, "CASES", {"analytic": {"name": "mlp", "hidden": [16]}})
    monkeypatch.setattr(figure_5, "WRITERS", 1)
    keys = [
        "model.name=mlp",
        "model.hidden=[8]",
        "rounds=1",
        "data.clients=20",
        "clients_per_round=2",
    ]
    config = load("group-privacy-writers", [*keys, "stopping.sample=1"])
    cell = Cell("made", config, probes=(STUDY.probes["inversion"](config),))
    outcome = Store(tmp_path).run([cell]).outcomes[cell.key]
    errors = [
        STUDY.measures["inverted"]([outcome], f"analytic mse {nu}").value
        for nu in ("0", "0.1", "3")
    ]
    assert errors[0] < 1e-8 < errors[1] < errors[2]
    assert STUDY.measures["inverted"]([outcome], "analytic identified 0").value == 1


@pytest.mark.data
@pytest.mark.skipif(
    not SOURCES["mnist-by-writer"].available, reason="the writers' digits are not here"
)
@pytest.mark.slow
def test_an_image_feels_noise_as_the_share_of_its_pixels_in_the_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_5, "DENSE", ("16", "64"))
    monkeypatch.setattr(figure_5.Law, "writers", 2)
    keys = [
        "model.name=mlp",
        "model.hidden=[8]",
        "rounds=1",
        "data.clients=20",
        "clients_per_round=2",
    ]
    config = load("group-privacy-writers", [*keys, "stopping.sample=1"])
    cell = Cell("made", config, probes=(STUDY.probes["law"](config),))
    outcome = Store(tmp_path).run([cell]).outcomes[cell.key]
    for case, size in (("16", 784 * 16 + 16 + 170), ("64", 784 * 64 + 64 + 650)):
        found = {
            name: STUDY.measures["inverted"]([outcome], f"{case} {name}").value
            for name in ("parameters", "law 1", "law 0.1", "felt 0.1", "felt 1")
        }
        assert found["parameters"] == size
        assert found["law 1"] == pytest.approx(math.sqrt(784 / size))
        assert found["felt 0.1"] == pytest.approx(found["law 0.1"], rel=0.4)
        assert found["felt 1"] == pytest.approx(10 * found["felt 0.1"], rel=0.4)


def told(*figures):
    """Evidence of (table, row, setting, figure, values by seed)."""
    results = {}
    for table, row, setting, figure, values in figures:
        seeds = tuple(range(len(values)))
        results[table, row, setting, figure] = Result(
            row=row,
            setting=setting,
            figure=figure,
            values=tuple(values),
            seeds=seeds,
            draws=(0,) * len(values),
        )
    return Evidence(STUDY, "paper", results=results)


@pytest.mark.parametrize(
    ("expect", "level", "values", "verdict"),
    [
        ("as without noise", None, (0.5, 0.51, 0.5), "holds"),
        ("as without noise", None, (0.8, 0.81, 0.8), "contradicted"),
        ("below no noise", None, (0.2, 0.21, 0.2), "holds"),
        ("below no noise", None, (0.8, 0.81, 0.8), "contradicted"),
        ("above", 0.5, (0.8, 0.81, 0.8), "holds"),
        ("alike", 0.7, (0.8, 0.81, 0.8), "contradicted"),
        ("alike", 0.8, (0.8, 0.801, 0.8), "holds"),
        ("below", 0.5, (0.8, 0.81, 0.8), "contradicted"),
        ("below", 1.0, (0.8, 0.81, 0.8), "holds"),
        ("as without noise", None, (0.5, 0.51), "cannot tell"),
    ],
)
def test_rows_are_judged_beside_no_noise_or_a_level(expect, level, values, verdict):
    evidence = told(
        ("rmse", "no noise", "h7", "f", (0.5, 0.5, 0.5)), ("rmse", "nu = 3", "h7", "f", values)
    )
    about = {
        "figures": (("rmse", "f"),),
        "of": ("h7",) if level is None else ("h7", level),
        "rows": ("nu = 3",),
        "pooled": False,
    }
    claim = ClaimOf(name="c", says="", expect=expect, **about)
    assert judge(claim, evidence).verdict == verdict
    nothing = judge(claim.model_copy(update={"figures": (("sound", "f"),)}), evidence)
    assert nothing.verdict == "cannot tell"
    assert level is None or all(row.lacking for row in nothing.rows)


def test_the_first_weights_of_dlgs_authors_are_uniform():
    weights = torch.cat(
        [p.detach().flatten() for p in networks.uniform_lenet((1, 28, 28), 10).parameters()]
    )
    assert weights.abs().max() <= 0.5
    assert weights.std() == pytest.approx(0.5 / math.sqrt(3), rel=0.05)  # PyTorch's own: .07
