"""A tiny model of texts in the form of Hugging Face's, made from a configuration, and its loops."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.data import DataLoader

from fedveil.flower import app_loop

WORDS, LENGTH, SAMPLES = 20, 12, 480


@dataclass
class Config:
    vocab_size: int = WORDS
    hidden_size: int = 16
    num_labels: int = 2


@dataclass
class SequenceClassifierOutput:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Tiny(nn.Module):
    """Attention over words that are not padding; `labels` give the loss, as in Hugging Face's models."""

    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.attend = nn.Linear(config.hidden_size, 1)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = input_ids != 0 if attention_mask is None else attention_mask.bool()
        states = self.embed(input_ids)
        weights = self.attend(states)[..., 0].masked_fill(~mask, -1e4).softmax(-1)
        logits = self.classifier((weights[..., None] * states).sum(1))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(logits=logits, loss=loss)


def get_model():
    torch.manual_seed(0)
    return Tiny(Config())


def texts(count, seed):
    """Sentences with one of two words in them, padded to a length that everybody knows."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, WORDS, (count, LENGTH), generator=draw)
    labels = torch.randint(0, 2, (count,), generator=draw)
    lengths = torch.randint(4, LENGTH, (count,), generator=draw)
    ids[torch.arange(LENGTH) >= lengths[:, None]] = 0
    ids[torch.arange(count), torch.randint(0, 4, (count,), generator=draw)] = 1 + labels
    return ids, labels


def load_data(partition_id, num_partitions):
    ids, labels = texts(SAMPLES, 1)
    rows = range(partition_id, SAMPLES, num_partitions)
    samples = [{"input_ids": ids[i], "attention_mask": (ids[i] != 0).long(), "labels": labels[i]} for i in rows]
    return DataLoader(samples, batch_size=16, shuffle=True)


def train(net, trainloader, epochs, device):
    optimizer = AdamW(net.parameters(), lr=0.05)
    net.train()
    trainloader = app_loop(net, optimizer, trainloader, keys=("input_ids", "labels"), passes=epochs)
    for _ in range(epochs):
        for batch in trainloader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = net(**batch)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def accuracy(net):
    ids, labels = texts(200, 2)
    with torch.no_grad():
        return float((net(ids).logits.argmax(1) == labels).float().mean())
