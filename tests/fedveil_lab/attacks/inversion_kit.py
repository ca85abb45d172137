"""Releases of single clients, with clipping and noise as a test wants them."""

from copy import deepcopy
from dataclasses import replace

import torch

from fedveil.clipping import clip as cut
from fedveil.data import load
from fedveil.engines import Federation, Shared
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, build_model
from fedveil.learning.training import SequentialTrainer
from fedveil.methods import GroupPrivacy, Method, Plain
from fedveil_lab.attacks import Received
from fedveil_lab.attacks.inversion import ServerKnowledge, play_round


def digits():
    """Images [n, 1, 8, 8] and labels."""
    found = load("digits")
    return found.x, found.y


def release(model, x, y, *, local=None, clip=None, nu=0.0, seed=0, **known):
    """What one client sends, and what the server knows of it; the noise is `nu` times as long as the update."""
    local = local or LocalTraining(epochs=1, batch_size=len(x), lr=0.1)
    layout = Layout.from_module(model, buffers="keep")
    start = layout.read(model)
    trained = SequentialTrainer(model, layout, local).train(
        start[None], [ClientData(x, y)], [(0, 1, 0)]
    )[0]
    update = trained.model - start
    if clip is not None:
        update = cut(update, clip, layout)
    noise = torch.randn(
        update.shape, generator=torch.Generator().manual_seed(seed), dtype=update.dtype
    )
    deviation = nu * float(update.norm()) / len(update) ** 0.5
    received = Received(1, 0, start[None], start + update + deviation * noise)
    knowledge = ServerKnowledge(
        model=model,
        layout=layout,
        local=local,
        shape=tuple(x.shape[1:]),
        examples=len(x),
        clip=clip,
        noise=deviation,
    )
    return received, replace(knowledge, **known)


def model(name, x, seed=0, **options):
    return build_model(name, input_shape=tuple(x.shape[1:]), outputs=10, seed=seed, **options)


def noised(net, found, clients, images, local, nu):
    """Releases of so many clients under group privacy's noise of mean length nu times the update's.

    Each client trains on `images` of its own and holds out 40 others; the server has 100 images of nobody's.
    """
    x, y, size = found.x, found.y, images + 40
    parts = [slice(c * size, (c + 1) * size) for c in range(clients)]
    data = [ClientData(x[p][:images], y[p][:images], x[p][images:], y[p][images:]) for p in parts]
    method = Method("noise", GroupPrivacy(noise_multiplier=nu), Plain())
    federation = Federation(
        model=net, clients=data, local=local, method=method, shared=Shared(buffers="keep"), seed=1
    )
    reference = x[clients * size : clients * size + 100]
    releases = play_round(federation, reference=reference)
    for release in (
        releases if any(isinstance(p, torch.nn.BatchNorm2d) for p in net.modules()) else ()
    ):
        _tell_statistics(release)
    return releases


def _tell_statistics(release):
    """Put the statistics of the client's own batch into the server's copy of the model."""
    known = release.known
    copy = deepcopy(known.model)
    for part in copy.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
    with torch.no_grad():
        copy.train()(release.data.x)
    object.__setattr__(release, "known", replace(known, model=copy))
