"""The network of FLARE's first example, by its layers, and digits in the place of pictures that have to be downloaded."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

SITES, KEPT = 2, 1400  # images after the first 1,400 are held out


class SimpleNetwork(nn.Module):
    """Two convolutions and three dense layers: 62,006 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [N, 10] of pictures [N, 3, 32, 32]."""
        for layer in (self.conv1, self.conv2):
            x = functional.max_pool2d(functional.relu(layer(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


def pictures(rows: slice) -> tuple[Tensor, Tensor]:
    """Return pictures [N, 3, 32, 32] between -.5 and .5, and their digits [N]."""
    x, y = load_digits(return_X_y=True)
    small = torch.tensor(x[rows] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return functional.interpolate(small, size=32).repeat(1, 3, 1, 1) - 0.5, torch.tensor(y[rows])


def data(site: str) -> tuple[Tensor, Tensor]:
    """Return what a site trains on: every second image."""
    first = int(site.rpartition("-")[2]) - 1
    return pictures(slice(first, KEPT, SITES))
