import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.clipping import SHRINK, clip, norms
from fedveil.errors import FieldError
from fedveil.layout import Layout

LAYOUT = Layout.from_shapes({"a.weight": (2,), "a.bias": (1,), "b.weight": (1,)}, torch.float64)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_flat_by_hand():
    # (3, 4) has norm 5; cut to 2 it is (1.2, 1.6), a little shorter for the sake of float32
    assert clip(f64(3, 4), 2.0).tolist() == pytest.approx(
        [1.2 * (1 - SHRINK), 1.6 * (1 - SHRINK)], rel=1e-12
    )
    stack = torch.stack([f64(3, 4), f64(0.3, 0.4)])
    clipped = clip(stack, 2.0)
    assert clipped[0].tolist() == pytest.approx([1.2, 1.6], rel=2e-6)
    assert torch.equal(clipped[1], stack[1])


def test_per_layer_by_hand():
    # modules: a = (3, 4, 12) of norm 13 is cut to 1.3, b = 2 stays within 5
    clipped = clip(f64(3, 4, 12, 2), {"a": 1.3, "b": 5.0}, LAYOUT)
    assert clipped.tolist() == pytest.approx([0.3, 0.4, 1.2, 2.0], rel=2e-6)
    # arrays: (3, 4) of norm 5 is cut to 1, 12 to 6, 2 to 1
    clipped = clip(f64(3, 4, 12, 2), {"a.weight": 1.0, "a.bias": 6.0, "b.weight": 1.0}, LAYOUT)
    assert clipped.tolist() == pytest.approx([0.6, 0.8, 6.0, 1.0], rel=2e-6)


def test_modules_with_arrays_apart_are_clipped_together():
    layout = Layout.from_shapes({"a.weight": (1,), "b.weight": (1,), "a.bias": (1,)}, torch.float64)
    clipped = clip(f64(3, 7, 4), {"a": 1.0, "b": 10.0}, layout)  # a = (3, 4) of norm 5
    assert clipped.tolist() == pytest.approx([0.6, 7.0, 0.8], rel=2e-6)


def test_per_layer_bounds_are_not_one_bound():
    update = f64(3, 4, 12, 2)
    assert float(norms(clip(update, dict.fromkeys(("a", "b"), 1.0), LAYOUT))) == pytest.approx(
        2**0.5, rel=1e-5
    )
    assert float(norms(clip(update, 1.0))) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("value", [1.0, 1e-3, 3e38])
def test_float32_never_exceeds_the_bound_in_high_dimension(value):
    update = torch.full((1_200_000,), value)
    bound = 1.0 if value >= 1 else 1e-3
    length = float(norms(clip(update, bound)))
    assert bound * (1 - 3e-6) < length <= bound


@pytest.mark.parametrize("magnitude", [1e30, 1e36, 3e38])
def test_a_huge_float32_update_stays_within_the_bound(magnitude):
    # the factor C / ||update|| is subnormal here: as one float32 number it let 1.0005 C through
    update = torch.full((4, 20_000), magnitude)
    for bound in (0.1, 1.0):
        lengths = norms(clip(update, bound))
        assert float(lengths.max()) <= bound
        assert float(lengths.min()) > bound * (1 - 3e-6)


def test_norms_are_summed_in_float64():
    # a float32 sum of 2^24 ones and more stops growing; the blocks of the sum are 2^20 wide
    update = torch.ones((1 << 24) + 4096)
    assert float(norms(update)) ** 2 == pytest.approx((1 << 24) + 4096, rel=1e-12)


def test_zero_update_and_0d():
    assert clip(torch.zeros(3), 1.0).tolist() == [0, 0, 0]
    assert clip(torch.zeros(4, dtype=torch.float64), {"a": 1.0, "b": 1.0}, LAYOUT).tolist() == [
        0,
        0,
        0,
        0,
    ]
    clipped = clip(torch.tensor(-8.0, dtype=torch.float64), 2.0)
    assert clipped.shape == ()
    assert float(clipped) == pytest.approx(-2.0, rel=2e-6)
    assert norms(torch.tensor(-8.0)).shape == ()


def test_the_input_is_left_alone():
    update = f64(3, 4, 12, 2)
    clip(update, 1.0)
    clip(update, {"a": 1.0, "b": 1.0}, LAYOUT)
    assert update.tolist() == [3, 4, 12, 2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_updates_are_refused(bad):
    for update in (torch.tensor([1.0, bad]), torch.tensor([[0.0, 0.0], [1.0, bad]])):
        with pytest.raises(FieldError, match="updates") as error:
            clip(update, 1.0)
        assert error.value.field == "updates"
    with pytest.raises(FieldError, match="updates"):
        clip(f64(0, 0, 0, bad), {"a": 1.0, "b": 1.0}, LAYOUT)


@pytest.mark.parametrize(
    "updates",
    [torch.ones(2, dtype=torch.int64), torch.ones(2).half(), [1.0, 2.0], torch.ones(1, 1, 1)],
)
def test_other_types_are_refused(updates):
    with pytest.raises(FieldError, match="updates"):
        clip(updates, 1.0)


@pytest.mark.parametrize("norm", [0, -1.0, float("nan"), float("inf"), "1", None, True])
def test_bad_bounds_are_refused_by_name(norm):
    with pytest.raises(FieldError, match="finite number above 0") as error:
        clip(torch.ones(4), norm)
    assert error.value.field == "norm"
    with pytest.raises(FieldError) as error:
        clip(torch.ones(4, dtype=torch.float64), {"a": 1.0, "b": norm}, LAYOUT)
    assert error.value.field == "norm[b]"


def test_layers_need_a_layout_and_every_bound():
    with pytest.raises(FieldError, match="layout"):
        clip(torch.ones(4), {"a": 1.0})
    with pytest.raises(FieldError, match="norm"):
        clip(torch.ones(4, dtype=torch.float64), {"a": 1.0}, LAYOUT)
    with pytest.raises(FieldError, match="did you mean"):
        clip(torch.ones(4, dtype=torch.float64), {"a": 1.0, "bb": 1.0}, LAYOUT)


FINITE = {
    32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    64: st.floats(-1e150, 1e150),
}


@given(st.data(), st.sampled_from([32, 64]), st.floats(1e-6, 1e6))
def test_every_row_ends_within_the_bound_and_short_rows_keep_their_bits(data, width, bound):
    rows = data.draw(
        st.lists(st.lists(FINITE[width], min_size=3, max_size=3), min_size=1, max_size=4)
    )
    updates = torch.tensor(rows, dtype=torch.float32 if width == 32 else torch.float64)
    clipped = clip(updates, bound)
    lengths = norms(updates)
    assert (norms(clipped) <= bound).all()
    short = lengths <= bound
    assert torch.equal(clipped[short], updates[short])
    for i in range(len(updates)):  # a row's result does not depend on the others
        assert torch.equal(clip(updates[i], bound), clipped[i])
    long = ~short
    assert (norms(clipped[long]) >= bound * (1 - 3e-6)).all()


@pytest.mark.parametrize("bound", [1e-42, 1e-31])
def test_a_bound_too_small_to_be_kept_is_refused(bound):
    with pytest.raises(FieldError, match="norm"):
        clip(torch.ones(1_000_000), bound)
    assert float(norms(clip(torch.ones(1_000_000), 1e-30))) <= 1e-30
