"""Networks for texts (5 words of 12), series (5 steps of 6 numbers) and columns (6 numbers), 3 classes out."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WORDS, STEPS, WIDTH = 12, 5, 8


class TextLSTM(nn.Module):
    """The last hidden state of an LSTM over embedded words."""

    def __init__(self, layers=1, both=False):
        super().__init__()
        self.table = nn.Embedding(WORDS, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, 4, num_layers=layers, bidirectional=both, batch_first=True)
        self.head = nn.Linear(4 * (1 + both), 3)

    def forward(self, x):
        _, (hidden, _) = self.lstm(self.table(x))
        return self.head(
            torch.cat([hidden[-2], hidden[-1]], 1) if self.lstm.bidirectional else hidden[-1]
        )


class SeriesGRU(nn.Module):
    """A GRU over numbers; with `batch_first` forgotten it runs over the examples."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.gru, self.head = nn.GRU(6, 4, batch_first=batch_first), nn.Linear(4, 3)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1, :])


class Packed(nn.Module):
    """Padded texts, packed by their lengths."""

    def __init__(self):
        super().__init__()
        self.table, self.gru = nn.Embedding(WORDS, 6, padding_idx=0), nn.GRU(6, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        lengths = (x != 0).sum(1).clamp(min=1).cpu()
        out, _ = self.gru(
            pack_padded_sequence(self.table(x), lengths, batch_first=True, enforce_sorted=False)
        )
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        return self.head(out.sum(1) / lengths[:, None])


class Stateful(nn.Module):
    """Keeps its hidden state from one batch to the next."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.hidden = nn.GRUCell(6, 4), nn.Linear(4, 3), None

    def forward(self, x):
        hidden = self.hidden
        if hidden is None or len(hidden) != len(x):
            hidden = torch.zeros(len(x), 4)
        for t in range(x.shape[1]):
            hidden = self.cell(x[:, t], hidden)
        self.hidden = hidden.detach()
        return self.head(hidden)


class PositionalEncoding(nn.Module):
    """The table of PyTorch's tutorial, a persistent buffer."""

    def __init__(self, length=16):
        super().__init__()
        self.dropout = nn.Dropout(0.0)
        at = torch.arange(length)[:, None] * torch.exp(
            torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH)
        )
        pe = torch.zeros(1, length, WIDTH)
        pe[0, :, 0::2], pe[0, :, 1::2] = torch.sin(at), torch.cos(at)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)]
        return self.dropout(x)


class Encoder(nn.Module):
    """nn.TransformerEncoder over embedded words, a padding mask, mean of the words."""

    def __init__(self, masked=False):
        super().__init__()
        self.table, self.positions, self.masked = (
            nn.Embedding(WORDS, WIDTH),
            PositionalEncoding(),
            masked,
        )
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        mask = (x == 0) & (torch.arange(x.shape[1]) > 0) if self.masked else None
        return self.head(
            self.encoder(self.positions(self.table(x)), src_key_padding_mask=mask).mean(1)
        )


@dataclass
class Answer:
    """As Hugging Face's outputs."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None
    hidden_states: tuple | None = None


class SelfAttention(nn.Module):
    def __init__(self, causal=0, rotary=False):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Linear(WIDTH, WIDTH, bias=not rotary) for _ in range(4)
        )
        self.rotary = rotary
        if causal:
            self.register_buffer(
                "bias", torch.ones(causal, causal).tril().view(1, 1, causal, causal)
            )
        self.causal = causal
        if rotary:
            self.register_buffer(
                "inv_freq", 1.0 / 10000 ** (torch.arange(0, 4, 2).float() / 4), persistent=False
            )

    def split(self, x):
        return x.view(*x.shape[:2], 2, WIDTH // 2).transpose(1, 2)

    def turned(self, x):
        angle = torch.outer(torch.arange(x.shape[2]).float(), self.inv_freq)
        cos, sin = torch.cat([angle, angle], 1).cos(), torch.cat([angle, angle], 1).sin()
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x, keep=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.rotary:
            q, k = self.turned(q), self.turned(k)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / 2.0
            if self.causal:
                n = x.shape[1]
                scores = torch.where(
                    self.bias[:, :, :n, :n] > 0, scores, torch.finfo(scores.dtype).min
                )
            if keep is not None:
                scores = scores + (1.0 - keep[:, None, None, :].float()) * -1e4
            out = scores.softmax(-1) @ v
        return self.o(out.transpose(1, 2).contiguous().view(x.shape))


class Bert(nn.Module):
    """Hugging Face's BERT for classification: three tables, a mask from the padding, a dataclass with `.logits`."""

    def __init__(self):
        super().__init__()
        self.words, self.at, self.kinds = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(16, WIDTH),
            nn.Embedding(2, WIDTH),
        )
        self.register_buffer("position_ids", torch.arange(16)[None])
        self.norm, self.attention, self.n1 = (
            nn.LayerNorm(WIDTH),
            SelfAttention(),
            nn.LayerNorm(WIDTH),
        )
        self.up, self.out, self.n2 = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), nn.LayerNorm(WIDTH)
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, input_ids, attention_mask=None):
        attention_mask = input_ids > 0 if attention_mask is None else attention_mask
        x = self.words(input_ids) + self.at(self.position_ids[:, : input_ids.shape[1]])
        x = self.norm(x + self.kinds(torch.zeros_like(input_ids)))
        x = self.n1(x + self.attention(x, attention_mask))
        x = self.n2(x + self.out(F.gelu(self.up(x))))
        return Answer(self.classifier(torch.tanh(self.pooler(x[:, 0]))), hidden_states=(x,))


class GPT(nn.Module):
    """nanoGPT: a causal mask in a buffer, the head tied to the table of words; a word a place."""

    def __init__(self, tied=True):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH)
        self.n1, self.attention, self.n2 = (
            nn.LayerNorm(WIDTH),
            SelfAttention(causal=16),
            nn.LayerNorm(WIDTH),
        )
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.GELU(approximate="tanh"), nn.Linear(16, WIDTH)
        )
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, x):
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        x = x + self.attention(self.n1(x))
        return self.lm_head(x + self.mlp(self.n2(x))).transpose(1, 2)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(
            x.dtype
        )


class Llama(nn.Module):
    """Rotary positions (a buffer that is not stored), RMS norm, gated layers, fused attention."""

    def __init__(self):
        super().__init__()
        self.table, self.n1, self.n2, self.norm = (
            nn.Embedding(WORDS, WIDTH),
            RMSNorm(),
            RMSNorm(),
            RMSNorm(),
        )
        self.attention = SelfAttention(rotary=True)
        self.gate, self.up, self.down = (
            nn.Linear(*s, bias=False) for s in ((WIDTH, 16), (WIDTH, 16), (16, WIDTH))
        )
        self.head = nn.Linear(WIDTH, 3, bias=False)

    def forward(self, x):
        x = self.table(x)
        x = x + self.attention(self.n1(x))
        y = self.n2(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return (self.head(self.norm(x)[:, -1]),)


class LoRA(nn.Module):
    """A frozen dense layer and what is added to it, of rank 2."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + (x @ self.a.T) @ self.b.T * 2.0


def adapted():
    """A frozen BERT of which two layers have adapters, and the classifier is trained."""
    model = Bert().requires_grad_(False)
    model.attention.q, model.attention.v = LoRA(model.attention.q), LoRA(model.attention.v)
    model.classifier.requires_grad_(True)
    return model


class Bag(nn.Module):
    """fastText: the mean of words."""

    def __init__(self, sparse):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, 6, sparse=sparse), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.bag(x))


class TCN(nn.Module):
    """Dilated causal convolutions with weight normalisation, the other way of it (a hook)."""

    def __init__(self):
        super().__init__()
        self.c1 = nn.utils.weight_norm(nn.Conv1d(6, 4, 2, padding=1))
        self.c2, self.head = (
            nn.utils.weight_norm(nn.Conv1d(4, 4, 2, padding=2, dilation=2)),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        x = x.transpose(1, 2)
        x = F.relu(self.c1(x)[:, :, :-1])
        return self.head(F.relu(self.c2(x)[:, :, :-2])[:, :, -1])


class ECG(nn.Module):
    """One-dimensional convolutions with group normalisation."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(5, 4, 3, padding="same"), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool1d(2)
        )
        self.head = nn.LazyLinear(3)

    def forward(self, x):
        return self.head(self.net(x).flatten(1))


class Columns(nn.Module):
    """Wide and deep: two columns are categories among numbers, each with a table."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(4, 3), nn.Embedding(4, 3)])
        self.deep = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
        self.wide = nn.Linear(4, 3)

    def forward(self, x):
        numbers = x[:, :4]
        kinds = [table(x[:, 4 + i].long().clamp(0, 3)) for i, table in enumerate(self.tables)]
        return self.deep(torch.cat([numbers, *kinds], 1)) + self.wide(numbers)


class FeatureTokens(nn.Module):
    """FT-Transformer: a token a column."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(6, WIDTH)),
            nn.Parameter(torch.randn(6, WIDTH)),
        )
        self.cls = nn.Parameter(torch.randn(WIDTH))
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 2, 16, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

    def forward(self, x):
        tokens = torch.cat(
            [self.cls.expand(len(x), 1, -1), x[:, :, None] * self.weight + self.bias], 1
        )
        return self.head(self.block(tokens)[:, 0])


class Graph(nn.Module):
    """Two graph convolutions over the steps, by similarity."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.head = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 3)

    def forward(self, x):
        near = torch.einsum("btc,bsc->bts", x, x).softmax(-1)
        return self.head(torch.bmm(near, self.w2(F.relu(torch.bmm(near, self.w1(x))))).amax(1))
