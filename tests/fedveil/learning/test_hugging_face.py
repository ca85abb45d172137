"""Models of Hugging Face, made from a configuration, go in batches at record level; what cannot is named."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.layout import Layout
from fedveil.learning.losses import outputs_of
from fedveil.learning.per_example import PerExample
from fedveil.learning.validation import require_separable

transformers = pytest.importorskip(
    "transformers", reason="needs pip install transformers: no extra has it"
)
pytestmark = pytest.mark.slow

WORDS, LENGTH, ROWS, CLIP = 40, 12, 6, 0.5
SIZES = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
}
WIDE = {
    "vocab_size": WORDS,
    "max_position_embeddings": LENGTH + 4,
    "num_labels": 3,
    "pad_token_id": 0,
}
IMAGES = {"image_size": 16, "num_labels": 3}


class Padded(nn.Module):
    """A model of texts of one public length; 0 is padding, which the mask leaves out."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids):
        return self.net(input_ids=ids, attention_mask=(ids != 0).long())


def text(name, **options):
    config = getattr(transformers, f"{name}Config")(**(SIZES | WIDE | options))
    return getattr(transformers, f"{name}ForSequenceClassification")(config)


def image(name, **options):
    sizes = {} if "depths" in options else SIZES  # such networks have sizes of their own
    config = getattr(transformers, f"{name}Config")(**(sizes | IMAGES | options))
    return getattr(transformers, f"{name}ForImageClassification")(config)


TEXTS = {
    "BERT": lambda: text("Bert"),
    "BERT, eager attention": lambda: text("Bert", attn_implementation="eager"),
    "RoBERTa": lambda: text("Roberta"),
    "ALBERT": lambda: text("Albert", embedding_size=8),
    "DeBERTa": lambda: text("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "GPT-2": lambda: text("GPT2", n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2),
    "Llama": lambda: text("Llama", num_key_value_heads=1),
}
VISION = {
    "ViT": lambda: image("ViT", patch_size=4),
    "DINOv2": lambda: image("Dinov2", patch_size=4),
    "Swin": lambda: image(
        "Swin",
        patch_size=2,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=2,
        drop_path_rate=0.0,
    ),
    "ConvNeXt": lambda: image("ConvNext", hidden_sizes=[8, 8], depths=[1, 1], num_stages=2),
}


def built(name):
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(ROWS) % 3
    if name in VISION:
        return without_dropout(VISION[name]()), torch.rand(ROWS, 3, 16, 16, generator=draw), y
    ids = torch.randint(3, WORDS, (ROWS, LENGTH), generator=draw)
    ids[torch.arange(LENGTH) >= torch.randint(3, LENGTH, (ROWS, 1), generator=draw)] = 0
    return without_dropout(Padded(TEXTS[name]())), ids, y


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for option in ("dropout", "dropout_prob", "attention_dropout"):
            if isinstance(getattr(module, option, None), float):
                setattr(module, option, 0.0)
    return model.train()


def by_hand(model, x, y):
    shared = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in shared), dtype=torch.float64)
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(outputs_of(model(x[i : i + 1])), y[i : i + 1])
        own = torch.autograd.grad(loss, shared, allow_unused=True, materialize_grads=True)
        flat = torch.cat([g.reshape(-1) for g in own]).double()
        total += flat * min(1.0, CLIP / float(flat.norm()))
    return total


@pytest.mark.parametrize("name", [*TEXTS, *VISION])
def test_its_clipped_gradients_in_batches_are_those_of_one_example_a_call(name):
    model, x, y = built(name)
    sums = PerExample(model, Layout.from_module(model), "cross_entropy", torch.Generator())
    total, losses = sums.clipped_sum(x, y, CLIP)
    assert sums.rule_name == "operators"
    assert len(losses) == ROWS
    torch.testing.assert_close(total, by_hand(model, x, y), rtol=1e-3, atol=1e-5)


def test_one_unpadded_text_changes_no_bit_of_the_others():
    """Called as a batch, these models leave the mask out if nobody has padding, and then all rows round otherwise."""
    model, x, y = built("BERT")
    sums = PerExample(model, Layout.from_module(model), "cross_entropy", torch.Generator())
    here = torch.arange(ROWS) > 0
    sums.clipped_sum(x, y, CLIP, here)
    first, _ = sums.clipped_sum(x, y, CLIP, here)
    x = x.clone()
    x[0] = 5
    again, _ = sums.clipped_sum(x, y, CLIP, here)
    assert torch.equal(first, again)


def looked_at(model):
    """As a federation does before the first round."""
    Layout.from_module(model)
    require_separable(model)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: image("ResNet", hidden_sizes=[8, 8], depths=[1, 1], embedding_size=8),
            "running_mean",
        ),
        (
            lambda: image(
                "Swinv2", patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=2
            ),
            "continuous_position_bias_mlp",
        ),
    ],
)
def test_what_cannot_be_trained_names_its_layer_and_mend_helps(make, named):
    model = make()
    with pytest.raises(fv.FieldError, match=named):
        looked_at(model)
    looked_at(fv.learning.mend(model))
