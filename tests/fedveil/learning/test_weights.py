"""Weights from a file: data alone are read, another architecture is refused by what differs."""

import hashlib
import pickle

import pytest
import torch
from torch import nn

from fedveil.errors import FieldError
from fedveil.learning import load_weights


def network(outputs=3):
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, outputs))


@pytest.mark.parametrize("form", ["plain", "state_dict", "model", "parallel", "safetensors"])
def test_a_file_is_loaded_whatever_it_is_wrapped_in(form, tmp_path):
    torch.manual_seed(1)
    kept, file = (
        network().state_dict(),
        tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt"),
    )
    if form == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(kept, str(file))
    else:
        whole = {"plain": kept, "parallel": {f"module.{k}": v for k, v in kept.items()}}
        torch.save(whole.get(form, {form: kept, "epoch": 3}), file)
    model = network()
    found = load_weights(model, file, source="somewhere", licence="MIT")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert found.file == file.name
    assert found.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (found.source, found.licence) == ("somewhere", "MIT")


def test_another_architecture_is_refused_by_names_and_shapes(tmp_path):
    file = tmp_path / "w.pt"
    torch.save(network(outputs=7).state_dict(), file)
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(FieldError, match=r"2\.weight \(7, 5\).*\(3, 5\)"):
        load_weights(model, file)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    load_weights(model, file, anew=("2",))
    assert torch.equal(model[2].weight, before["2.weight"])
    assert not torch.equal(model[0].weight, before["0.weight"])
    with pytest.raises(FieldError, match=r"anew.*head"):
        load_weights(model, file, anew=("head",))
    other = {
        "first.weight": torch.zeros(2, 2),
        **{k: v for k, v in before.items() if not k.startswith("0")},
    }
    torch.save(other, file)
    with pytest.raises(
        FieldError, match=r"lacks 0\.weight \(5, 4\), 0\.bias \(5,\).*first\.weight \(2, 2\)"
    ):
        load_weights(model, file)


class Runs:
    def __reduce__(self):
        return (print, ("ran",))


def test_nothing_in_a_file_is_run(tmp_path, capsys):
    file = tmp_path / "w.pt"
    torch.save({"0.weight": Runs()}, file)
    with pytest.raises(FieldError, match="weights_only"):
        load_weights(network(), file)
    file.write_bytes(pickle.dumps(Runs()))
    with pytest.raises(FieldError, match="weights_only"):
        load_weights(network(), file)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("held", [[1, 2], {}, {"a": 3}, {"state_dict": {"a": "b"}}])
def test_what_is_no_state_dictionary_is_refused(held, tmp_path):
    file = tmp_path / "w.pt"
    torch.save(held, file)
    with pytest.raises(FieldError, match="state dictionary"):
        load_weights(network(), file)


def test_the_file_is_the_one_that_was_meant(tmp_path):
    file = tmp_path / "w.pt"
    with pytest.raises(FieldError, match="no file"):
        load_weights(network(), file)
    torch.save(network().state_dict(), file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    load_weights(network(), file, sha256=digest[:8].upper())
    for wrong in ("0" * 8, digest[:7]):
        with pytest.raises(FieldError, match="sha256"):
            load_weights(network(), file, sha256=wrong)
    bad = network().state_dict()
    bad["0.weight"][0, 0] = torch.nan
    torch.save(bad, file)
    with pytest.raises(FieldError, match=r"finite.*0\.weight"):
        load_weights(network(), file)
