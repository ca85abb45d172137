"""The model, and a site's data."""

import zlib

import torch


class Network(torch.nn.Linear):
    """Twenty measurements, ill or not."""

    def __init__(self):
        super().__init__(20, 2)


def load_data(site):
    """Forty rows of a site, and their labels."""
    draw = torch.Generator().manual_seed(zlib.crc32(site.encode()))
    x = torch.randn(40, 20, generator=draw)
    return x, (x.sum(1) > 0).long()
