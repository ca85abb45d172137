"""What a site that uses Lightning brings: modules that wrap the shared network."""

import torch
from torch import nn

try:
    from lightning.pytorch import LightningModule
except ImportError:
    from pytorch_lightning import LightningModule


class Study(LightningModule):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y, label_smoothing=0.1)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), lr=0.01)


class Another(Study):
    """Trains a network of its own."""

    def __init__(self, network):
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


class Stepless(LightningModule):
    def __init__(self, network):
        super().__init__()
        self.network = network


class ByHand(Study):
    def __init__(self, network):
        super().__init__(network)
        self.automatic_optimization = False


class Raising(Study):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("age 47, diagnosis C50")


class Shared(Study):
    """A LightningModule in the place of the network."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
