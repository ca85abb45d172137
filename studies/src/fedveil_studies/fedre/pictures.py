"""The paper's figures 2 and 4: what layers answer to, and what an attacker sees with and without FedRE."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedveil.engines import Evaluation
from fedveil.errors import FieldError
from fedveil.learning import score_maps
from fedveil_lab.config import Config
from fedveil_lab.runs.deal import deal_out
from fedveil_lab.runs.prepare import prepare
from fedveil_studies.fedre.defence import RegionInversion
from fedveil_studies.fedre.recovered import Recovered
from fedveil_studies.frame.reproduction import Reproduction

if TYPE_CHECKING:
    from torch import Tensor

    from fedveil_lab.report.plotting import Figure

SCENARIO, PROBES = "receipts", 8
SHOWN = {"none": "federated", "ratio-001": ("uniform", "fedre"), "ratio-01": ("uniform", "fedre")}
TILES, FORGED = 3, 8
COLUMNS = 5  # pictures in a row
INCH = 1.6  # of one picture


def maps(reproduction: Reproduction) -> "Figure":
    """How strongly each layer's gradient answers to each pixel of a client's tile, after one round of its training."""
    setup = prepare(reproduction.full(SCENARIO, reproduction.seeds[0]))
    learner = setup.learner
    client = next(c for c in setup.dealt.clients if c.masks is not None and c.masks.any())
    assert client.masks is not None
    chosen = int(client.masks.flatten(1).sum(1).argmax())
    start = learner.layout.read(learner.model)[None]
    [learned] = learner.learn(start, [client], [(reproduction.seeds[0], 1, 0)])
    if isinstance(learned, Exception):
        raise learned
    x, y = client.x[chosen : chosen + 1], client.y[chosen : chosen + 1]
    loss, vector = learner.local.loss, learned.trained.model
    layer_maps = score_maps(learner.model, learner.layout, loss, vector, x, y, probes=PROBES)
    return score_figure(
        x[0], layer_maps, list(learner.layout.groups("module")), client.masks[chosen]
    )


def forged(reproduction: Reproduction) -> "Figure":
    """Tiles as the detector sees them, and the same with what is forged (blue) and what its client marks (red)."""
    from fedveil_lab.report.plotting import Figure

    full = reproduction.full(SCENARIO, reproduction.seeds[0])
    clients = [c for c in deal_out(full.data, full.seed).clients if c.masks is not None]
    columns = [(c, i) for c in clients for i in range(0, c.examples, max(1, c.examples // FORGED))][
        :: len(clients)
    ]
    figure = Figure(figsize=(1.4 * FORGED, 3.0), layout="constrained")
    axes = figure.subplots(2, FORGED, squeeze=False)
    for (client, i), (bare, marked) in zip(columns, axes.T, strict=False):
        assert client.masks is not None
        for axis in (bare, marked):
            axis.imshow(
                client.x[i, 0].numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
            )
            axis.set_axis_off()
        for mask, colour in ((client.y[i] == 1, "tab:blue"), (client.masks[i], "tab:red")):
            if bool(mask.any()):
                marked.contour(mask.numpy(), levels=[0.5], colors=colour, linewidths=0.8)
    return figure


def recovered(reproduction: Reproduction) -> "Figure":
    """Tiles with their sensitive region, and what the attack of table 2 makes of a release, with and without noise."""
    from fedveil_lab.report.plotting import Figure

    columns: dict[str, list[Recovered]] = {}
    for row, settings in SHOWN.items():
        for setting in [settings] if isinstance(settings, str) else settings:
            cell = reproduction.cell(
                SCENARIO, row, setting, reproduction.seeds[0], change="attacked"
            )
            spec = reproduction.study.described
            columns[f"{spec.settings[setting].label}\n{spec.rows[row].label}"] = _attacked(
                cell.config
            )
    first = next(iter(columns.values()))
    figure = Figure(figsize=(1.7 * (1 + len(columns)), 2.0 * len(first)), layout="constrained")
    axes = figure.subplots(len(first), 1 + len(columns), squeeze=False)
    for row_, tile in enumerate(first):
        shown = {
            "original": tile.original,
            **{name: tiles[row_].reconstruction for name, tiles in columns.items()},
        }
        for axis, (name, image) in zip(axes[row_], shown.items(), strict=True):
            axis.imshow(image[0, 0].numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.contour(tile.mask[0].numpy(), levels=[0.5], colors="tab:red", linewidths=0.6)
            axis.set_axis_off()
            errors = (image - tile.original)[0, 0].square()
            if name == "original":
                caption = ""
            else:
                caption = f"\nMSE {_mean(errors, tile)}"
            axis.set_title((name if row_ == 0 else "") + caption, fontsize=6)
    return figure


def _mean(errors: torch.Tensor, tile: Recovered) -> str:
    return f"{float(errors[tile.mask[0]].mean()):.3f} | {float(errors[~tile.mask[0]].mean()):.3f}"


def _attacked(config: Config) -> list[Recovered]:
    setup, probe = prepare(config), RegionInversion(config)
    federation = setup.made(evaluation=Evaluation(metrics=setup.evaluation.metrics, probes=[probe]))
    federation.run(config.rounds)
    return probe.recovered[:TILES]


def score_figure(
    image: "Tensor", maps: "Tensor", layers: Sequence[str], region: "Tensor"
) -> "Figure":
    """The image with its sensitive region, and beside it each layer's map, as `fedveil.learning.score_maps` gives them.

    Every map has its own scale; the layer's score, the mean over the region, stands above it. On a client's image the
    picture is as private as the image.

    Parameters
    ----------
    image : Tensor
        [C, H, W], between 0 and 1, 1 or 3 channels.
    maps : Tensor
        [L, H, W].
    layers : sequence of str
        L names.
    region : Tensor
        Bool [H, W], not empty; outlined everywhere.

    Raises
    ------
    FieldError
        For shapes that do not fit each other, or an empty region.
    """
    from fedveil_lab.report.plotting import Figure

    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise FieldError("image", tuple(image.shape), "must be [1, H, W] or [3, H, W]")
    if maps.shape != (len(layers), *image.shape[1:]):
        raise FieldError(
            "maps", tuple(maps.shape), f"must be {(len(layers), *image.shape[1:])}: a map a layer"
        )
    if region.shape != image.shape[1:] or not region.any():
        raise FieldError(
            "region",
            tuple(region.shape),
            f"must be bool {tuple(image.shape[1:])} with a pixel in it",
        )
    rows = -(-(len(layers) + 1) // COLUMNS)
    figure = Figure(figsize=(INCH * COLUMNS, 1.2 * INCH * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    if len(image) == 1:
        shown = image.squeeze(0)
    else:
        shown = image.permute(1, 2, 0)
    axes[0].imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes[0].set_title("image", fontsize=7)
    for axis, name, one in zip(axes[1:], layers, maps, strict=False):
        axis.imshow(one.numpy(), cmap="viridis", interpolation="nearest")
        axis.set_title(f"{name}\nS = {float(one[region].mean()):.1e}", fontsize=7)
    for place, axis in enumerate(axes):
        axis.set_axis_off()
        if place <= len(layers):
            axis.contour(region.numpy(), levels=[0.5], colors="tab:red", linewidths=0.8)
    return figure
