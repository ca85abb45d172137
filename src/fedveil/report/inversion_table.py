"""The table of an inversion audit."""

from __future__ import annotations

from fedveil.attacks.inversion import Inverted
from fedveil.report.table import NOTHING, Table

HEADER = ("attack", "setting", "MSE (95%)", "PSNR", "SSIM", "success", "identified", "labels", "mean image", "valid")


def inversion_table(found: Inverted) -> Table:
    """One row an attack and setting; every setting's mean image and the undefended attack stand beside it."""
    rows = []
    masked = [n for n in ("region_mse", "rest_mse") if any(n in v.details for v in found.verdicts)]
    for v in found.verdicts:
        d = v.details
        rows.append(
            (
                v.attack,
                v.setting,
                f"{v.point:.1e} ({v.low:.1e}-{v.high:.1e})",
                f"{d['psnr']:.1f}",
                f"{d['ssim']:.2f}" if "ssim" in d else NOTHING,
                *(f"{d[name]:.2f}" for name in ("success", "identified", "labels")),
                f"{d['mean_image']:.1e}",
                *(f"{d[name]:.1e}" if name in d else NOTHING for name in masked),
                "yes" if v.valid else "no",
            )
        )
    first = found.verdicts[0]
    notes = [
        f"Mean over {first.n} releases, each {first.replication} a unit of its own; the attacker: {first.threat}.",
        "success: MSE below 0.001 of the squared range; identified: nearest to its original among the client's images;",
        "mean image: MSE of a guess that saw no release; valid: the attack works where there is no defence.",
        *dict.fromkeys(note for v in found.verdicts for note in v.notes),
    ]
    header = (*HEADER[:-1], *(name.replace("_mse", " MSE") for name in masked), HEADER[-1])
    return Table(header, rows, numbers=header[2:-1], notes=notes)
