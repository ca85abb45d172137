"""Scores in, bounds out: true laws keep their level, too small a claim is refuted, and ceilings are never passed."""

import math

import numpy as np
import pytest

from fedveil.errors import FieldError
from fedveil.gdp import epsilon_of_mu
from fedveil_lab.attacks.bounds import epsilon_bound, one_run
from fedveil_lab.verify import measure, read_scores, verify_scores

CLAIM = "eps=1 delta=1e-5 zero-out client total central"


def answers(rng, epsilon, runs):
    """Randomised response at epsilon: both worlds' answers."""
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    return rng.binomial(1, honest, runs).astype(float), rng.binomial(1, 1 - honest, runs).astype(
        float
    )


@pytest.mark.slow
def test_bounds_of_a_tight_mechanism_pass_its_epsilon_no_more_often_than_alpha():
    rng, alpha = np.random.default_rng(0), 0.2
    above = 0
    for _ in range(300):
        found = measure(*answers(rng, 1.0, 400), rows="runs", delta=0.0, alpha=alpha)
        above += found.best("epsilon").value > 1.0
    assert above <= 0.25 * 300  # alpha is .2; three standard errors are .07


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_gaussian_runs_are_bounded_from_below_by_every_method(mu):
    rng = np.random.default_rng(1)
    found = measure(rng.normal(mu, 1, 8000), rng.normal(0, 1, 8000), rows="runs")
    for one in found.bounds:
        most = mu if one.figure == "mu" else epsilon_of_mu(mu, 1e-5)
        assert one.value <= most
        assert one.value < one.ceiling
    assert found.best("mu").value > 0.75 * mu


def test_perfect_scores_reach_the_ceiling_and_no_more():
    found = measure(np.ones(1000), np.zeros(1000), rows="runs", delta=0.0)
    for one in found.bounds:
        assert one.value == pytest.approx(one.ceiling)
    held = next(
        one
        for one in found.bounds
        if one.method == "held-out threshold" and one.figure == "epsilon"
    )
    assert held.value == pytest.approx(
        epsilon_bound(np.ones(500), np.zeros(500), 0.5, confidence=0.995).lower
    )


def test_the_order_of_a_file_decides_nothing():
    rng = np.random.default_rng(2)
    inside, outside = np.sort(rng.normal(0, 1, 2000)), np.sort(rng.normal(0, 1, 2000))[::-1]
    found = measure(inside, outside, rows="runs")
    assert found.best("epsilon").value < 0.5


def test_canaries_are_judged_as_one_run():
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(3, 1, 500), rng.normal(0, 1, 500)
    found = measure(inside, outside, rows="canaries", alpha=0.01)
    alone = one_run(inside, outside, delta=1e-5, confidence=0.995)
    assert found.best("epsilon").value == alone.epsilon
    assert found.best("mu").value == alone.mu
    with pytest.raises(FieldError, match="fair coins"):
        measure(inside[:100], outside, rows="canaries")


def test_records_that_no_coin_drew_bound_nothing():
    rng = np.random.default_rng(4)
    judged = verify_scores(
        rng.normal(3, 1, 500), rng.normal(0, 1, 500), rows="records", claim=CLAIM
    )
    assert judged.measured.bounds == ()
    assert not judged.refuted
    assert "not tested" in judged.answer


def test_a_right_claim_is_not_refuted_and_a_wrong_one_is():
    rng = np.random.default_rng(5)
    inside, outside = rng.normal(2, 1, 4000), rng.normal(0, 1, 4000)
    wrong = verify_scores(inside, outside, rows="runs", claim=CLAIM)
    assert wrong.refuted
    right = verify_scores(
        inside, outside, rows="runs", claim=CLAIM.replace("eps=1", f"eps={epsilon_of_mu(2, 1e-5)}")
    )
    assert not right.refuted
    assert "true" not in right.answer.replace("does not show that it is true", "")
    losses = verify_scores(-inside, -outside, rows="runs", claim=CLAIM, lower_is_in=True)
    assert losses.measured.bounds == wrong.measured.bounds


def test_a_mu_claim_is_judged_by_mu_and_an_epsilon_by_epsilon_alone():
    rng = np.random.default_rng(6)
    response = answers(rng, 1.0, 8000)
    right = verify_scores(
        *response, rows="runs", claim="eps=1 delta=0 replace-one record total local"
    )
    assert not right.refuted  # although its mu is 1.23, more than a Gaussian of this epsilon has
    assert verify_scores(
        *response, rows="runs", claim="mu=1 replace-one record total local"
    ).refuted
    assert not verify_scores(
        *response, rows="runs", claim="mu=1.3 replace-one record total local"
    ).refuted


def test_too_few_scores_are_out_of_reach():
    rng = np.random.default_rng(7)
    claim = CLAIM.replace("eps=1", "eps=9")
    judged = verify_scores(rng.normal(2, 1, 100), rng.normal(0, 1, 100), rows="runs", claim=claim)
    assert not judged.in_reach
    assert "out of reach" in judged.answer


@pytest.mark.parametrize(
    "text",
    [
        "score,world\n1,in\n2,out\n3,IN\n0,out\n",
        "world;score\nmember;1\nnon-member;2\nmember;3\nnon-member;0\n",
        "in,out\n1,2\n3,0\n",
        "who\tscore\tis_member\na\t1\t1\nb\t2\t0\nc\t3\ttrue\nd\t0\tfalse\n",
    ],
)
def test_tables_of_other_tools_are_read(tmp_path, text):
    head, *lines = text.splitlines()
    (tmp_path / "scores.csv").write_text("\n".join([head, *lines * 5]))
    inside, outside = read_scores(tmp_path / "scores.csv")
    assert inside.tolist() == [1, 3] * 5
    assert outside.tolist() == [2, 0] * 5


def test_scores_of_one_world_alone_are_refused_with_both_counts(tmp_path):
    table = tmp_path / "scores.csv"
    table.write_text("score,world\n" + "1,in\n" * 40)
    with pytest.raises(FieldError, match="40 scores in and 0 out"):
        read_scores(table)


@pytest.mark.parametrize(
    ("rows", "name", "other"), [("runs", "canary_id", "canaries"), ("canaries", "seed", "runs")]
)
def test_a_table_of_the_other_kind_is_refused_where_a_column_shows_it(tmp_path, rows, name, other):
    table = tmp_path / "scores.csv"
    lines = [f"{number},{number % 3},{number % 2}" for number in range(40)]
    table.write_text("\n".join([f"{name},score,world", *lines]))
    with pytest.raises(FieldError, match=f"--rows {other}"):
        read_scores(table, rows)
    assert len(read_scores(table, other)[0]) == 20
    same = [f"7,{number % 3},{number % 2}" for number in range(40)]  # one run, or one target
    table.write_text("\n".join([f"{name},score,world", *same]))
    assert len(read_scores(table, rows)[0]) == 20


def test_losses_that_are_no_number_or_without_bound_keep_their_place():
    losses = np.array([-np.inf, np.nan, *range(10)])
    higher = verify_scores(-losses, losses, rows="runs")
    lower = verify_scores(losses, -losses, rows="runs", lower_is_in=True)
    assert lower.measured.area == higher.measured.area


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "score,world\n1,maybe\n",
        "score,world\nx,in\n",
        "score,world\n1\n",
        "score,loss,in\n1,2,1\n",
    ],
)
def test_tables_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "scores.csv").write_text(text)
    with pytest.raises(FieldError) as refused:
        read_scores(tmp_path / "scores.csv")
    assert refused.value.field == "--scores"


@pytest.mark.parametrize("scores", [np.ones(5), np.full(20, np.nan), ["a"] * 20])
def test_what_are_no_scores_is_refused(scores):
    with pytest.raises(FieldError):
        measure(scores, np.zeros(20), rows="runs")


@pytest.mark.parametrize(
    ("rows", "name"), [("runs", "seed"), ("runs", "run_id"), ("canaries", "canary_id")]
)
def test_a_run_or_canary_that_stands_there_twice_is_refused(tmp_path, rows, name):
    file = tmp_path / "scores.csv"
    lines = [f"{number},{number % 3},{number % 2}" for number in range(40)]
    file.write_text("\n".join([f"{name},score,world", *lines]))
    inside, outside = read_scores(file, rows)
    assert (len(inside), len(outside)) == (20, 20)
    file.write_text("\n".join([f"{name},score,world", *lines, lines[7]]))
    with pytest.raises(FieldError, match=f"line 42 .*{name} '7'.* line 9"):
        read_scores(file, rows)


def test_a_run_that_stands_twice_beside_columns_in_and_out_is_refused(tmp_path):
    table = tmp_path / "scores.csv"
    table.write_text("id,in,out\n1,.1,.2\n1,.3,.4\n")  # before anything is counted
    with pytest.raises(FieldError, match="line 3 has the id '1' of line 2"):
        read_scores(table, "runs")


def test_scores_that_stand_there_more_than_once_are_named():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=200), rng.normal(size=200)
    once = verify_scores(inside, outside, rows="runs")
    twice = verify_scores(np.tile(inside, 3), np.tile(outside, 3), rows="runs")
    grades = verify_scores(np.round(inside), np.round(outside), rows="runs")
    assert [len(one.notes) for one in (once, twice, grades)] == [1, 2, 1]
