"""Data of single users: LEAF's files, made here, and the mixture of the group-privacy paper."""

import json

import numpy as np
import pytest
import torch

from fedveil.data import MissingDataError, load
from fedveil.errors import FieldError
from fedveil.learning import build_model
from fedveil_lab.config import parse
from fedveil_lab.runs.prepare import prepare


def write(folder, users, name="all_data_0.json", side=28, classes=62, seed=0):
    rng, folder = np.random.default_rng(seed), folder
    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    for user, count in users.items():
        x, y = rng.random((count, side * side)).round(3), rng.integers(0, classes, count)
        held[user] = {"x": x.tolist(), "y": y.tolist()}
    content = {"users": list(users), "num_samples": list(users.values()), "user_data": held}
    (folder / name).write_text(json.dumps(content))
    return held


def test_files_of_leafs_form_are_read_user_by_user(tmp_path):
    held = write(tmp_path / "train", {"f0001_41": 3, "f0002_10": 2}) | write(
        tmp_path / "train", {"f0000_14": 4}, "all_data_1.json"
    )
    write(tmp_path / "test", {"f0001_41": 1})
    data = load("leaf", path=str(tmp_path))
    assert data.x.shape == (9, 1, 28, 28)
    assert data.classes == 62
    assert data.class_names[10] == "A"
    for user, examples in held.items():
        rows = data.owner == data.owners.index(user)
        assert torch.equal(
            data.x[rows].flatten(1), torch.tensor(examples["x"], dtype=torch.float32)
        )
        assert data.y[rows].tolist() == examples["y"]
    assert len(data.test_x) == 1
    turned = load("leaf", path=str(tmp_path), rotated=1.0)
    assert torch.equal(turned.x, torch.rot90(data.x, dims=(2, 3)))
    some = load("leaf", path=str(tmp_path), rotated=0.5)
    same = (some.x == data.x).flatten(1).all(1)
    assert all(len(set(same[data.owner == user].tolist())) == 1 for user in range(3))


def test_leafs_users_are_clients(tmp_path):
    write(tmp_path, {f"u{i}": 3 + i for i in range(5)}, side=5, classes=4)
    config = parse(
        {
            "name": "leaf",
            "rounds": 1,
            "data": {"name": "leaf", "path": str(tmp_path), "clients": "natural", "holdout": 0.0},
            "model": {"name": "logistic"},
            "privacy": {"method": "vanilla"},
        }
    )
    setup = prepare(config)
    assert [c.examples for c in setup.dealt.clients] == [3, 4, 5, 6, 7]
    assert setup.dealt.dataset.x.shape == (25, 25)


@pytest.mark.parametrize(
    "content", ["{}", "[", '{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": []}}}']
)
def test_other_files_are_refused_by_name(tmp_path, content):
    (tmp_path / "all_data.json").write_text(content)
    with pytest.raises(FieldError, match=r"all_data\.json"):
        load("leaf", path=str(tmp_path))


def test_a_folder_without_files_is_missing_data(tmp_path):
    with pytest.raises(MissingDataError, match="json"):
        load("leaf", path=str(tmp_path))


def test_labels_beyond_the_classes_are_refused(tmp_path):
    write(tmp_path, {"a": 30}, side=9, classes=12)
    with pytest.raises(FieldError, match="classes"):
        load("leaf", path=str(tmp_path), classes=5)


def test_users_of_the_mixture_have_the_line_of_their_kind():
    data = load("mixture", users=40, samples=12, noise=0.0)
    kinds = data.attributes["kind"].long()
    assert 5 < int(kinds.sum()) < 35
    for user in range(40):
        rows = data.owner == user
        found = torch.linalg.lstsq(data.x[rows], data.y[rows]).solution
        assert torch.allclose(
            found, torch.tensor([[5.0, 6.0], [4.0, -4.5]])[kinds[user]], atol=1e-4
        )
    assert torch.equal(load("mixture", seed=1).x, load("mixture", seed=1).x)
    with pytest.raises(FieldError, match="features"):
        load("mixture", features=1)


def test_the_papers_network_has_its_number_of_parameters():
    model = build_model("femnist_cnn", input_shape=(1, 28, 28), outputs=10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 1_206_590
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 62)
