"""Networks for images, written as people write them, in tiny sizes: 3x16x16 in, 3 classes out."""

from collections import namedtuple

import torch
from torch import nn
from torch.nn import functional as F


class Quickstart(nn.Module):
    """The CNN of Flower's and PyTorch's first tutorials: `.view` between convolutions and dense layers."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = (
            nn.Conv2d(3, 4, 5),
            nn.Conv2d(4, 6, 3),
            nn.MaxPool2d(2, 2),
        )
        self.fc1, self.fc2 = nn.Linear(6 * 2 * 2, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 6 * 2 * 2)
        return self.fc2(F.relu(self.fc1(x)))


def vgg(norm=nn.BatchNorm2d):
    """Torchvision's VGG with normalisation: in-place ReLU in a chain."""
    layers = [nn.Conv2d(3, 4, 3, padding=1), norm(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    layers += [
        nn.Conv2d(4, 6, 3, padding=1),
        norm(6),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d((2, 2)),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 8), nn.ReLU(True), nn.Linear(8, 3))


class BasicBlock(nn.Module):
    def __init__(self, a, b, stride, norm, inplace):
        super().__init__()
        self.conv1, self.n1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), norm(b)
        self.conv2, self.n2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), norm(b)
        self.relu = nn.ReLU(inplace=inplace)
        self.down = (
            nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), norm(b))
            if stride > 1 or a != b
            else None
        )

    def forward(self, x):
        identity = x if self.down is None else self.down(x)
        out = self.relu(self.n1(self.conv1(x)))
        out = self.n2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """Torchvision's ResNet: residual blocks, in-place additions."""

    def __init__(self, norm=nn.BatchNorm2d, inplace=True):
        super().__init__()
        self.conv1, self.n1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), norm(4)
        self.relu, self.pool = nn.ReLU(inplace=inplace), nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = (
            BasicBlock(4, 4, 1, norm, inplace),
            BasicBlock(4, 8, 2, norm, inplace),
        )
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 3)

    def forward(self, x):
        x = self.pool(self.relu(self.n1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


def groups(channels):
    return nn.GroupNorm(2, channels)


class FrozenBatchNorm(nn.Module):
    """Torchvision's: four buffers that nothing writes."""

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        scale = w * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + (b - self.running_mean.reshape(1, -1, 1, 1) * scale)


class DenseNet(nn.Module):
    """Concatenated features."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(groups(4 + 4 * i), nn.ReLU(), nn.Conv2d(4 + 4 * i, 4, 3, padding=1))
            for i in range(2)
        )
        self.norm, self.head = groups(12), nn.Linear(12, 3)

    def forward(self, x):
        features = [self.first(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        x = F.relu(self.norm(torch.cat(features, 1)), inplace=True)
        return self.head(F.adaptive_avg_pool2d(x, (1, 1)).view(x.size(0), -1))


class SqueezeExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.pool, self.fc1, self.fc2 = (
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(c, 2, 1),
            nn.Conv2d(2, c, 1),
        )

    def forward(self, x):
        return x * F.hardsigmoid(self.fc2(F.relu(self.fc1(self.pool(x)))))


class MobileNet(nn.Module):
    """Inverted residuals: depthwise convolutions, Hardswish, squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), groups(4), nn.Hardswish())
        self.block = nn.Sequential(
            nn.Conv2d(4, 8, 1, bias=False), groups(8), nn.Hardswish(),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), groups(8), nn.Hardswish(),
            SqueezeExcite(8), nn.Conv2d(8, 4, 1, bias=False), groups(4),
        )  # fmt: skip
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.block(x)
        return self.head(x.mean([2, 3]))


def drop_path(x, p, training):
    """Timm's stochastic depth."""
    if not training or p == 0:
        return x
    keep = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - p)
    return x * keep.div_(1 - p)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Permuted axes, layer scale, depthwise 7x7, stochastic depth."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8))
        self.dw, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
        self.pw1, self.act, self.pw2 = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.gamma, self.head, self.drop = nn.Parameter(0.1 * torch.ones(8)), nn.Linear(8, 3), drop

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pw2(self.act(self.pw1(y)))
        x = x + drop_path(y.permute(0, 3, 1, 2), self.drop, self.training)
        return self.head(x.mean((-2, -1)))


class Attention(nn.Module):
    """Timm's: one product for queries, keys and values."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, bias=None):
        b, n, c = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(b, n, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn if bias is None else attn + bias
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class ViT(nn.Module):
    """Class token, table of positions as a parameter, blocks with a norm before."""

    def __init__(self, fused=False):
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.zeros(1, 1, 8))
        self.pos = nn.Parameter(torch.randn(1, 17, 8) * 0.02)
        self.n1, self.n2, self.norm, self.fused = (
            nn.LayerNorm(8),
            nn.LayerNorm(8),
            nn.LayerNorm(8),
            fused,
        )
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True) if fused else Attention(8, 2)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        y = self.n1(x)
        x = x + (self.attn(y, y, y, need_weights=False)[0] if self.fused else self.attn(y))
        return self.head(self.norm(x + self.mlp(self.n2(x)))[:, 0])


class Swin(nn.Module):
    """Shifted windows by `.view` and `roll`, and torchvision's index of relative positions, a buffer."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm, self.attn = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), Attention(8, 2)
        self.table = nn.Parameter(torch.zeros(9, 2))
        at = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        away = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + 1
        self.register_buffer("relative_position_index", (away[..., 0] * 3 + away[..., 1]).flatten())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-1, -1), (1, 2))
        y = y.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        bias = self.table[self.relative_position_index].view(4, 4, 2).permute(2, 0, 1)
        y = (
            self.attn(y, bias[None])
            .view(b, h // 2, w // 2, 2, 2, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(b, h, w, c)
        )
        return self.head((x + torch.roll(y, (1, 1), (1, 2))).mean((1, 2)))


class Mixer(nn.Module):
    """MLP-Mixer: dense layers over patches."""

    def __init__(self):
        super().__init__()
        self.patch, self.n1, self.n2 = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 16))
        self.channels = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.n2(x))).mean(1))


Outputs = namedtuple("Outputs", ["logits", "aux_logits"])


class GoogLeNet(nn.Module):
    """Branches side by side, and a named tuple of two outputs while it trains."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 2, 1)
        self.b1, self.b3 = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 3, padding=1)
        self.bp = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(4, 2, 1))
        self.aux, self.head = nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.stem(x), inplace=True)
        aux = self.aux(x.mean((2, 3))) if self.training else None
        x = self.head(torch.cat([self.b1(x), self.b3(x), self.bp(x)], 1).mean((2, 3)))
        return Outputs(x, aux) if self.training else x


class UNet(nn.Module):
    """A class a pixel: transposed convolution, skip connection."""

    def __init__(self):
        super().__init__()
        self.down, self.mid = self.block(3, 4), self.block(4, 8)
        self.up, self.last, self.head = (
            nn.ConvTranspose2d(8, 4, 2, 2),
            self.block(8, 4),
            nn.Conv2d(4, 3, 1),
        )

    @staticmethod
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b), nn.LeakyReLU())

    def forward(self, x):
        kept = self.down(x)
        x = self.up(self.mid(F.max_pool2d(kept, 2)))
        return self.head(self.last(torch.cat([kept, x], 1)))


class FCN(nn.Module):
    """Torchvision's segmentation: a dictionary, and bilinear interpolation."""

    def __init__(self):
        super().__init__()
        self.backbone, self.classifier = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        out = self.classifier(F.relu(self.backbone(x)))
        return {"out": F.interpolate(out, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class Frozen(nn.Module):
    """A frozen backbone of convolutions and norms behind `no_grad`, and a head that is trained."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)
        )
        self.backbone.requires_grad_(False)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            x = self.backbone(x)
        return self.head(self.norm(x).mean((2, 3)))


class Autoencoder(nn.Module):
    """Reconstructs its input."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 2, 3, 2, 1))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2, 4, 3, 2, 1, output_padding=1), nn.ReLU(),
            nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x):
        return self.decoder(self.encoder(x))


class WeightNormed(nn.Module):
    """Weights as length and direction, by a parametrisation."""

    def __init__(self, norm):
        super().__init__()
        self.conv, self.head = norm(nn.Conv2d(3, 4, 3, 2)), norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.head(F.relu(self.conv(x)).mean((2, 3)))


class Volume(nn.Module):
    """Convolutions over three axes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.pool = (
            nn.Conv3d(3, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.MaxPool3d(2),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.pool(F.relu(self.norm(self.conv(x)))).flatten(2).mean(2))
