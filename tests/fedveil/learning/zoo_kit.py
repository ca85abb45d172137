"""The zoo: networks as people write them, what becomes of each, and the page that says so."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import zoo_images as images
import zoo_sequences as sequences
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fedveil as fv

PAGE = Path(__file__).parents[3] / "docs" / "networks.md"
TRAINS = ""
KEEP = fv.Shared(buffers="keep")


class Lightning(nn.Module):
    """A Lightning module's form: hyperparameters, steps and optimisers beside the forward method."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.hparams = {"lr": lr}
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(8, 3)
        )
        self.criterion = nn.CrossEntropyLoss()
        self.logged = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.logged.append(batch_idx)
        return self.criterion(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


class Straight(torch.autograd.Function):
    """Signs on the way forwards, and the identity on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Binary(nn.Module):
    """A custom autograd function between two layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(Straight.apply(self.a(x)))


class InPlace(nn.Module):
    """Operations that overwrite what they are given."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = x.clone()
        x[:, 0] = 1.0
        x = self.a(x)
        x.mul_(0.5)
        x += 0.1
        return self.b(x.relu_())


class Shared(nn.Module):
    """One layer that is used three times."""

    def __init__(self):
        super().__init__()
        self.into, self.step, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.into(x)
        for _ in range(3):
            x = x + torch.tanh(self.step(x))
        return self.out(x)


class Checkpointed(Shared):
    """Works its middle out twice, to save memory."""

    def forward(self, x):
        x = checkpoint(lambda z: torch.tanh(self.step(z)), self.into(x), use_reentrant=False)
        return self.out(x)


class Experts(nn.Module):
    """A mixture of experts: the best two of three for each example."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x):
        best, which = self.gate(x).topk(2, dim=1)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = every.gather(1, which[:, :, None].expand(-1, -1, 3))
        return (best.softmax(1)[:, :, None] * chosen).sum(1)


class Pairs(nn.Module):
    """Two towers for two halves of an example, and a dictionary with `logits`."""

    def __init__(self):
        super().__init__()
        self.tower, self.head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(8, 3)

    def forward(self, x):
        left, right = x.chunk(2, 1)
        return {
            "logits": self.head(torch.cat([self.tower(left), self.tower(right)], 1)),
            "features": left,
        }


class Cast(nn.Module):
    """Half precision inside: bfloat16 layers between float32 ones."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = F.relu(self.a(x))
        return self.b(x.float())


class Mixed(nn.Module):
    """Two types of parameters, and a conversion between them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 3).double()

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).double())


class Centred(nn.Module):
    """Centres features by the batch, as contrastive networks do."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.a(x)
        return self.b(x - x.mean(0, keepdim=True))


def compiled_in_place():
    model = Shared()
    model.compile(backend="eager")
    return model


def pruned():
    from torch.nn.utils import prune

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    prune.l1_unstructured(model[0], "weight", 0.3)
    return model


def complex_layer():
    return nn.Sequential(nn.Linear(6, 3, dtype=torch.complex64))


def ready(model, x):
    """A lazy model that was called once."""
    model(x)
    return model


DRAWS = torch.Generator().manual_seed(0)
IMAGES = torch.rand(12, 3, 16, 16, generator=DRAWS)
WORDS = torch.randint(1, 12, (12, 5), generator=DRAWS)
SERIES = torch.randn(12, 5, 6, generator=DRAWS)
COLUMNS = torch.randn(12, 6, generator=DRAWS)
VOLUMES = torch.rand(12, 3, 4, 8, 8, generator=DRAWS)
CLASSES = torch.arange(12) % 3
PIXELS = torch.randint(0, 3, (12, 16, 16), generator=DRAWS)


@dataclass(frozen=True)
class Cell:
    """A network and what is expected of it.

    Attributes
    ----------
    name : str
        For the page.
    make : callable
        Builds it; weights follow the global seed.
    x, y : Tensor
        What it is trained on.
    plain, record : str
        "" if it trains, else a word of the refusal, of plain training and at record level.
    loss : Any
        As in `LocalTraining`.
    within : float
        How near plain training is to PyTorch's own, in absolute terms.
    options : dict
        Of `Federation`, for plain training.
    mended : bool
        Whether `mend` makes it one that trains at record level.
    compared : bool
        Whether PyTorch's own loop draws the same numbers.
    quick : bool
        Whether `make test` looks at it.
    alone : bool
        Whether record level takes one example a call.
    """

    name: str
    make: Callable[[], nn.Module]
    x: torch.Tensor = COLUMNS
    y: torch.Tensor = CLASSES
    plain: str = TRAINS
    record: str = TRAINS
    loss: Any = "cross_entropy"
    within: float = 1e-4
    options: dict[str, Any] | None = None
    mended: bool = False
    compared: bool = True
    quick: bool = False
    alone: bool = False


I, S = images, sequences
BATCH_NORM, IN_PLACE = "mixes the examples", "overwrites its input"
NORM = {"plain": "mend", "record": "mend"}
ZOO = [
    Cell("CNN of the first tutorials, `.view`", I.Quickstart, IMAGES, quick=True),
    Cell("VGG with BatchNorm", I.vgg, IMAGES, **NORM, mended=True),
    Cell(
        'VGG with BatchNorm, `buffers="keep"`',
        I.vgg,
        IMAGES,
        record="mend",
        options={"shared": KEEP},
    ),
    Cell(
        "VGG with GroupNorm, in-place ReLU",
        lambda: I.vgg(I.groups),
        IMAGES,
        record=IN_PLACE,
        mended=True,
    ),
    Cell("ResNet with BatchNorm", I.ResNet, IMAGES, **NORM, mended=True),
    Cell("ResNet with GroupNorm", lambda: I.ResNet(I.groups, False), IMAGES),
    Cell(
        "ResNet with frozen BatchNorm as buffers",
        lambda: I.ResNet(I.FrozenBatchNorm, False),
        IMAGES,
    ),
    Cell("DenseNet", I.DenseNet, IMAGES),
    Cell("MobileNet: depthwise, squeeze and excitation", I.MobileNet, IMAGES),
    Cell("ConvNeXt", I.ConvNeXt, IMAGES),
    Cell("ConvNeXt with stochastic depth", lambda: I.ConvNeXt(0.3), IMAGES, compared=False),
    Cell("ViT, attention written out", I.ViT, IMAGES),
    Cell("ViT, `nn.MultiheadAttention`", lambda: I.ViT(True), IMAGES),
    Cell("Swin: shifted windows, index in a buffer", I.Swin, IMAGES),
    Cell("MLP-Mixer", I.Mixer, IMAGES),
    Cell("GoogLeNet: named tuple with a second output", I.GoogLeNet, IMAGES),
    Cell("U-Net: transposed convolutions, InstanceNorm", I.UNet, IMAGES, PIXELS),
    Cell("FCN: dictionary with `out`", I.FCN, IMAGES, PIXELS),
    Cell(
        "Frozen backbone under `no_grad`, GroupNorm behind it",
        I.Frozen,
        IMAGES,
        record=IN_PLACE,
        mended=True,
        quick=True,
    ),
    Cell("Autoencoder, squared error", I.Autoencoder, IMAGES, IMAGES, loss=nn.MSELoss()),
    Cell(
        "Weight norm, a parametrisation",
        lambda: I.WeightNormed(nn.utils.parametrizations.weight_norm),
        IMAGES,
    ),
    Cell(
        "Spectral norm",
        lambda: I.WeightNormed(nn.utils.parametrizations.spectral_norm),
        IMAGES,
        plain="keep",
        record="keep",
    ),
    Cell(
        'Spectral norm, `buffers="keep"`',
        lambda: I.WeightNormed(nn.utils.parametrizations.spectral_norm),
        IMAGES,
        options={"shared": KEEP},
        record="keep",
    ),
    Cell("Convolutions of volumes", I.Volume, VOLUMES),
    Cell("Convolutions of series, a lazy head called once", lambda: ready(S.ECG(), SERIES), SERIES),
    Cell(
        "A lazy head that was never called",
        S.ECG,
        SERIES,
        plain="call it once",
        record="call it once",
    ),
    Cell("LSTM over words", S.TextLSTM, WORDS),
    Cell("LSTM of two layers, both directions", lambda: S.TextLSTM(2, True), WORDS),
    Cell("GRU over numbers", S.SeriesGRU, SERIES),
    Cell(
        "GRU without `batch_first`",
        lambda: S.SeriesGRU(False),
        SERIES,
        record="batch_first",
        quick=True,
    ),
    Cell("GRU over packed texts", S.Packed, WORDS, alone=True),
    Cell("GRU that keeps its state between batches", S.Stateful, SERIES, record="other examples"),
    Cell("Temporal convolutions, weight norm by a hook", S.TCN, SERIES),
    Cell("Transformer encoder, table of positions", S.Encoder, WORDS),
    Cell("Transformer encoder with a padding mask", lambda: S.Encoder(True), WORDS),
    Cell("BERT for classes: dataclass with `logits`", S.Bert, WORDS),
    Cell("BERT frozen, LoRA by hand", S.adapted, WORDS),
    Cell("GPT, a word a place, tied weights", S.GPT, WORDS, WORDS),
    Cell("GPT, untied", lambda: S.GPT(False), WORDS, WORDS),
    Cell("Llama: rotary positions, RMS norm, tuple", S.Llama, WORDS),
    Cell("fastText: bag of words", lambda: S.Bag(False), WORDS),
    Cell(
        "fastText, `sparse=True`",
        lambda: S.Bag(True),
        WORDS,
        record="sparse=True",
        mended=True,
        quick=True,
    ),
    Cell("Wide and deep: categories among numbers", S.Columns, COLUMNS),
    Cell("FT-Transformer: a token a column", S.FeatureTokens, COLUMNS),
    Cell("Graph convolutions", S.Graph, SERIES),
    Cell("Lightning module", Lightning, record=IN_PLACE, mended=True),
    Cell("Custom autograd function", Binary, alone=True),
    Cell("In-place operations", InPlace),
    Cell("One layer used three times", Shared),
    Cell("Checkpointed activations", Checkpointed),
    Cell("Mixture of experts, the best two", Experts, alone=True),
    Cell("Two towers, dictionary with `logits`", Pairs),
    Cell(
        "Dropout",
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
        compared=False,
    ),
    Cell("autocast inside", Cast, within=1e-3),
    Cell(
        "Parameters in bfloat16",
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16(),
        within=3e-3,
    ),
    Cell(
        "Parameters in float64",
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(),
    ),
    Cell("float32 backbone, frozen, float64 head", Mixed),
    Cell(
        "Stored channels last",
        lambda: I.ResNet(I.groups, False).to(memory_format=torch.channels_last),
        IMAGES,
    ),
    Cell("Features centred by the batch", Centred, record="other examples"),
    Cell("`model.compile()`", compiled_in_place),
    Cell("`torch.compile(model)`", lambda: torch.compile(Shared(), backend="eager")),
    Cell(
        "`nn.DataParallel(model)`",
        lambda: nn.DataParallel(Shared()),
        plain="model.module",
        record="model.module",
    ),
    Cell(
        "`torch.jit.script(model)`",
        lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 3))),
        plain="scripted",
        record="scripted",
    ),
    Cell("Pruned by masks", pruned, plain="persistent=False", record="persistent=False"),
    Cell(
        'Pruned by masks, `buffers="keep"`',
        pruned,
        options={"shared": KEEP},
        record="persistent=False",
    ),
    Cell("Complex weights", complex_layer, plain="complex", record="complex"),
]


HEAD = """# Networks as people write them

FedVeil trains a network with the result of plain PyTorch (same seed and batches, float32: within 1e-4, exceptions in the
table), or refuses it by name before the first round. Each network below is small, in the form of libraries and
tutorials. At record level it is compared with a loop that clips each gradient.

"""
TABLE = """
The others:

| network | trained without noise inside | at record level |
|---|---|---|
"""
TAIL = """
*mend*: `fedveil.learning.mend(model)` returns a model that trains there. *One example per call*: record level has no way for
a batch ([why](rounding.md#layers-that-are-written-out)), and is slow. *Draws its own numbers*: its random numbers are
not those of plain PyTorch, so results are not compared.
"""


def page() -> str:
    """The page of the site: each network and what becomes of it."""
    said = [(cell.name, _plain(cell), _record(cell)) for cell in ZOO]
    plain = [name for name, *both in said if both == ["trains", "trains"]]
    others = [row for row in said if row[0] not in plain]
    rows = [
        f"| {name} | {without} | {'the same' if inside == without else inside} |"
        for name, without, inside in others
    ]
    listed = "\n".join(f"- {name}" for name in plain)
    return f"{HEAD}These train with every method:\n\n{listed}\n{TABLE}" + (
        "\n".join(rows) + "\n" + TAIL
    )


def _plain(cell: Cell) -> str:
    if not cell.plain and cell.within > 1e-4:
        return f"trains, within {cell.within:g}"
    return _said(cell.plain) if cell.plain or cell.compared else "trains (it draws its own numbers)"


def _record(cell: Cell) -> str:
    said = _said(cell.record) + (", *mend*" if cell.mended else "")
    if not cell.record and not cell.compared:
        said = "trains (it draws its own numbers)"
    elif not cell.record and cell.within > 1e-4:
        said = f"trains, within {cell.within:g}"
    return said + (", one example per call" if cell.alone else "")


REASONS = {
    "mend": "refused: BatchNorm's statistics are data",
    "keep": "refused: training writes its buffers",
    BATCH_NORM: "refused: it mixes examples",
    IN_PLACE: "refused: in-place ReLU overwrites what gradients need",
    "call it once": "refused: layers without a size",
    "batch_first": "refused: a result depends on other examples",
    "other examples": "refused: a result depends on other examples",
    "sparse=True": "refused: sparse gradients show words",
    "model.module": "refused: give `model.module`",
    "scripted": "refused: give the module it was made from",
    "persistent=False": "refused: buffers on PyTorch's own layer",
    "complex": "refused: noise is real",
}


def _said(word: str) -> str:
    return REASONS[word] if word else "trains"


if __name__ == "__main__":
    PAGE.write_text(page())
