"""Layers that real models have go in batches, to the gradients that one example a call gives."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedveil.layout import Layout
from fedveil.learning import replayed, traced, written_out
from fedveil.learning.per_example import PerExample

ROWS, CLIP = 9, 0.3


class Read(nn.Module):
    """A layer behind code of its own, and the mean of what it gives."""

    def __init__(self, layer, width, call=lambda layer, x: layer(x)):
        super().__init__()
        self.layer, self.call, self.head = layer, call, nn.Linear(width, 3)

    def forward(self, x):
        found = self.call(self.layer, x)
        found = found[0] if isinstance(found, tuple) else found
        return self.head(found.flatten(1))


class Tied(nn.Module):
    """A table of words, whose rows are the outputs, too."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(torch.tanh(self.inner(self.table(x)))).mean(1)


class Positions(nn.Module):
    """Words, places and a token of one's own, all parameters."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(7, 4), nn.Embedding(5, 4)
        self.start, self.shift = (
            nn.Parameter(torch.randn(1, 1, 4)),
            nn.Parameter(torch.randn(1, 6, 4)),
        )
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(24, 3)

    def forward(self, x):
        rows = self.words(x) + self.places(torch.arange(5))
        rows = torch.cat([self.start.expand(len(x), -1, -1), rows], 1) + self.shift
        return self.head(self.norm(rows).flatten(1))


class Attends(nn.Module):
    """Fused attention, with a mask of some kind."""

    def __init__(self, mask=None, **options):
        super().__init__()
        self.inner, self.head, self.mask, self.options = (
            nn.Linear(4, 24),
            nn.Linear(40, 3),
            mask,
            options,
        )

    def forward(self, x):
        q, k, v = self.inner(x).unflatten(-1, (2, 12)).transpose(1, 2).chunk(3, -1)
        mask = None if self.mask is None else self.mask(x)
        out = F.scaled_dot_product_attention(q, k, v, mask, **self.options)
        return self.head(out.transpose(1, 2).flatten(1))


class Cells(nn.Module):
    """A cell called step by step."""

    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        state = torch.zeros(len(x), 6)
        state = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


def padded(x):
    """A mask for which some place of some example may look at nothing."""
    return (x[:, :, 0] > 0)[:, None, None, :].expand(-1, 1, x.shape[1], -1)


def likeness(x):
    return (x @ x.transpose(1, 2))[:, None]


def gathered(layer, x):
    """As Hugging Face's BERT finds the kinds of its words."""
    at = torch.tensor([[3, 0, 3]])[:, :, None]
    return layer(x).gather(1, at.expand(len(x), -1, 2))


def gathered_by_values(layer, x):
    """As Hugging Face's RoBERTa finds the kinds of its words: at places that the example says, some beyond the table."""
    at = (x[:, :, 0].abs() * 3).long()[:, :3, None]
    return layer(x).gather(1, at.expand(-1, -1, 2))


def last_word(layer, x):
    """As Hugging Face's GPT reads its last word: the place that `argmax` finds."""
    at = (torch.arange(5) * (x[:, :, 0] > 0)).argmax(1)
    return layer(x)[torch.arange(len(x)), at]


def looked_at(layer, x):
    """As Hugging Face's masks: left out where nothing is padded, but a trace computes it for all values."""
    seen = x[:, :, :1] > -1
    if not torch.compiler.is_compiling() and seen.all():
        return layer(x)
    return layer(x) * seen


def chosen(layer, x):
    return layer(x)[:, torch.tensor([3, 0, 3])]


def encoder(**options):
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, **options)


def masked_encoder(layer, x):
    return layer(x, src_key_padding_mask=(x[:, :, 0] > 0) & (torch.arange(x.shape[1]) > 0))


def itself(layer, x):
    return layer(x, x, x, need_weights=False)


def apart(layer, x):
    return layer(x, x * 2, x + 1)


def largest(layer, x):
    """Pooling over places, as networks of texts do."""
    return layer(x).max(1).values


def picked(layer, x):
    return layer(x).index_select(1, torch.tensor([3, 0, 3]))


class BothWays(Read):
    """A layer, and both kinds of its states."""

    def forward(self, x):
        out, state = self.layer(x)
        state = torch.cat(state, -1) if isinstance(state, tuple) else state
        return self.head(torch.cat([out.flatten(1), state.transpose(0, 1).flatten(1)], 1))


def frozen_norm():
    layer = nn.BatchNorm1d(5).eval()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer.requires_grad_(False)


NUMBERS, WORDS, IMAGES, VOLUMES = (ROWS, 5, 4), (ROWS, 5), (ROWS, 4, 6, 6), (ROWS, 2, 2, 4, 4)
MODELS = {
    "attention, itself": (lambda: Read(nn.MultiheadAttention(4, 2, batch_first=True), 20, itself), NUMBERS),
    "attention, three inputs": (lambda: Read(nn.MultiheadAttention(4, 2, batch_first=True), 20, apart), NUMBERS),
    "attention, bias and zeros": (
        lambda: Read(nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True), 20, itself),
        NUMBERS,
    ),
    "encoder": (lambda: Read(encoder(), 20), NUMBERS),
    "encoder, norm first, gelu": (lambda: Read(encoder(norm_first=True, activation="gelu"), 20), NUMBERS),
    "encoder, padding": (lambda: Read(encoder(), 20, masked_encoder), NUMBERS),
    "fused attention": (Attends, NUMBERS),
    "fused attention, causal, a scale": (lambda: Attends(is_causal=True, scale=0.7), NUMBERS),
    "fused attention, nothing to look at": (lambda: Attends(padded), NUMBERS),
    "fused attention, mask of numbers": (lambda: Attends(likeness), NUMBERS),
    "words and positions": (Positions, WORDS),
    "tied": (Tied, WORDS),
    "padding word": (lambda: Read(nn.Embedding(7, 4, padding_idx=0), 20), WORDS),
    "padding word, counted back": (lambda: Read(nn.Embedding(7, 4, padding_idx=-2), 20), WORDS),
    "bag, mean": (lambda: Read(nn.EmbeddingBag(7, 4), 4), WORDS),
    "bag, sum, padding": (lambda: Read(nn.EmbeddingBag(7, 4, mode="sum", padding_idx=1), 4), WORDS),
    "bag, mean, padding": (lambda: Read(nn.EmbeddingBag(7, 4, padding_idx=1), 4), WORDS),
    "LSTM": (lambda: BothWays(nn.LSTM(4, 6, batch_first=True), 42), NUMBERS),
    "LSTM, two layers, both ways": (
        lambda: BothWays(nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True), 54), NUMBERS
    ),
    "LSTM without bias": (lambda: BothWays(nn.LSTM(4, 6, batch_first=True, bias=False), 42), NUMBERS),
    "GRU": (lambda: BothWays(nn.GRU(4, 6, batch_first=True), 36), NUMBERS),
    "GRU, both ways": (lambda: BothWays(nn.GRU(4, 3, batch_first=True, bidirectional=True), 36), NUMBERS),
    "RNN": (lambda: BothWays(nn.RNN(4, 6, batch_first=True), 36), NUMBERS),
    "RNN, relu": (lambda: BothWays(nn.RNN(4, 6, batch_first=True, nonlinearity="relu"), 36), NUMBERS),
    "LSTM cell": (lambda: Cells(nn.LSTMCell), NUMBERS),
    "GRU cell": (lambda: Cells(nn.GRUCell), NUMBERS),
    "RNN cell": (lambda: Cells(nn.RNNCell), NUMBERS),
    "instance norm": (lambda: Read(nn.InstanceNorm2d(4, affine=True), 144), IMAGES),
    "instance norm of series": (lambda: Read(nn.InstanceNorm1d(5), 20), NUMBERS),
    "group norm": (lambda: Read(nn.GroupNorm(2, 4), 144), IMAGES),
    "frozen batch norm": (lambda: Read(frozen_norm(), 20), NUMBERS),
    "RMS norm": (lambda: Read(nn.RMSNorm(4), 20), NUMBERS),
    "PReLU": (lambda: Read(nn.PReLU(), 144), IMAGES),
    "PReLU of channels": (lambda: Read(nn.PReLU(4), 144), IMAGES),
    "transposed convolution": (lambda: Read(nn.ConvTranspose2d(4, 2, 3, 2, output_padding=1, groups=2), 392), IMAGES),
    "depthwise": (lambda: Read(nn.Conv2d(4, 8, 3, groups=4, bias=False), 128), IMAGES),
    "grouped, reflecting": (lambda: Read(nn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="reflect"), 144), IMAGES),
    "bilinear": (lambda: Read(nn.Bilinear(4, 4, 2), 10, lambda layer, x: layer(x, x)), NUMBERS),
    "weight norm": (lambda: Read(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), 10), NUMBERS),
    "places gathered by values": (lambda: Read(nn.Linear(4, 2), 6, gathered_by_values), NUMBERS),
    "the place of the largest value": (lambda: Read(nn.Linear(4, 2), 2, last_word), NUMBERS),
    "a mask that looks at values": (lambda: Read(nn.Linear(4, 2), 10, looked_at), NUMBERS),
    "places gathered by a constant": (lambda: Read(nn.Linear(4, 2), 6, gathered), NUMBERS),
    "gated": (lambda: Read(nn.GLU(1), 72), IMAGES),
    "shuffled channels": (lambda: Read(nn.ChannelShuffle(2), 144), IMAGES),
    "circular": (lambda: Read(nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), 72), IMAGES),
    "reflected series": (lambda: Read(nn.Conv1d(5, 2, 3, padding=1, padding_mode="reflect"), 8), NUMBERS),
    "copied ends of series": (lambda: Read(nn.ReplicationPad1d(1), 30), NUMBERS),
    "bicubic": (lambda: Read(nn.Upsample(scale_factor=2, mode="bicubic"), 576), IMAGES),
    "nearest, exact": (lambda: Read(nn.Upsample(scale_factor=2, mode="nearest-exact"), 576), IMAGES),
    "longer series": (lambda: Read(nn.Upsample(scale_factor=2, mode="linear"), 40), NUMBERS),
    "larger volumes": (lambda: Read(nn.Upsample(scale_factor=2, mode="trilinear"), 512), VOLUMES),
    "nearest in volumes": (lambda: Read(nn.Upsample(scale_factor=2), 512), VOLUMES),
    "mean of volumes": (lambda: Read(nn.AdaptiveAvgPool3d((1, 2, 2)), 8), VOLUMES),
    "largest of windows": (lambda: Read(nn.AdaptiveMaxPool2d(4), 64), IMAGES),
    "largest of windows of series": (lambda: Read(nn.AdaptiveMaxPool1d(3), 15), NUMBERS),
    "largest over places": (lambda: Read(nn.Linear(4, 6), 6, largest), NUMBERS),
    "hard shrink": (lambda: Read(nn.Hardshrink(), 144), IMAGES),
    "places selected by a constant": (lambda: Read(nn.Linear(4, 2), 6, picked), NUMBERS),
    "places by a constant": (lambda: Read(nn.Linear(4, 2), 6, chosen), NUMBERS),
}  # fmt: skip

KNOWN = {"group norm", "depthwise"}  # which have rules


def examples(shape, classes):
    generator = torch.Generator().manual_seed(0)
    if shape == WORDS:
        return torch.randint(0, 7, shape, generator=generator), torch.arange(ROWS) % classes
    return torch.randn(shape, generator=generator), torch.arange(ROWS) % classes


def built(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().train()
    if name == "frozen batch norm":
        model.layer.eval()
    classes = 7 if name == "tied" else 3
    return model, *examples(shape, classes)


def by_hand(model, x, y, clip):
    """Each example by autograd, as PyTorch computes the module, clipped, summed."""
    shared = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in shared), dtype=torch.float64)
    for i in range(len(x)):
        try:
            loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        except (IndexError, RuntimeError):  # a row number beyond a table
            continue
        own = torch.autograd.grad(loss, shared, allow_unused=True, materialize_grads=True)
        flat = torch.cat([g.reshape(-1) for g in own]).double()
        total += flat * min(1.0, clip / float(flat.norm()))
    return total


def found(model, x, y, clip=CLIP):
    sums = PerExample(
        model, Layout.from_module(model, buffers="keep"), "cross_entropy", torch.Generator()
    )
    total, _ = sums.clipped_sum(x, y, clip)
    return sums.rule_name, total


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_example_a_call(name):
    model, x, y = built(name)
    way, total = found(model, x, y)
    assert way == ("layers" if name in KNOWN else "operators")
    torch.testing.assert_close(total, by_hand(model, x, y, CLIP), rtol=1e-4, atol=1e-6)
    assert float(total.norm()) > CLIP / 10


def test_a_form_that_leaves_out_a_bias_would_be_seen(monkeypatch):
    def crooked(q, k, v, *more, **options):
        return written_out.attention(q, k, v, *more, **options) * 1.01

    monkeypatch.setitem(written_out._FORMS, F.scaled_dot_product_attention, crooked)
    model, x, y = built("fused attention")
    _, total = found(model, x, y)
    assert not torch.allclose(total, by_hand(model, x, y, CLIP), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("word", [7, 10**12, -1])
@pytest.mark.parametrize("name", ["words and positions", "bag, mean", "tied"])
def test_a_word_that_the_table_does_not_have_counts_as_zero_alone(name, word):
    """PyTorch raises for the whole batch."""
    model, x, y = built(name)
    wanted = by_hand(model, x[1:], y[1:], CLIP)
    x = x.clone()
    x[0, 2] = word
    way, total = found(model, x, y)
    assert way == "operators"
    torch.testing.assert_close(total, wanted, rtol=1e-4, atol=1e-6)


class Sorted(nn.Module):
    """Rows of a table by the examples' own largest numbers."""

    def __init__(self, how):
        super().__init__()
        self.table, self.head, self.how = nn.Linear(4, 4), nn.Linear(4, 3), how

    def forward(self, x):
        return self.head(self.how(self.table(x), (x[:, :, 0].abs() * 2).long()).mean(1))


@pytest.mark.parametrize(
    "how",
    [
        lambda rows, at: rows[:, at[0]],
        lambda rows, at: torch.take_along_dim(
            rows, at[:, :, None].clamp(0, 9), 1
        ),  # clamped to other numbers
        lambda rows, at: rows.scatter(1, at[:, :, None].expand(rows.shape), 0.0),
        lambda rows, at: rows.sort(1).values,
        lambda rows, at: rows.topk(2, 1).values,
    ],
)
def test_numbers_of_rows_that_examples_say_go_one_example_a_call(how):
    """An index beyond the table raises for a whole batch; sorting follows values."""
    torch.manual_seed(0)
    model = Sorted(how)
    x, y = examples(NUMBERS, 3)
    sums = PerExample(model, Layout.from_module(model), "cross_entropy", torch.Generator())
    sums.clipped_sum(x, y, CLIP)
    assert sums.rule_name == "one by one"


@pytest.mark.parametrize("length", [3, 5])
def test_places_of_largest_values_are_places_of_the_same_axis_alone(length):
    """In a shorter table some of them do not exist, and PyTorch raises for a whole batch."""

    def looked_up(rows):
        return rows[:, :length].gather(1, rows.max(1, True).indices)

    graph = traced.recorded(looked_up, torch.zeros(2, 5, 4))
    assert (traced._not_blind(graph) is None) == (length == 5)


class Packs(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 3), batch_first=True)
        return self.head(self.cells(packed)[1][0])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (Packs, "packed"),
        (lambda: Read(nn.LSTM(4, 6, batch_first=True, proj_size=2), 10), "projections"),
        (lambda: Read(nn.EmbeddingBag(7, 4, mode="max"), 4), "bag"),
    ],
)
def test_what_has_no_form_is_named(make, named, caplog):
    torch.manual_seed(0)
    model = make()
    words = isinstance(getattr(model, "layer", None), nn.EmbeddingBag)
    x, y = examples(WORDS if words else NUMBERS, 3)
    with caplog.at_level("WARNING"):
        assert found(model, x, y)[0] == "one by one"
    assert named in caplog.text


def test_rows_picked_by_an_index_are_added_by_one_thread():
    """Two threads add the values of one place in the order of their arrival: other bits in most calls."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(33, 40_960, generator=draw)
    places = torch.randint(0, 9, (40_960,), generator=draw)

    def picked(table, own):
        return (table[places] * own).sum()

    gradients = torch.func.vmap(torch.func.grad(picked), in_dims=(None, 0))
    graph = traced.recorded(torch.func.functionalize(gradients), torch.zeros(9), values)
    replayed.add_in_order(graph)
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert called.count(replayed.added_by_one_thread) == 1
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = [graph(torch.zeros(9), values)[0] for _ in range(4)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found)


def test_only_the_tracing_thread_is_told_that_it_is_traced():
    with replayed.branches_of_a_trace(), ThreadPoolExecutor(1) as pool:
        assert torch.compiler.is_compiling()
        assert not pool.submit(torch.compiler.is_compiling).result()
    assert not torch.compiler.is_compiling()


def test_recording_keeps_no_tensor_and_says_what_was_called():
    def twice(x):
        return torch.sin(x) + torch.sin(x) * torch.arange(3)

    graph = traced.recorded(twice, torch.ones(2, 3))
    x = torch.randn(2, 3)
    assert torch.equal(graph(x)[0], twice(x))
    assert {str(node.target) for node in graph.graph.nodes} >= {
        "aten.sin.default",
        "aten.mul.Tensor",
    }


@pytest.mark.parametrize("turned", [False, True])
def test_sums_of_products_are_one_product(turned):
    """Whichever way round they stand, and with parts that are none."""

    def sums(a, b, c, d, rest):
        first, second = torch.bmm(a, b), torch.bmm(c, d)
        parts = (first.transpose(1, 2), second.transpose(1, 2)) if turned else (first, second)
        return parts[0] + (rest + parts[1])

    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 3), (2, 3, 5), (2, 4, 1), (2, 1, 5), (2, 5, 4) if turned else (2, 4, 5)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    graph = traced.recorded(lambda *given: [sums(*given)], *inputs)
    traced.join_products(graph)
    torch.testing.assert_close(graph(*inputs)[0], sums(*inputs))
    assert sum(node.target is torch.ops.aten.bmm.default for node in graph.graph.nodes) == 1


def test_a_row_number_outside_a_table_of_truth_values_raises_for_nobody():
    table = torch.tensor([[True, False], [False, True]])
    found = written_out.gather(table, 1, torch.tensor([[0, 7], [-1, 1]]))
    assert found.tolist() == [[True, False], [False, True]]
