"""The paper's figure 1: parameter vectors that users of two kinds released, and the validation loss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedveil.engines import Seen
from fedveil_lab.grid import Outcome, Store
from fedveil_studies.data.mixture import OPTIMA
from fedveil_studies.frame import Reproduction
from fedveil_studies.group_privacy.measures import study, validation

if TYPE_CHECKING:
    from fedveil_lab.report.plotting import Axes, Figure

SETTINGS = ("avg", "ifca", "two")
SHOWN = 5  # rounds in each of the two panels of vectors
COLOURS = ("tab:blue", "tab:orange")  # of the users' kinds


class Released:
    """Probe that keeps what users released: models by round and kind of user, and the hypotheses after each round."""

    name: ClassVar[str] = "released vectors"
    figures: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.sent: list[dict[int, Tensor]] = []
        self.models: list[Tensor] = []

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Keep the models of the round; measure nothing."""
        kinds: dict[int, list[Tensor]] = {0: [], 1: []}
        for partition, releases in seen.received.items():
            kind = int(seen.federation.clients[partition].name[0])
            kinds[kind] += [one.value for one in releases if one.kind == "model"]
        self.sent.append({kind: torch.stack(sent) for kind, sent in kinds.items() if sent})
        self.models.append(seen.models)
        return {}


@study.picture("1")
def vectors(reproduction: Reproduction) -> "Figure":
    """Synthetic data, one seed: vectors that users released in the first and the last rounds, and the validation loss."""
    from fedveil_lab.report.plotting import Figure

    figure = Figure(figsize=(9.6, 3.0 * len(SETTINGS)), layout="constrained")
    axes = figure.subplots(len(SETTINGS), 3)
    for row, setting in zip(axes, SETTINGS, strict=True):
        released, outcome = played(reproduction, setting)
        row[1].sharex(row[0])
        row[1].sharey(row[0])
        _vectors(row[0], released, range(min(SHOWN, len(released.sent))))
        last = range(max(0, len(released.sent) - SHOWN), len(released.sent))
        _vectors(row[1], released, last)
        curve = validation([outcome], "")
        row[2].plot(curve.x, curve.y, color="#555555")
        row[2].set(xlabel="round", ylabel="validation loss")
        row[0].set_ylabel(study.settings[setting], fontsize=8)
    return figure


def played(reproduction: Reproduction, setting: str) -> tuple[Released, Outcome]:
    """Play a setting's run under the first seed, and return what was released beside its outcome."""
    released = Released()
    planned = reproduction.cell("synthetic", "all", setting, reproduction.seeds[0])
    cell = replace(planned, probes=(released,))
    return released, Store(None).run([cell]).outcomes[cell.key]


def _vectors(axes: "Axes", released: Released, rounds: range) -> None:
    """Draw the vectors of some rounds by kind of user, the lines' own parameters and the last of these models."""
    for kind, colour in enumerate(COLOURS):
        sent = [released.sent[r][kind] for r in rounds if kind in released.sent[r]]
        if sent:
            points = torch.cat(sent).double()
            label = f"users of kind {kind + 1}"
            axes.scatter(points[:, 0], points[:, 1], s=9, alpha=0.6, color=colour, label=label)
        axes.scatter(*OPTIMA[kind], marker="*", s=120, color=colour, edgecolor="k", linewidth=0.6)
    models = released.models[rounds[-1]].double()
    axes.scatter(models[:, 0], models[:, 1], marker="x", s=45, color="k", label="hypotheses")
    axes.set_title(f"rounds {rounds[0] + 1} to {rounds[-1] + 1}", fontsize=8)
    axes.legend(fontsize=6, loc="best")
