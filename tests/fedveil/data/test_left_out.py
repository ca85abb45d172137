"""Natural clients that take no part are said, with how many examples go with them."""

import torch

from fedveil.data import federate, from_torch, holdings, warnings_of


def test_clients_below_min_size_are_named():
    pairs = torch.utils.data.TensorDataset(torch.rand(23, 2), torch.arange(23) % 2)
    wards = ["north"] * 10 + ["south"] * 10 + ["small"] * 3
    dataset = from_torch(pairs, clients=wards)

    def said(**options):
        clients = federate(dataset, seed=0, **options)
        return [
            line for line in warnings_of(holdings(clients, dataset), dataset) if "left out" in line
        ]

    [line] = said(clients="natural", min_size=5)
    assert "small" in line
    assert "3 examples" in line
    assert said(clients=2, scheme="natural")
    assert not said(clients="natural")
    assert not said(clients=4)
