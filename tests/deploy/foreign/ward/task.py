"""A network on a table of a ward, its data, and the loops that train and test it."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two layers with normalisation and dropout; one number comes out."""

    def __init__(self, width=24):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(30, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.hidden(x)).squeeze(1)


def table():
    data = load_breast_cancer()
    x = torch.tensor(data.data, dtype=torch.float32)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    largest = x.abs().amax(0)
    return (2 * x / largest - 0.5)[order], torch.tensor(data.target, dtype=torch.float32)[order]


def load_data(partition_id, num_partitions, batch_size):
    x, y = table()
    mine = torch.arange(400)[partition_id::num_partitions]
    return DataLoader(TensorDataset(x[mine], y[mine]), batch_size=batch_size, shuffle=True)


def load_central():
    x, y = table()
    return DataLoader(TensorDataset(x[400:], y[400:]), batch_size=64)


def train(net, trainloader, epochs, lr, device):
    net.to(device).train()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    running_loss, seen = 0.0, 0
    for _ in range(epochs):
        for features, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(features.to(device)), labels.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            running_loss += loss.item() * len(labels)
            seen += len(labels)
    return running_loss / seen


def test(net, testloader, device):
    net.to(device).eval()
    right = 0
    with torch.no_grad():
        for features, labels in testloader:
            right += ((net(features.to(device)) > 0) == (labels > 0.5)).sum().item()
    return right / len(testloader.dataset)
