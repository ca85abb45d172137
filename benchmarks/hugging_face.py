"""Hugging Face's models at record level: which way each goes, what its checks at start take, and a step beside a plain one.

Run ``python -m benchmarks.hugging_face`` where ``transformers`` is installed. Models are made from configurations, so
nothing is downloaded: 2 layers of width 64, batches of 32. Texts are padded to 32 words; the padding mask is given to the
model. Times are processor time of one thread, the least of five.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.layout import Layout
from fedveil.learning.losses import cross_entropy, outputs_of
from fedveil.learning.per_example import PerExample
from fedveil.learning.validation import require_separable, require_unmixed

WORDS, LENGTH, ROWS, CLASSES = 200, 32, 32, 3
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
TABLES = {
    "vocab_size": WORDS,
    "max_position_embeddings": LENGTH + 4,
    "num_labels": CLASSES,
    "pad_token_id": 0,
}
TEXTS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "DistilBert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "Roberta": {},
    "Albert": {"embedding_size": 32},
    "Electra": {"embedding_size": 32},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "MPNet": {},
    "ModernBert": {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    "GPT2": {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "Llama": {"num_key_value_heads": 2},
}
PATCHES = SIZES | {"patch_size": 8}
STAGES = {"hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1]}
WINDOWS = {"patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
IMAGES: dict[str, dict[str, Any]] = {
    "ViT": PATCHES,
    "DeiT": PATCHES,
    "Beit": PATCHES,
    "ViTMSN": PATCHES,
    "Dinov2": {name: value for name, value in PATCHES.items() if name != "intermediate_size"},
    "Swin": WINDOWS | {"window_size": 4, "drop_path_rate": 0.0},
    "ConvNext": STAGES,
    "PoolFormer": STAGES,
    "Segformer": STAGES | {"num_attention_heads": [1, 1, 2, 2]},
}


class Padded(nn.Module):
    """A model of texts of one public length; 0 is padding."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor) -> Any:
        """Return the net's outputs for words [B, T]."""
        return self.net(input_ids=ids, attention_mask=(ids != 0).long())


def built(name: str) -> tuple[nn.Module, Tensor]:
    """Make a model and a batch for it."""
    import transformers

    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    if name in IMAGES:
        config = getattr(transformers, f"{name}Config")(
            image_size=32, num_labels=CLASSES, **IMAGES[name]
        )
        net = getattr(transformers, f"{name}ForImageClassification")(config)
        return net.train(), torch.rand(ROWS, 3, 32, 32, generator=draw)
    config = getattr(transformers, f"{name}Config")(**(SIZES | TABLES | TEXTS[name]))
    net = getattr(transformers, f"{name}ForSequenceClassification")(config)
    ids = torch.randint(3, WORDS, (ROWS, LENGTH), generator=draw)
    ids[torch.arange(LENGTH) >= torch.randint(4, LENGTH, (ROWS, 1), generator=draw)] = 0
    return Padded(net).train(), ids


def seconds(step: Callable[[], object], repeats: int = 1) -> float:
    """Return the least processor time of a step."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        step()
        found.append(time.process_time() - began)
    return min(found)


def row(name: str) -> str:
    """Measure one model, and return its row of the table."""
    model, x = built(name)
    y = torch.arange(ROWS) % CLASSES
    layout = Layout.from_module(model)
    sums = PerExample(model, layout, "cross_entropy", torch.Generator().manual_seed(0))

    def checks() -> None:
        require_separable(model)
        require_unmixed(model, x, layout)
        sums.warn_if_slow(x[:1], y[:1])

    def plain() -> None:
        model.zero_grad()
        cross_entropy(outputs_of(model(x)), y).backward()

    before = seconds(checks)
    first = seconds(lambda: sums.clipped_sum(x, y, 1.0))
    ours = seconds(lambda: sums.clipped_sum(x, y, 1.0), 5)
    theirs = seconds(plain, 5)
    start = before + first - ours
    figures = f"{start:.1f} s | {1e3 * theirs:.0f} ms | {1e3 * ours:.0f} ms | {ours / theirs:.1f}"
    return f"| {name} | {layout.size:,} | {sums.rule_name} | {figures} |"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| model | parameters | way | checks at start | plain step | clipped step | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in (*TEXTS, *IMAGES):
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
