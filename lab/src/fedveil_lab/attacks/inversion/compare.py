"""Compare inversion attacks on several settings of one federation with the same attacks without a defence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedveil.errors import FieldError, require_choice
from fedveil_lab.attacks.inversion.knowledge import SERVER, Captured, Inversion, invert
from fedveil_lab.attacks.inversion.metrics import SUCCESS, Perceptual, matched, mean_scores, scores
from fedveil_lab.attacks.observation import ThreatError, ThreatModel
from fedveil_lab.attacks.statistics import mean_interval
from fedveil_lab.attacks.verdict import Verdict, beats_guessing

FIGURES = {
    "mse": "MSE",
    "success": f"success rate (MSE below {SUCCESS:g} of the squared range)",
    "identified": "identification rate",
    "labels": "share of labels recovered",
}


@dataclass(frozen=True, eq=False)
class Inverted:
    """Results of inversion attacks.

    Attributes
    ----------
    verdicts : tuple of Verdict
        One verdict for each attack and setting.
    originals : Tensor
        Images behind all releases of the undefended setting, [clients * N, *shape].
    images : mapping of (str, str) to Tensor
        Reconstructions in the order of `originals`, by attack and setting.
    refused : mapping of str to str
        Attacks that cannot use these releases, with the reason.
    """

    verdicts: tuple[Verdict, ...]
    originals: Tensor
    images: Mapping[tuple[str, str], Tensor]
    refused: Mapping[str, str]


def compare_inversion(
    settings: Mapping[str, Sequence[Captured]],
    attacks: Sequence[Inversion],
    *,
    undefended: str,
    threat: ThreatModel = SERVER,
    figure: str = "mse",
    perceptual: Perceptual | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> Inverted:
    """Run every inversion attack against every setting, and judge them.

    Parameters
    ----------
    settings : mapping of str to sequence of Captured
        Releases of the same clients, in the same order, under each setting.
    attacks : sequence of Inversion
        Attacks to run; one that cannot use the releases is named in `refused`.
    undefended : str
        Name of the setting without a defence, on which attacks are validated.
    threat : ThreatModel
        Capabilities of the adversary.
    figure : str
        See `judge_inversion`.
    perceptual : callable, optional
        See `scores`.
    told : callable
        Called after each attacked release, with the attack and the setting.

    Raises
    ------
    FieldError
        If no setting has the name `undefended`, or settings have different clients.
    """
    require_choice("undefended", undefended, settings)
    plain = settings[undefended]
    for name, releases in settings.items():
        if [r.received.partition for r in releases] != [
            r.received.partition for r in plain
        ] or not releases:
            given = [r.received.partition for r in releases]
            raise FieldError(
                f"settings[{name}]",
                given,
                "must hold a release of each client of the undefended setting",
            )
    verdicts: list[Verdict] = []
    images: dict[tuple[str, str], Tensor] = {}
    refused: dict[str, str] = {}
    unit = "client"
    if all(r.known.examples == 1 for r in plain):
        unit = "image"
    for attack in attacks:
        units: dict[str, list[dict[str, float]]] = {}
        for name in dict.fromkeys((undefended, *settings)):
            try:
                tell = partial(told, f"{attack.name}, {name}")
                units[name], images[attack.name, name] = _run(
                    attack, settings[name], threat, perceptual, tell
                )
            except (FieldError, ThreatError) as error:
                refused[attack.name] = str(error)
                break
            without = units[undefended]
            verdict = judge_inversion(
                attack,
                name,
                units[name],
                threat=threat,
                undefended=without,
                figure=figure,
                replication=unit,
            )
            verdicts.append(verdict)
    return Inverted(tuple(verdicts), torch.cat([r.data.x for r in plain]), images, refused)


def _run(
    attack: Inversion,
    releases: Sequence[Captured],
    threat: ThreatModel,
    perceptual: Perceptual | None,
    tell: Callable[[], None],
) -> tuple[list[dict[str, float]], Tensor]:
    """Return the scores of each release, and all reconstructions in the order of the originals."""
    units, images = [], []
    for release in releases:
        inverted, data = invert(release.received, release.known, attack, threat), release.data
        images.append(inverted.images[matched(data.x, inverted.images)])
        units.append(
            scores(
                data.x,
                data.y,
                inverted,
                data_range=release.known.data_range,
                others=release.others,
                mask=release.mask,
                perceptual=perceptual,
            )
        )
        tell()
    return units, torch.cat(images)


def judge_inversion(
    attack: Inversion,
    setting: str,
    units: Sequence[Mapping[str, float]],
    *,
    threat: ThreatModel,
    undefended: Sequence[Mapping[str, float]] | None = None,
    figure: str = "mse",
    replication: str = "client",
) -> Verdict:
    """Judge one inversion attack against one setting.

    Parameters
    ----------
    attack : Inversion
        The attack.
    setting : str
        Name of the attacked setting.
    units : sequence of mapping
        `scores` of each release; releases are independent of each other.
    threat : ThreatModel
        The adversary's capabilities.
    undefended : sequence of mapping, optional
        Scores of the same attack on the same examples without a defence. The attack is valid if its error there is
        below that of the mean image, which saw no release, by the 95% interval of the difference; see `beats_guessing`.
    figure : {"mse", "success", "identified", "labels"}
        The judged figure; the others are details.
    replication : str
        Unit of replication: ``"image"`` if every release is of one image, else ``"client"``.

    Raises
    ------
    FieldError
        If `units` is empty, or the figure is unknown.
    """
    require_choice("figure", figure, FIGURES)
    if not units or (undefended is not None and not undefended):
        raise FieldError("units", 0, "at least one release is needed")
    details, without = mean_scores(units), mean_scores(undefended or ())
    if "perceptual" in details:
        notes = []
    else:
        notes = ["LPIPS: not available without weights of your own"]
    return Verdict.of(
        mean_interval([u[figure] for u in units], shares=figure != "mse"),
        attack=attack.name,
        setting=setting,
        figure=FIGURES[figure],
        n=len(units),
        replication=replication,
        without_defence=without.get(figure),
        valid=_valid(undefended) if undefended else None,
        threat=threat.who,
        details=details | {f"{name} without defence": value for name, value in without.items()},
        notes=notes,
    )


def _valid(units: Sequence[Mapping[str, float]]) -> bool | None:
    """Whether an attack without a defence beats a guess that saw no release; None if unknown."""
    return beats_guessing(mean_interval([u["mean_image"] - u["mse"] for u in units]), 0.0)
