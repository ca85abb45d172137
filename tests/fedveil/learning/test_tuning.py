"""Weights, frozen parts, adapters and cached features as keys of ``[model]``, in a run."""

import pytest
import torch

from fedveil.errors import FieldError
from fedveil.learning import MODELS, build_model, features, halves, lora, weights_in
from fedveil.learning.models import tuning_of
from fedveil_lab.config.loading import parse
from fedveil_lab.runs.prepare import prepare
from fedveil_lab.runs.runner import run

SHAPE = {"input_shape": (1, 8, 8), "outputs": 10, "seed": 0}


def saved(folder, **more):
    file = folder / "w.pt"
    torch.save(build_model("small_cnn", **SHAPE | {"seed": 5}, **more).state_dict(), file)
    return file


def spec(**model):
    return {
        "name": "tuned",
        "rounds": 2,
        "data": {"name": "digits", "clients": 3, "partition": "iid"},
        "model": {"name": "small_cnn", **model},
        "local": {"lr": 0.1, "batch_size": 1000},
        "privacy": {"method": "record", "noise_multiplier": 1e-6, "clip": 1.0, "examples": 600},
    }


def test_the_model_of_a_name_is_tuned(tmp_path):
    file = saved(tmp_path)
    base = build_model("small_cnn", **SHAPE, weights=str(file), anew=("dense2",))
    assert torch.equal(base.conv1.weight, torch.load(file)["conv1.weight"])
    assert weights_in(base).anew == ("dense2",)
    small = build_model(
        "small_cnn", **SHAPE, weights=str(file), lora=("dense1",), rank=2, train=("dense2",)
    )
    trained = {name for name, p in small.named_parameters() if p.requires_grad}
    assert trained == {"dense1.down.weight", "dense1.up.weight", "dense2.weight", "dense2.bias"}
    assert weights_in(small).sha256 == weights_in(base).sha256
    front, rest = halves("small_cnn", **SHAPE, train=("dense2",), cached=True)
    whole, x = build_model("small_cnn", **SHAPE, train=("dense2",)), torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(rest(features(front, x)), whole(x))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": "nowhere.pt"}, r"model\.weights.*no file"),
        ({"licence": "MIT"}, r"model\.licence"),
        ({"lora": ("attention",)}, r"model\.lora.*conv1, conv2, dense1, dense2"),
        ({"lora": ("dense1",), "rank": 0}, r"model\.rank"),
        ({"rank": 8}, r"model\.rank.*lora"),
        ({"train": ("head",)}, r"model\.train.*dense2"),
        ({"cached": True}, r"model\.cached"),
        ({"cached": True, "train": ("conv1",)}, r"model\.cached"),
    ],
)
def test_refused_by_the_key(options, said):
    with pytest.raises(FieldError, match=said):
        build_model("small_cnn", **SHAPE, **options)


def test_a_key_of_the_models_own_is_the_models():
    assert "rank" not in tuning_of("unet")
    assert all("train" in tuning_of(name) for name in MODELS)


def test_a_run_on_cached_features_is_the_run_on_the_frozen_model():
    whole = prepare(parse(spec(train=["dense2"])))
    cached = prepare(parse(spec(train=["dense2"], cached=True)))
    assert cached.dealt.raw_shape == (1, 8, 8)
    assert len(cached.dealt.dataset.input_shape) == 1
    ends = [run(parse(spec(train=["dense2"], cached=c))).values for c in (False, True)]
    assert ends[0]["metrics"] == pytest.approx(ends[1]["metrics"], abs=0.02)
    assert whole.learner.layout.size == cached.learner.layout.size == 650


def test_adapters_and_a_file_in_a_run(tmp_path):
    file = saved(tmp_path)
    config = parse(
        spec(
            weights=str(file),
            source="ours",
            licence="MIT",
            lora=["dense1"],
            rank=2,
            train=["dense2"],
        )
    )
    done = run(config, tmp_path / "run")
    assert done.values["weights"]["file"] == "w.pt"
    assert (done.values["weights"]["source"], done.values["weights"]["licence"]) == ("ours", "MIT")
    assert any("public" in text for text in done.values["data"]["warnings"])
    described = (tmp_path / "run" / "model.json").read_text()
    assert str(tmp_path) not in described
    assert "lora" in described
    layers = lora(build_model("small_cnn", **SHAPE), 2, ("dense1",), train=("dense2",))
    assert prepare(config).learner.layout.size == sum(
        p.numel() for p in layers.parameters() if p.requires_grad
    )
