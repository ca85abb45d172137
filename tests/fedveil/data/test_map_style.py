"""PyTorch's map-style data sets, from Python."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedveil.data import federate, from_torch
from fedveil.errors import FieldError


class Listed(Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def test_tensors_keep_their_values():
    x, y = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    data = from_torch(
        TensorDataset(x, y), TensorDataset(x[:2], y[:2]), clients=["b", "b", "b", "a", "a", "a"]
    )
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)
    assert torch.equal(data.test_x, x[:2])
    assert (data.classes, data.owners) == (3, ("a", "b"))
    assert [c.examples for c in federate(data, clients="natural", seed=0, holdout=0)] == [3, 3]


def test_pictures_arrays_targets_and_masks():
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.full((4, 5, 3), 51, dtype=np.uint8))
    data = from_torch(Listed([(picture, 0), (picture, 1)]), classes=["no", "yes"])
    assert data.x.shape == (2, 3, 4, 5)
    assert data.x.unique().tolist() == [pytest.approx(0.2)]
    assert from_torch(Listed([(np.ones(3), 0.5), (np.ones(3), 1.5)])).task == "regression"
    mask = np.array([[0, 1], [1, 1]])
    assert from_torch(Listed([(np.ones((1, 2, 2)), mask)])).task == "segmentation"


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([([1.0], 0), ([1.0, 2.0], 1)], {}, r"dataset\[1\] = .*as dataset\[0\]"),
        ([([1.0], 0), ([float("nan")], 1)], {}, r"dataset\[1\], x = 'NaN or infinity'"),
        ([([1.0], 0), ([1.0], float("inf"))], {}, r"dataset\[1\], y = 'NaN or infinity'"),
        ([([1.0], 0), ([1.0], 1.5)], {}, r"dataset\[1\] = 1\.5: its label must be like"),
        ([([1.0], 0), (["a"], 1)], {}, r"dataset\[1\], x = .*must be numbers"),
        ([([1.0], [0, 1])], {}, r"dataset\[0\], y = \(2,\): must be one class"),
        ([([1.0], 0), 7], {}, r"dataset\[1\] = 'int': must be a pair"),
        ([([1.0], 1), ([1.0], 2)], {}, r"dataset\[0\] = 1: the lowest label is 1"),
        (
            [([1.0], 0), ([1.0], 2)],
            {"classes": 2},
            r"dataset\[1\] = 2: must be one of the 2 declared",
        ),
        ([([1.0], 0.0)], {"classes": 2}, "holds floating-point targets"),
        ([([1.0], 0)], {"clients": ["a", "b"]}, "for each of the 1 examples"),
        ([([1.0], 0), ([1.0], 0)], {"max_examples": 1}, "raise max_examples"),
        ([([1.0] * 9, 0)], {"max_gib": 1e-8}, "raise it if it is meant"),
        ([], {}, "0 examples"),
    ],
)
def test_refusals_name_the_example(pairs, options, message):
    with pytest.raises(FieldError, match=message):
        from_torch(Listed(pairs), **options)


def test_what_has_no_length_and_a_test_half_of_another_kind():
    with pytest.raises(FieldError, match="must be map-style"):
        from_torch(Stream())
    pair = Listed([([1.0], 0)])
    with pytest.raises(FieldError, match="must be like dataset"):
        from_torch(pair, Listed([([1.0, 2.0], 0)]))
