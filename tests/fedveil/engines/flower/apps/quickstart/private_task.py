"""A network, the data of a partition, and loops that train and test: the first file of Flower's tutorials."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from fedveil.flower import app_loop


class Net(nn.Module):
    """Convolutions, pooling, and `.view` before the dense layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 2 * 2, 24)
        self.fc2 = nn.Linear(24, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 8 * 2 * 2)
        return self.fc2(F.relu(self.fc1(x)))


class Rows(Dataset):
    """Samples are mappings, as those of Hugging Face's sets are."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"img": self.images[index], "label": int(self.labels[index])}


@cache
def everything():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order], torch.tensor(labels)[order]


def load_data(partition_id, num_partitions, batch_size):
    images, labels = everything()
    train, test = slice(partition_id, 1500, num_partitions), slice(1500 + partition_id, None, num_partitions)
    trainloader = DataLoader(Rows(images[train], labels[train]), batch_size=batch_size, shuffle=True)
    return trainloader, DataLoader(Rows(images[test], labels[test]), batch_size=batch_size)


def train(net, trainloader, epochs, lr, device):
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    trainloader = app_loop(net, optimizer, trainloader, keys=("img", "label"), passes=epochs)
    for _ in range(epochs):
        for batch in trainloader:
            images = batch["img"].to(device)
            labels = batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / len(trainloader)


def test(net, testloader, device):
    net.to(device)
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            outputs = net(batch["img"].to(device))
            loss += F.cross_entropy(outputs, batch["label"].to(device)).item()
            correct += (outputs.argmax(1) == batch["label"]).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
