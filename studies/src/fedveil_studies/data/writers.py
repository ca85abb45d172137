"""Features of digits learned on other writers, and the first digits of each writer."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.data import DataSet
from fedveil.errors import FieldError

PUBLIC = 30  # of the test half's writers, whose digits are public


def parts_of(writer: Tensor) -> dict[str, Tensor]:
    """Return masks [N] of the test images of public writers, of tuning writers, and of the rest."""
    names = torch.unique(writer)
    order = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(0))]
    half = PUBLIC + (len(names) - PUBLIC) // 2
    parts = {"public": order[:PUBLIC], "tuning": order[PUBLIC:half], "rest": order[half:]}
    return {name: torch.isin(writer, part) for name, part in parts.items()}


def with_components(dataset: DataSet, writer: Tensor, count: int, measured: str) -> DataSet:
    """Replace images by principal components of public writers' digits, half whitened, of length 1.

    Raises
    ------
    FieldError
        If there are fewer components than `count`.
    """
    assert dataset.test_x is not None
    assert dataset.test_y is not None
    parts = parts_of(writer)
    pixels = dataset.test_x[parts["public"]].flatten(1)
    mean = pixels.mean(0)
    _, lengths, directions = torch.linalg.svd(pixels - mean, full_matrices=False)
    if count > len(lengths):
        raise FieldError("data.features", count, f"must be at most {len(lengths)}")
    scaled = directions[:count].T / (lengths[:count] / len(pixels) ** 0.5).sqrt()

    def features(x: Tensor) -> Tensor:
        return F.normalize((x.flatten(1) - mean) @ scaled, dim=1)

    kept = parts[measured]
    return replace(
        dataset,
        x=features(dataset.x),
        test_x=features(dataset.test_x[kept]),
        test_y=dataset.test_y[kept],
    )


def first_images(dataset: DataSet, most: int) -> DataSet:
    """Keep the first `most` images of each writer."""
    assert dataset.owner is not None
    order = dataset.owner.argsort(stable=True)
    count = torch.bincount(dataset.owner)
    place = torch.arange(len(order)) - (count.cumsum(0) - count)[dataset.owner[order]]
    return dataset.take(order[place < most].sort().values)
