"""Gradients of single examples for a module with its own code: by a trace to a list of operators, or one by one.

`torch.func.vmap` keeps examples apart in exact arithmetic. Its trace on dummies is a fixed list of operators: no
branch, exception or state depends on data. Each operator's result for a row, at its place in a batch of this size, must
depend on that row only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import getitem
from time import perf_counter
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedveil.layout import Layout
from fedveil.learning.gradients import Formed, Gradients, GradientsAndLosses
from fedveil.learning.joined import join_products
from fedveil.learning.losses import LOSSES, LossFunction, masked, outputs_of, usable
from fedveil.learning.recognised import fresh, generators_of
from fedveil.learning.recorded import recorded, running_layers
from fedveil.learning.replayed import add_in_order, branches_of_a_trace
from fedveil.learning.streams import draw_from, drawing, with_traced_dropout
from fedveil.learning.torch_losses import Labelwise
from fedveil.learning.written_out import ByValue as ByValue
from fedveil.learning.written_out import WrittenOut
from fedveil.mechanisms.source import keyed_seed

Shape = tuple[int, ...]

_MEASURED = 32  # examples of a batch against which one call for each example is timed


class ByOperators:
    """Gradient rule for traceable models: a list of operators is recorded on dummies, once for each shape.

    Parameters
    ----------
    model : torch.nn.Module
        Model, only read.
    layout : Layout
        Layout of the model.
    loss : str or Labelwise
        Loss of an example.
    generator : torch.Generator, optional
        Source of the random numbers that a module takes from PyTorch's global state.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        loss: str | Labelwise,
        generator: torch.Generator | None,
    ) -> None:
        self._model = model
        self._layout = layout
        self._loss = loss
        self._generator = generator
        self._graphs: dict[object, tuple[GraphModule, Shape]] = {}
        self.numbers_an_example = layout.size

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Trace the model on dummies [B, ...].

        Raises
        ------
        ByValue
            If the model cannot be traced, or an operator may depend on values.
        """
        module = with_traced_dropout(fresh(self._model))
        running = running_layers(module)
        try:
            outputs = self._outputs_of_one(x)
            y, loss = masked(y, (len(x), *outputs), self._loss)
            step = _without_overwriting(_gradients_of_rows(module, loss), self._layout.names)
            with catch_warnings(), sdpa_kernel(SDPBackend.MATH), branches_of_a_trace():
                filterwarnings(
                    "ignore", message="There is a performance drop"
                )  # a traced branch is refused below
                graph = recorded(step, *self._parameters(), x, y, layers=running)
        except Exception as error:
            raise self._untraceable(error, running) from error
        found = _not_blind(graph)
        if found is not None:
            if self._is_of_loss(found, outputs, y, loss):
                raise _may_follow_values(f"the loss {self._name_of_loss()}", found)
            raise _may_follow_values(type(self._model).__name__, found)
        join_products(graph)
        add_in_order(graph)
        self._graphs[x.shape] = graph, outputs

    def trace_forward(self, x: Tensor) -> None:
        """Trace only the forward pass on dummies [B, ...], which takes a fraction of the time.

        Raises
        ------
        ByValue
            If the model cannot be traced, or an operator may depend on values.
        """
        module = with_traced_dropout(fresh(self._model))
        running = running_layers(module)

        def outputs_of_row(row: Tensor) -> Tensor:
            with WrittenOut():
                return outputs_of(module(row[None]))

        try:
            with (
                torch.no_grad(),
                catch_warnings(),
                sdpa_kernel(SDPBackend.MATH),
                branches_of_a_trace(),
            ):
                filterwarnings("ignore", message="There is a performance drop")
                of_rows = torch.func.vmap(outputs_of_row, randomness="different")
                graph = recorded(torch.func.functionalize(of_rows), x, layers=running)
        except Exception as error:
            raise self._untraceable(error, running) from error
        found = _not_blind(graph)
        if found is not None:
            raise _may_follow_values(type(self._model).__name__, found)

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        here: Tensor,
        lengths: Tensor | None = None,
    ) -> GradientsAndLosses:
        """Return gradients, losses [B], and a bool [B] that marks the examples with finite results."""
        graph, outputs = self._graphs[x.shape]
        shape = (len(x), *outputs)
        y, good = usable(y, shape, self._loss)
        with seeded(self._generator), torch.no_grad():
            targets, _ = masked(y, shape, self._loss)
            *rows, losses = graph(*self._parameters(), x, targets)
        named = dict(zip(self._layout.names, rows, strict=True))
        return Gradients([Formed(named)], self._layout), losses.detach(), here & good

    def _outputs_of_one(self, x: Tensor) -> Shape:
        """Return the shape of the outputs of one example."""
        with torch.no_grad():
            outputs = outputs_of(fresh(self._model)(x[:1]))
        return tuple(outputs.shape)[1:]

    def _untraceable(self, error: Exception, running: Sequence[str]) -> ByValue:
        """Return the error that says why the model has no trace, and in which layer tracing failed."""
        reason = str(error).partition("\n")[0]
        if ".item()" in reason:
            reason = "it reads a number out of an example, as packed sequences do: pad to one length instead"
        if "data-dependent control flow" in reason:
            reason = "it branches by an example's values: compute both branches, and choose with torch.where"
        layer = running[-1] if running else ""
        place = f" (its layer {layer})" if layer else ""
        return ByValue(f"{type(self._model).__name__}{place} cannot be traced: {reason}")

    def _is_of_loss(
        self,
        found: Node,
        outputs: Shape,
        y: Tensor,
        loss: LossFunction,
    ) -> bool:
        """Whether an operator comes from the loss: whether the loss alone has it, on outputs of this shape."""

        def of_row(output: Tensor, target: Tensor) -> Tensor:
            return loss(output[None], target[None])

        of_rows = torch.func.vmap(torch.func.grad(of_row))
        with suppress(Exception):
            graph = recorded(torch.func.functionalize(of_rows), torch.zeros(len(y), *outputs), y)
            targets = {node.target for node in graph.graph.nodes}
            return found.target in targets
        return False

    def _name_of_loss(self) -> str:
        return self._loss if isinstance(self._loss, str) else self._loss.name

    def _parameters(self) -> list[Tensor]:
        every = dict(self._model.named_parameters())
        return [every[name].detach() for name in self._layout.names]


class OneByOne:
    """Gradient rule for every other model: one call for each example, on a fresh copy of the module.

    Parameters are those of `ByOperators`.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        loss: str | Labelwise,
        generator: torch.Generator | None,
    ) -> None:
        self._model = model
        self._layout = layout
        self._generator = generator
        self.loss: LossFunction = LOSSES[loss] if isinstance(loss, str) else loss.of_batch
        self.numbers_an_example = layout.size
        self.failure: Exception | None = None

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        here: Tensor,
        lengths: Tensor | None = None,
    ) -> GradientsAndLosses:
        """Return gradients, losses [B], and a bool [B] that marks the examples with both; an error leaves an example without."""
        dtype = self._layout.dtype
        rows = torch.zeros((len(x), self._layout.size), dtype=dtype, device=x.device)
        losses = torch.zeros(len(x), dtype=dtype, device=x.device)
        good = here.clone()
        with seeded(self._generator) as seed:
            for i in here.nonzero()[:, 0].tolist():
                self._draw_from(seed, i)
                try:
                    rows[i], losses[i] = self._one(x[i : i + 1].clone(), y[i : i + 1].clone())
                except Exception as error:
                    self.failure = error
                    good[i] = False
            self._draw_from(seed, len(x))
        formed = Formed(self._layout.views(rows))
        return Gradients([formed], self._layout), losses, good

    def _draw_from(self, seed: int | None, place: int) -> None:
        """Seed the generators by an example's place, so that no example's random numbers depend on earlier examples."""
        if seed is None:
            return
        draw_from(keyed_seed("place", seed, place, 0))
        for generator in (self._generator, *generators_of(self._model)):
            if generator is not None:
                generator.manual_seed(keyed_seed("place", seed, place, 1))

    def _one(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient [d] and the loss of one example [1, ...]."""
        module = fresh(
            self._model, shared=False
        )  # code that sets its own weights would otherwise set those of the next example
        every = dict(module.named_parameters())
        parameters = [every[name] for name in self._layout.names]
        loss = self.loss(outputs_of(module(x)), y)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        parts: list[Tensor] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            found = torch.zeros_like(parameter) if gradient is None else gradient
            parts.append(found.reshape(-1).to(self._layout.dtype))
        return torch.cat(parts), loss.detach()


def _gradients_of_rows(module: nn.Module, loss: LossFunction) -> Callable[..., Any]:
    """Return a function (parameters by name, x, y) -> (gradients by name, losses), one gradient and loss for each row."""

    def of_row(parameters: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
        with WrittenOut():
            outputs = outputs_of(torch.func.functional_call(module, parameters, (row[None],)))
        return loss(outputs, target[None])

    gradient: Callable[..., Any] = torch.func.grad_and_value(of_row)
    return torch.func.vmap(gradient, in_dims=(None, 0, 0), randomness="different")


def _without_overwriting(of_rows: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return a function (*parameters, x, y) -> [*gradients, losses] without in-place operations."""

    def flat(*given: Tensor) -> list[Tensor]:
        *parameters, x, y = given
        named, losses = of_rows(dict(zip(names, parameters, strict=True)), x, y)
        gradients = [named[name] for name in names]
        return [*gradients, losses]

    return torch.func.functionalize(flat)


def times_slower(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: LossFunction,
) -> float | None:
    """Measure the slowdown of one call for each example against a batch, on zeros like x and y [N, ...]; None if it fails."""
    shared = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def seconds(rows: int) -> float:
        began = perf_counter()
        module = fresh(model)
        examples = torch.zeros((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
        labels = torch.zeros((rows, *y.shape[1:]), dtype=y.dtype, device=y.device)
        torch.autograd.grad(loss(outputs_of(module(examples)), labels), shared, allow_unused=True)
        return perf_counter() - began

    with suppress(Exception):  # the model is the user's code
        seconds(1)
        one = min(seconds(1), seconds(1))
        batch = min(seconds(_MEASURED), seconds(_MEASURED))
        return _MEASURED * one / batch
    return None


@contextmanager
def seeded(generator: torch.Generator | None) -> Iterator[int | None]:
    """Seed the global generators within the context, as a module may draw from them; `generator` draws the seed.

    Yields
    ------
    int or None
        The seed.
    """
    if generator is None:
        yield None
        return
    seed = int(torch.randint(1 << 62, (), generator=generator))
    with drawing(seed):
        yield seed


def _may_follow_values(owner: str, node: Node) -> ByValue:
    """Return the error for an operator that may depend on values; it names the layer with the operator."""
    layer = node.meta.get("layer")
    place = f" in its layer {layer}" if layer else ""
    return ByValue(f"{owner} uses {node.target}{place}, which may follow values")


def _not_blind(graph: GraphModule) -> Node | None:
    """Return the first operator that may depend on values; None if there is none."""
    public: set[Node] = set()  # nodes that depend only on constants of the model
    for node in graph.graph.nodes:
        found: Node = node
        is_function = node.op == "call_function"
        if node.op == "get_attr" or (is_function and public.issuperset(node.all_input_nodes)):
            public.add(node)
        if node.op == "call_module":
            return found
        if is_function and not _blind(node, public):
            return found
    return None


def _blind(node: Node, public: set[Node]) -> bool:
    """Whether an operator works the same way for all values, and raises an error for none of them.

    Row numbers that index a tensor have to be constants, clamped to its rows, or the places of its largest values.
    """
    name, _, overload = str(node.target).rpartition(".")
    if name in _INDEXING:
        return _indices_exist(node, public)
    if name in _BY_AXIS:
        return node.args[2] in public
    if name == "aten.scatter" and overload not in ("src", "value"):
        return False  # other overloads combine several values at a place
    if name in _GATHERING:
        index = node.args[2]
        return isinstance(index, Node) and (index in public or _within(index, node))
    if node.target is getitem:
        return True
    if name == "aten.bernoulli":
        return overload == "p"  # other overloads take probabilities, and raise outside [0, 1]
    if name in _DIVIDING and _gives_whole_numbers(node) and not overload.startswith("Scalar"):
        return False  # division by zero raises
    return name in _OPERATORS


def _indices_exist(node: Node, public: set[Node]) -> bool:
    """Whether the indices that select rows are constants, or places of largest or smallest values in that axis."""
    table = node.args[0]
    assert isinstance(table, Node)
    indices = _indices(node)
    for axis, index in enumerate(indices):
        if index is None or index in public:
            continue
        if not _are_numbers(indices):  # a mask may stand for several axes
            return False
        if not _is_place_of_extreme(_source(index), table.meta["val"].shape[axis]):
            return False
    return True


def _are_numbers(indices: list[Any]) -> bool:
    """Whether no index is a mask."""
    given = [index for index in indices if index is not None]
    return all(index.meta["val"].dtype != torch.bool for index in given)


def _source(index: Node) -> Node:
    """Return the operator that found these row numbers, before they were reshaped."""
    while str(index.target).rpartition(".")[0] in _RESHAPING:
        assert isinstance(index.args[0], Node)
        index = index.args[0]
    return index


def _indices(node: Node) -> list[Any]:
    """Return the indices by which an operator selects rows."""
    indices: list[Any] = []
    for value in node.args[1:2]:
        if isinstance(value, list | tuple):
            indices += value
        else:
            indices.append(value)
    return indices


def _gives_whole_numbers(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or not value.is_floating_point()


def _within(index: Node, node: Node) -> bool:
    """Whether row numbers in a gather or scatter exist: they are clamped, or places of largest or smallest values."""
    table, axis = node.args[:2]
    assert isinstance(table, Node)
    assert isinstance(axis, int)
    rows = table.meta["val"].shape[axis]
    index = _source(index)
    if index.target is torch.ops.aten.clamp.default:
        return index.args[1:] == (0, rows - 1)
    return _is_place_of_extreme(index, rows)


def _is_place_of_extreme(index: Node, rows: int) -> bool:
    """Whether row numbers are the places that `max`, `min`, `argmax` or `argmin` found along an axis of so many rows."""
    source = index.args[0] if index.args else None
    if index.target in _PLACES_OF_EXTREMES:
        search = index
    elif index.target is getitem and isinstance(source, Node) and index.args[1] == 1:
        if source.target not in _EXTREMES:
            return False
        search = source
    else:
        return False
    searched, *axes = search.args
    assert isinstance(searched, Node)
    if not axes or axes[0] is None:  # among all values, whatever their axes
        return bool(searched.meta["val"].numel() == rows)
    [axis, *_] = axes
    assert isinstance(axis, int)
    return bool(searched.meta["val"].shape[axis] == rows)


# Operators that keep a batch's rows apart, raise for no value, and have one kernel for all values. So no indexing (it
# raises), sorting, sparse or dynamically quantised operator.
_BLIND = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _log_softmax
_log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data _to_copy _unsafe_view
_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
_upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward abs acos acosh
adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward add addbmm addcdiv
addcmul addmm alias all amax amin any arange argmax argmin as_strided as_strided_scatter asin asinh atan atan2 atanh
avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm bernoulli bitwise_and bitwise_not
bitwise_or bmm cat celu channel_shuffle chunk clamp clamp_max clamp_min clone col2im constant_pad_nd convolution
convolution_backward copy copysign cos cosh cumsum detach diagonal div dot elu elu_backward empty empty_like eq erf
erfc exp exp2 expand expand_as expm1 eye fill flip floor fmod frac full full_like ge gelu gelu_backward glu
glu_backward gt hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
hardtanh_backward huber_loss huber_loss_backward im2col isfinite isinf isnan isneginf isposinf le leaky_relu
leaky_relu_backward lerp lift_fresh lift_fresh_copy linalg_vector_norm linspace log log10 log1p log2
log_sigmoid_backward log_sigmoid_forward logaddexp logical_and logical_not logical_or logit logsumexp lt masked_fill
max max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
maximum mean min minimum mish mish_backward mm mse_loss mse_loss_backward mul mv nan_to_num narrow
native_channel_shuffle native_dropout native_dropout_backward native_group_norm native_group_norm_backward
native_layer_norm native_layer_norm_backward ne neg new_empty new_full new_ones new_zeros norm ones ones_like permute
pixel_shuffle pixel_unshuffle pow prod rand rand_like randn randn_like reciprocal reflection_pad1d
reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward relu
relu6 remainder repeat replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
replication_pad3d replication_pad3d_backward reshape roll round rsqrt rsub scalar_tensor select select_backward
select_scatter sgn sigmoid sigmoid_backward sign silu silu_backward sin sinh slice slice_backward slice_scatter
smooth_l1_loss smooth_l1_loss_backward softplus softplus_backward softshrink softshrink_backward split split_with_sizes
sqrt square squeeze stack std sub sum sym_size t tan tanh tanh_backward threshold threshold_backward transpose tril
triu trunc unbind unfold unfold_backward unsafe_split unsqueeze upsample_bicubic2d upsample_bicubic2d_backward
upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward var var_mean view view_as_real where
xlogy zeros zeros_like
"""
_INDEXING = frozenset(
    {"aten.index", "aten.index_put", "aten._unsafe_index", "aten._unsafe_index_put"}
)
_BY_AXIS = frozenset({"aten.index_select", "aten.index_add"})
_GATHERING = frozenset({"aten.gather", "aten.scatter_add", "aten.scatter"})
_EXTREMES = frozenset({torch.ops.aten.max.dim, torch.ops.aten.min.dim})
_PLACES_OF_EXTREMES = frozenset({torch.ops.aten.argmax.default, torch.ops.aten.argmin.default})
_RESHAPING = frozenset(
    {f"aten.{name}" for name in ("view", "expand", "unsqueeze", "squeeze", "reshape", "clone")}
)
_OPERATORS = frozenset(f"aten.{name}" for name in _BLIND.split())
_DIVIDING = frozenset(
    {"aten.div", "aten.remainder", "aten.fmod"}
)  # raise for whole numbers divided by 0
