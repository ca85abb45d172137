import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from core_kit import flat
from fedveil.errors import FieldError
from fedveil.layout import Layout


class Mixed(nn.Module):
    """Parameters of every accepted type, one of them 0-d."""

    def __init__(self, *dtypes):
        super().__init__()
        self.temperature = nn.Parameter(torch.randn((), dtype=dtypes[0]))
        for i, dtype in enumerate(dtypes):
            self.register_parameter(f"w{i}", nn.Parameter(torch.randn(2 + i, 3).to(dtype)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight


def bits(state):
    return {
        name: (v.dtype, v.shape, v.detach().reshape(-1).view(torch.uint8).tolist())
        for name, v in state.items()
    }


@pytest.mark.parametrize(
    ("dtypes", "vector_type"),
    [
        ([torch.float32], torch.float32),
        ([torch.float64], torch.float64),
        ([torch.float16, torch.bfloat16], torch.float32),
        ([torch.bfloat16, torch.float32, torch.float16], torch.float32),
        ([torch.float32, torch.float64, torch.float16], torch.float64),
    ],
)
def test_round_trip_keeps_every_bit(dtypes, vector_type):
    module = Mixed(*dtypes)
    layout = Layout.from_module(module)
    vector = layout.flatten(module.state_dict())
    assert vector.dtype == layout.dtype == vector_type
    assert torch.equal(vector, layout.read(module))

    other = Mixed(*dtypes)
    assert bits(other.state_dict()) != bits(module.state_dict())
    other.load_state_dict(layout.unflatten(vector), strict=False)
    assert bits(other.state_dict()) == bits(module.state_dict())

    third = Mixed(*dtypes)
    layout.load(third, vector)
    assert bits(third.state_dict()) == bits(module.state_dict())


def test_vector_is_in_the_order_of_the_arrays():
    layout = Layout.from_shapes({"a": (2, 2), "b": (), "c": (1,)})
    arrays = {
        "c": torch.tensor([6.0]),
        "a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "b": torch.tensor(5.0),
    }
    assert layout.flatten(arrays).tolist() == [1, 2, 3, 4, 5, 6]
    assert (layout.size, layout.names) == (6, ("a", "b", "c"))
    assert layout.shapes == {"a": (2, 2), "b": (), "c": (1,)}
    assert layout.unflatten(layout.flatten(arrays))["b"].shape == ()


def test_unflattened_arrays_are_fresh():
    layout, vector = flat(3), torch.zeros(3, dtype=torch.float64)
    layout.unflatten(vector)["w"].fill_(7.0)
    assert vector.tolist() == [0, 0, 0]


def test_tied_weights_are_shared_once():
    module = Tied()
    layout = Layout.from_module(module)
    assert layout.names == ("encoder.weight",)
    assert layout.size == 9
    vector = layout.flatten(module.state_dict())  # its state holds the array under both names
    other = Tied()
    other.load_state_dict(layout.unflatten(vector), strict=False)
    assert torch.equal(other.decoder.weight, module.decoder.weight)


def test_an_untied_extra_array_is_refused():
    layout = Layout.from_shapes({"a": (2,)})
    with pytest.raises(FieldError, match="extra") as error:
        layout.flatten({"a": torch.zeros(2), "extra": torch.zeros(2)})
    assert error.value.field == "extra"


def test_frozen_parameters_stay_with_their_holder():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].weight.requires_grad_(False)
    layout = Layout.from_module(module)
    assert layout.names == ("0.bias", "1.weight", "1.bias")
    assert layout.kept == ("0.weight",)
    before = module[0].weight.clone()
    module.load_state_dict(layout.unflatten(layout.flatten(module.state_dict()) + 1), strict=False)
    assert torch.equal(module[0].weight, before)


def test_batch_norm_is_refused_by_default_and_the_error_names_the_buffers():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with pytest.raises(FieldError, match="running_mean") as error:
        Layout.from_module(module)
    assert error.value.field == "module"
    assert "GroupNorm" in str(error.value)


def test_kept_buffers_are_never_in_the_vector():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    layout = Layout.from_module(module, buffers="keep")
    assert layout.kept == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert layout.size == 2 * 3 + 3 + 3 + 3  # weight, bias, and the affine part of the norm
    vector = layout.flatten(module.state_dict())
    module[1].running_mean.fill_(1e6)
    assert torch.equal(layout.flatten(module.state_dict()), vector)


def test_integers_are_refused():
    with pytest.raises(FieldError, match="floating-point"):
        Layout.from_shapes({"a": (2,)}, torch.int64)
    with pytest.raises(FieldError, match="float array"):
        Layout.from_shapes({"a": (2,)}).flatten({"a": torch.zeros(2, dtype=torch.int64)})
    counting = nn.Linear(1, 1)
    counting.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    with pytest.raises(FieldError, match="steps"):
        Layout.from_module(counting)


@pytest.mark.parametrize(
    "arrays",
    [{}, {"a": torch.zeros(3)}, {"b": torch.zeros(2)}],
    ids=["missing", "wrong shape", "unknown"],
)
def test_arrays_that_do_not_fit_are_refused(arrays):
    with pytest.raises(FieldError):
        Layout.from_shapes({"a": (2,)}).flatten(arrays)


@pytest.mark.parametrize("shapes", [{}, {"a": (0,)}, {"a": (2, 0)}, {"a": (-1,)}])
def test_nothing_to_share_is_refused(shapes):
    with pytest.raises(FieldError):
        Layout.from_shapes(shapes)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3),
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(1, 1, 2),
        torch.zeros(2).half(),
    ],
)
def test_vectors_that_do_not_fit_are_refused(value):
    layout = Layout.from_shapes({"a": (2,)})
    for use in (layout.norms, layout.views):
        with pytest.raises(FieldError, match="updates"):
            use(value)
    with pytest.raises(FieldError, match="vector"):
        layout.unflatten(value)


def test_views_share_memory_and_keep_the_leading_dimension():
    layout = Layout.from_shapes({"a": (2, 2), "b": ()})
    stack = torch.arange(10.0).reshape(2, 5)
    views = layout.views(stack)
    assert views["a"].tolist() == [[[0, 1], [2, 3]], [[5, 6], [7, 8]]]
    assert views["b"].tolist() == [4, 9]
    views["a"][1, 0, 0] = -1
    assert stack[1, 0] == -1


def test_groups_merge_the_arrays_of_a_module():
    layout = Layout.from_shapes(
        {"conv.weight": (2, 2), "head.bias": (1,), "conv.bias": (2,), "scale": ()}
    )
    assert layout.groups("module") == {
        "conv": [slice(0, 4), slice(5, 7)],
        "head": [slice(4, 5)],
        "scale": [slice(7, 8)],
    }
    assert list(layout.groups("array")) == ["conv.weight", "head.bias", "conv.bias", "scale"]
    adjacent = Layout.from_shapes({"m.weight": (2,), "m.bias": (1,)})
    assert adjacent.groups("module") == {"m": [slice(0, 3)]}


def test_norms_by_hand():
    layout = Layout.from_shapes({"m.weight": (2,), "m.bias": (1,), "n.weight": (1,)})
    update = torch.tensor([3.0, 4.0, 12.0, -2.0])
    assert layout.norms(update, "array").tolist() == [5, 12, 2]
    assert layout.norms(update, "module").tolist() == [13, 2]  # 5, 12, 13
    assert layout.norms(update).dtype == torch.float64


def test_grouping_is_recognised_from_the_keys():
    layout = Layout.from_shapes({"m.weight": (2,), "m.bias": (1,)})
    assert layout.grouping_of("norm", {"m": 1}) == "module"
    assert layout.grouping_of("norm", {"m.weight": 1, "m.bias": 1}) == "array"
    with pytest.raises(FieldError, match="did you mean 'm'"):
        layout.grouping_of("norm", {"mm": 1})
    with pytest.raises(FieldError, match="missing"):
        layout.grouping_of("norm", {"m.weight": 1})


SHAPES = st.dictionaries(
    st.sampled_from(["a.weight", "a.bias", "b.weight", "b.bias", "c"]),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    min_size=1,
)


@given(SHAPES, st.integers(1, 3), st.sampled_from([torch.float32, torch.float64]))
def test_every_layout_tiles_its_vector(shapes, n, dtype):
    layout = Layout.from_shapes(shapes, dtype)
    stops = [0, *(b.stop for b in layout.blocks)]
    assert [b.start for b in layout.blocks] == stops[:-1]
    assert layout.size == stops[-1]
    for grouping in ("array", "module"):
        covered = sorted(
            (s.start, s.stop) for slices in layout.groups(grouping).values() for s in slices
        )
        assert sum(stop - start for start, stop in covered) == layout.size

    stack = torch.randn(n, layout.size, dtype=dtype)
    for row in stack:
        assert torch.equal(layout.flatten(layout.unflatten(row)), row)
    whole = torch.linalg.vector_norm(stack.double(), dim=1)
    for grouping in ("array", "module"):
        torch.testing.assert_close(layout.norms(stack, grouping).square().sum(1).sqrt(), whole)
    for name, view in layout.views(stack).items():
        column = list(layout.names).index(name)
        expected = torch.linalg.vector_norm(view.double().reshape(n, -1), dim=1)
        torch.testing.assert_close(layout.norms(stack)[:, column], expected)
