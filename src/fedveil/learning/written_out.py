"""PyTorch functions rewritten with operators that work the same way for all values; this makes a model traceable.

Some kernels branch or raise errors depending on values, or have no version for single examples: fused attention,
embedding tables, recurrent layers, statistics of one example. Here each function is replaced by its mathematical
formula. Functions inside a replacement are not replaced.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class ByValue(Exception):
    """Refusal of a module whose computation may depend on values of its examples."""


class WrittenOut(TorchFunctionMode):
    """Context in which PyTorch functions are replaced by the ones in this module."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the replacement of a function if there is one, else the function."""
        form = _FORMS.get(func, func)
        return form(*args, **(kwargs or {}))


def embedding(
    input: Tensor,  # PyTorch's name
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Look up rows of a table. An index outside the table gives NaN, so only that example counts as zero.

    Raises
    ------
    ByValue
        For indices that are no integers, and for `max_norm`, `scale_grad_by_freq` or `sparse`, which make rows depend
        on each other.
    """
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise ByValue("an embedding with max_norm, scale_grad_by_freq or sparse=True")
    rows, width = weight.shape
    if input.is_floating_point():
        raise ByValue("an embedding of real numbers")
    index = input.reshape(-1)
    chosen = index.clamp(0, rows - 1)[:, None].expand(-1, width)
    found = weight.gather(0, chosen)
    if padding_idx is not None and padding_idx != -1:
        padding = padding_idx % rows
        found = torch.where((index == padding)[:, None], found.detach(), found)
    known = ((index >= 0) & (index < rows))[:, None]
    return torch.where(known, found, math.nan).reshape(*input.shape, width)


def _table(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    *more: Any,
) -> Tensor:
    """Call `embedding` with the argument order of `torch.embedding`."""
    return embedding(indices, weight, padding_idx, None, 2.0, *more)


def gather(
    input: Tensor,
    dim: int,
    index: Tensor,
    *,
    sparse_grad: bool = False,
) -> Tensor:
    """Pick values along an axis. A row number outside the table gives NaN, the smallest whole number, or False.

    NaN makes that example count as zero. So does the number, if it then picks a word (`embedding`).

    Raises
    ------
    ByValue
        For `sparse_grad`.
    """
    if sparse_grad:
        raise ByValue("a gather with sparse_grad=True")
    rows = input.shape[dim]
    found = torch.gather(input, dim, index.clamp(0, rows - 1))
    known = (index >= 0) & (index < rows)
    if input.dtype == torch.bool:
        return known & found
    nothing = math.nan if input.is_floating_point() else torch.iinfo(input.dtype).min
    return torch.where(known, found, nothing)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sum or average a table's rows over bags of indices, all of one public length.

    Raises
    ------
    ByValue
        For bags of other lengths, or the mode "max".
    """
    if input.dim() != 2 or offsets is not None or mode == "max":
        raise ByValue("an embedding bag with offsets, or the largest of its rows")
    found = embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        found = found * per_sample_weights[:, :, None]
    if padding_idx is None:
        return found.sum(1) if mode == "sum" else found.mean(1)
    kept = (input != padding_idx % len(weight))[:, :, None]
    total = torch.where(kept, found, 0.0).sum(1)
    if mode == "sum":
        return total
    count = kept.to(total.dtype).sum(1)
    return total / count.clamp(min=1)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute scaled dot-product attention; a query that may see no key gets 0."""
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(times, -3)
        value = value.repeat_interleave(times, -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        looking = torch.arange(scores.shape[-2], device=scores.device)
        places = torch.arange(scores.shape[-1], device=scores.device)
        attn_mask = places <= looking[:, None]
    weights = scores.softmax(-1) if attn_mask is None else _masked_softmax(scores, attn_mask)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return weights @ value


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax over the keys that a bool or additive mask allows; 0 if it allows none."""
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(mask.logical_not(), -math.inf)
    else:
        scores = scores + mask
    nothing = scores.amax(-1, keepdim=True) == -math.inf
    weights = torch.where(nothing, 0.0, scores).softmax(-1)
    return torch.where(nothing, 0.0, weights)


def _heads(*args: Any, **more: Any) -> Any:
    """Call multi-head attention so that it returns weights, because otherwise a fused kernel computes it."""
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **more)
    given = bound.arguments
    unmasked = given.get("attn_mask") is None and given.get("key_padding_mask") is None
    asked = given.get("need_weights", True)
    given["need_weights"] = asked or unmasked
    output, weights = F.multi_head_attention_forward(*bound.args, **bound.kwargs)
    return output, weights if asked else None


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each example, by group normalisation with one channel in a group."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return F.group_norm(input, input.shape[1], weight, bias, eps)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise by stored statistics, because statistics of a batch would mix examples.

    Raises
    ------
    ByValue
        If statistics of the batch are requested.
    """
    if training or running_mean is None or running_var is None:
        raise ByValue("a normalisation by the batch's own statistics")
    shape = _of_channels(input)
    factor = (running_var + eps).rsqrt()
    normal = (input - running_mean.view(shape)) * factor.view(shape)
    if weight is not None:
        normal = normal * weight.view(shape)
    if bias is not None:
        normal = normal + bias.view(shape)
    return normal


def _of_channels(input: Tensor) -> tuple[int, ...]:
    """Return the shape that broadcasts one number for each channel over [B, channels, ...]."""
    trailing = [1] * (input.dim() - 2)
    return (1, -1, *trailing)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divide by the root mean square over the last axes, and multiply by the weight."""
    axes = tuple(range(-len(normalized_shape), 0))
    least = torch.finfo(input.dtype).eps if eps is None else eps
    mean = input.square().mean(axes, keepdim=True)
    normal = input * (mean + least).rsqrt()
    return normal if weight is None else normal * weight


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Multiply negative values by a slope: one for all channels, or one for each channel."""
    shape = _of_channels(input) if weight.numel() > 1 else ()
    return torch.where(input > 0, input, input * weight.reshape(shape))


def bilinear(
    first: Tensor,
    second: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Return first @ weight[k] @ second for each output k, plus the bias."""
    half = torch.tensordot(first, weight, ([-1], [1]))
    formed: Tensor = (half * second[..., None, :]).sum(-1)
    return formed if bias is None else formed + bias


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return the weights with direction v and norm g; one norm for each index of axis `dim`, or one in all for -1."""
    axes = list(range(v.dim()))
    if dim != -1:
        axes.remove(dim % v.dim())
    length = v.square().sum(axes, keepdim=True).sqrt()
    return v * (g / length)


# ---- recurrent layers, unrolled over a public number of steps

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]


def _lstm_step(inner: Tensor, outer: Tensor, state: State) -> State:
    i, f, g, o = (inner + outer).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru_step(inner: Tensor, outer: Tensor, state: State) -> State:
    r, z, n = inner.chunk(3, -1)
    hr, hz, hn = outer.chunk(3, -1)
    update = (z + hz).sigmoid()
    new = (n + (r + hr).sigmoid() * hn).tanh()
    return (new + update * (state[0] - new),)


def _tanh_step(inner: Tensor, outer: Tensor, state: State) -> State:
    return ((inner + outer).tanh(),)


def _relu_step(inner: Tensor, outer: Tensor, state: State) -> State:
    return ((inner + outer).relu(),)


def _unrolled(step: Cell, states: int) -> Callable[..., tuple[Tensor, ...]]:
    """Return a replacement for a recurrent layer with this many states (1, or 2 for an LSTM), as a loop over time."""

    def run(input: Tensor, hx: Any, params: Any, *options: Any) -> tuple[Tensor, ...]:
        is_packed = isinstance(hx, Tensor) and not hx.is_floating_point()  # sizes of batches
        if is_packed or not isinstance(params, list | tuple) or len(options) != 6:
            raise ByValue(
                "a packed sequence, whose form follows lengths: pad to one length, and mask"
            )
        has_biases, layers, dropout, training, bidirectional, batch_first = options
        begin: State = tuple(hx) if states > 1 else (hx,)
        directions = 2 if bidirectional else 1
        each = 4 if has_biases else 2
        if len(params) != each * layers * directions:
            raise ByValue("a recurrent layer with projections")
        rows = input.transpose(0, 1) if batch_first else input
        ends: list[State] = []
        for layer in range(layers):
            outputs: list[Tensor] = []
            for direction in range(directions):
                k = layer * directions + direction
                own = params[k * each : (k + 1) * each]
                state = tuple(one[k] for one in begin)
                output, end = _over_time(step, rows, state, own, backwards=direction == 1)
                outputs.append(output)
                ends.append(end)
            rows = torch.cat(outputs, -1) if bidirectional else outputs[0]
            is_last = layer + 1 == layers
            if dropout and training and not is_last:
                rows = F.dropout(rows, dropout)
        final: list[Tensor] = []
        for i in range(states):
            final.append(torch.stack([end[i] for end in ends]))
        outputs_in_order = rows.transpose(0, 1) if batch_first else rows
        return (outputs_in_order, *final)

    return run


def _over_time(
    step: Cell,
    rows: Tensor,
    state: State,
    weights: Sequence[Tensor],
    *,
    backwards: bool,
) -> tuple[Tensor, State]:
    """Return outputs [T, B, H] of one layer in one direction, and its last state."""
    w_in, w_hidden, *biases = weights
    inner_bias, hidden_bias = biases or (None, None)
    parts = list(F.linear(rows, w_in, inner_bias).unbind(0))
    if backwards:
        parts.reverse()
    outputs: list[Tensor] = []
    for part in parts:
        hidden = F.linear(state[0], w_hidden, hidden_bias)
        state = step(part, hidden, state)
        outputs.append(state[0])
    if backwards:
        outputs.reverse()
    return torch.stack(outputs), state


def _cell(step: Cell, states: int) -> Callable[..., Any]:
    """Return a replacement for one step of a recurrent layer with this many states."""

    def run(
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Any = None,
        b_hh: Any = None,
    ) -> Any:
        state: State = tuple(hx) if states > 1 else (hx,)
        inner = F.linear(input, w_ih, b_ih)
        hidden = F.linear(state[0], w_hh, b_hh)
        after = step(inner, hidden, state)
        return after if states > 1 else after[0]

    return run


_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.embedding: embedding,
    torch.embedding: _table,
    F.embedding_bag: embedding_bag,
    torch.gather: gather,
    Tensor.gather: gather,
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: _heads,
    F.instance_norm: instance_norm,
    F.batch_norm: batch_norm,
    F.rms_norm: rms_norm,
    F.prelu: prelu,
    F.bilinear: bilinear,
    torch._weight_norm: weight_norm,
    torch.lstm: _unrolled(_lstm_step, 2),
    torch.gru: _unrolled(_gru_step, 1),
    torch.rnn_tanh: _unrolled(_tanh_step, 1),
    torch.rnn_relu: _unrolled(_relu_step, 1),
    torch.lstm_cell: _cell(_lstm_step, 2),
    torch.gru_cell: _cell(_gru_step, 1),
    torch.rnn_tanh_cell: _cell(_tanh_step, 1),
    torch.rnn_relu_cell: _cell(_relu_step, 1),
}
