"""Updates by blocks of columns: the bits of the whole stack, whatever the rule, the clip and who is missing."""

import gc
import weakref

import pytest
import torch

from fedveil import clipping
from fedveil.aggregation import AGGREGATORS, FedAvg, FedMedian, Krum, RunningSum, Updates, padded
from fedveil.clipping import clip, norms
from fedveil.errors import FieldError
from fedveil.mechanisms import NoSource

N, D, COHORT = 5, 5_000, 7


@pytest.fixture
def models(monkeypatch):
    monkeypatch.setattr(clipping, "_ELEMENTS", 1024)  # five blocks instead of one
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(D, generator=generator)
    return start, [
        start + scale * torch.randn(D, generator=generator)
        for scale in (0.001, 0.01, 0.02, 0.1, 1.0)
    ]


def test_lengths_and_blocks_are_those_of_the_stack(models):
    start, sent = models
    updates, whole = Updates(sent, start), torch.stack(sent) - start
    blocks = list(updates.blocks())
    assert len(blocks) == 5
    assert torch.equal(torch.cat([block for _, block in blocks], 1), whole)
    torch.testing.assert_close(updates.lengths, whole.double().norm(dim=1), rtol=1e-13, atol=0)
    torch.testing.assert_close(norms(whole), whole.double().norm(dim=1), rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
@pytest.mark.parametrize("cohort", [None, COHORT])
def test_every_rule_gives_what_it_gives_on_the_clipped_stack(models, name, cohort):
    start, sent = models
    rule = AGGREGATORS[name]()
    rule = rule.for_round(rule.init(len(start), start.dtype), NoSource(), torch.ones_like(start))
    size = cohort or N
    weights = torch.full((size,), 1 / size, dtype=torch.float64)
    updates = Updates(sent, start)
    whole = clip(torch.stack(sent) - start, 1.0, lengths=updates.lengths)
    expected = rule.reduce(padded(whole, size), weights)
    found = updates.clipped(1.0).reduce(rule, weights, cohort)
    if rule.linear:  # clipped in float64: the stack is rounded to float32
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    else:
        assert torch.equal(found, expected)
    assert float(norms(updates.clipped(1.0).stack).max()) <= 1.0


def test_a_rule_that_sees_all_coordinates_is_not_cut_into_blocks(models):
    assert not Krum().columnwise
    start, _ = models
    torn = [start.clone() for _ in range(N)]
    for i, model in enumerate(torn):  # every block by itself would choose another client
        model[1024 * i : 1024 * (i + 1)] += 1
    weights = torch.full((N,), 1 / N, dtype=torch.float64)
    chosen = Updates(torn, start).reduce(Krum(), weights)
    assert any(torch.equal(chosen, (model - start).double()) for model in torn)


def test_received_models_stay_as_they_are(models):
    start, sent = models
    before = [model.clone() for model in (start, *sent)]
    updates = Updates(sent, start)
    updates.clipped(0.1).reduce(FedAvg(), torch.full((N,), 1 / N, dtype=torch.float64))
    _ = updates.stack.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(before, (start, *sent), strict=True))


def test_more_replies_than_planned_are_refused(models):
    start, sent = models
    with pytest.raises(FieldError, match="cohort = 4: is less than the number of replies"):
        Updates(sent, start).reduce(FedAvg(), torch.full((4,), 0.25, dtype=torch.float64), 4)


def test_a_rounds_models_are_freed_when_nobody_holds_their_updates():
    updates = Updates([torch.ones(3), torch.zeros(3)], torch.zeros(3))
    updates.clipped(0.5).reduce(FedAvg(), torch.tensor([0.5, 0.5], dtype=torch.float64))
    held = weakref.ref(updates)
    gc.disable()
    try:
        del updates
        assert held() is None
    finally:
        gc.enable()


# ---- added as they come


def running(start, sent, order, bound=1.0):
    """Their sum, taken in this order; None has no model."""
    weights = torch.full((len(sent),), 1 / len(sent), dtype=torch.float64)
    one = RunningSum(start, bound, weights)
    for place in order:
        one.take(place, None if sent[place] is None else sent[place].clone())
    return one, weights


@pytest.fixture
def wide():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(70_001, generator=generator)
    return start, [
        start + scale * torch.randn(len(start), generator=generator)
        for scale in (1e-3, 0.01, 2e-3, 0.1, 1)
    ]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (1, 4, 0, 3, 2)])
def test_updates_added_as_they_come_have_the_bits_of_all_at_once(wide, order):
    start, sent = wide
    assert RunningSum.worthwhile(N, len(start))
    one, weights = running(start, sent, order)
    whole = Updates(sent, start)
    assert torch.equal(one.lengths, whole.lengths)
    assert len(one) == N
    expected = whole.clipped(1.0).reduce(FedAvg(), weights, N)
    assert torch.equal(one.clipped(1.0).reduce(FedAvg(), weights, N), expected)
    assert torch.equal(
        one.clipped(1.0).reduce(FedAvg(), weights, N), expected
    )  # a round may be drawn again


def test_whoever_is_missing_or_not_finite_adds_nothing(wide):
    start, sent = wide
    sent[1], sent[3] = None, sent[3].index_fill(0, torch.tensor([69_999]), torch.nan)
    with pytest.raises(FieldError, match="finite"):
        running(start, sent, (3,))
    one, weights = running(start, [*sent[:3], None, sent[4]], range(N))
    whole = Updates([sent[0], sent[2], sent[4]], start)
    torch.testing.assert_close(one.lengths, whole.lengths, rtol=1e-13, atol=0)
    expected = whole.clipped(1.0).reduce(FedAvg(), weights, N)
    torch.testing.assert_close(
        one.clipped(1.0).reduce(FedAvg(), padded(weights[:3], N), N), expected
    )


def test_a_running_sum_refuses_whatever_it_does_not_hold(wide):
    start, sent = wide
    one, weights = running(start, sent, range(N))
    with pytest.raises(FieldError, match="bound"):
        one.clipped(2.0)
    with pytest.raises(FieldError, match="weights"):
        one.reduce(FedAvg(), weights * 2, N)
    with pytest.raises(FieldError, match="weights"):
        one.reduce(FedMedian(), weights, N)
    for look in (lambda: one.stack, lambda: list(one.blocks())):
        with pytest.raises(FieldError, match="came"):
            look()
    for other in (start[1:], start.double()):
        with pytest.raises(FieldError, match="like the start"):
            RunningSum(start, 1.0, weights).take(0, other)
    few, _ = running(start, sent, (0, 1, 2))
    with pytest.raises(FieldError, match="weights"):
        few.reduce(FedAvg(), weights, N)
