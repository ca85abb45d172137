"""Does calibration help, or only less noise? Accuracy against attacks on digits, at equal noise and equal protection.

Three clients, of which the last holds more of the digits 5 to 9 and the first asks whether it takes part. First the
front: global DP and metric privacy, under both distances, at several noise multipliers. Then metric privacy at one
multiplier against global DP at its average sigma, and against global DP tuned to the same AUC of an attack; tuning
looks at private runs, so that no guarantee is left.

The sigma that is matched is the average over the very runs that are compared, those with the target: without it metric
privacy adds more noise, and an average over both worlds would favour it where accuracy is measured.

Writes results/metric-privacy/front-digits.json, front-digits.png, audit-digits.json, audit-digits.toml and claims.md.
Run: python studies/front.py --runs 30 --seeds 5 --final 100
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from metric_privacy import OUT, dumps, export_audit
from provenance import provenance

from fedveil.cli.shared import console_for
from fedveil.experiments import Config, Summary, audit, compare, load
from fedveil.experiments.front import ATTACKS, attack_settings
from fedveil.experiments.settings import EQUAL_SIGMA
from fedveil.report.audit_progress import audit_progress_for
from fedveil.report.pareto import pareto
from fedveil.reproduce.files import write_claims
from fedveil.reproduce.metric_privacy.audit_claims import EQUAL_AUC

TARGET = [10, 10, 10, 10, 10, 30, 30, 30, 30, 30]
MULTIPLIERS = (0.1, 0.2, 0.35, 0.6, 1.0)
Z = 0.5  # of metric privacy, where it is matched
GLOBAL, METRIC = "global DP", "metric privacy"
EXAMPLES = "adaptive"  # the strongest attack that looks at losses and updates, not at the size of the noise


def main() -> None:
    """Draw the front, then match."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=30, help="with the target, and as many without, for the front")
    parser.add_argument("--seeds", type=int, default=5, help="of the accuracies on the front")
    parser.add_argument("--final", type=int, default=100, help="runs of the matched comparison")
    parser.add_argument("--work", type=Path, default=Path("runs/front-digits"), help="keeps finished runs")
    parser.add_argument("--into", type=Path, default=OUT)
    args = parser.parse_args()
    found = front(args.work / "front", args.runs, args.seeds)
    args.into.mkdir(parents=True, exist_ok=True)
    pareto(found).savefig(args.into / "front-digits.png", dpi=90)
    made = provenance("scikit-learn digits, 3 clients, logistic model (650 parameters)", list(range(args.seeds)))
    keep = ("setting", "base", "swept", "seed", "last_rounds", "noise", "guarantee", "audits")
    points = [{key: s.values[key] for key in keep} for s in found]
    (args.into / "front-digits.json").write_text(dumps({"provenance": made, "points": points}))
    tuned = {attack: tune(found, attack) for attack in (EXAMPLES, "")}
    audit(
        matched(tuned, multiplier(args.work / "sigma", args.final)),
        args.work / "matched",
        attacks=ATTACKS,
        replicates=args.final,
        compare=True,
        progress=audit_progress_for(console_for()),
    )
    export_audit(args.work / "matched", args.into, "digits", made["command"], made["commit"])
    print(json.dumps({attack or "strongest": z for attack, z in tuned.items()}))
    print(write_claims(args.into))


def scenario(name: str, settings: Sequence[dict[str, Any]], **compared: Any) -> Config:
    """The preset with a target that is less unlike the others, so that attacks are neither certain nor hopeless."""
    base = load("digits-cia", [f"data.counts.2={TARGET}"]).to_dict()
    base.pop("compare", None)
    return Config.model_validate({**base, "name": name, "compare": {"settings": list(settings), **compared}})


def front(folder: Path, runs: int, seeds: int) -> list[Summary]:
    """Global DP and metric privacy at several multipliers, with attacks on each."""
    settings = [
        {"label": "vanilla", "method": "vanilla"},
        {"label": GLOBAL, "method": "global"},
        {"label": METRIC, "method": "metric"},
        {"label": f"{METRIC}, euclidean", "method": "metric", "distance": "euclidean"},
    ]
    config = scenario("front-digits", settings, sweep={"noise_multiplier": list(MULTIPLIERS)})
    found = compare(config, folder, seeds=seeds, resume=(folder / "config.toml").exists())
    return attack_settings(config, folder, found, runs, audit_progress_for(console_for()))


def multiplier(folder: Path, runs: int) -> float:
    """Global DP's at metric privacy's average sigma in the runs with the target that are compared later."""
    config = scenario("sigma-digits", settings=[{"label": METRIC, "method": "metric", "noise_multiplier": Z}])
    found = audit(config, folder, attacks=["loss"], replicates=runs, compare=True)
    about = found.values["settings"][METRIC]
    return float(about["sigma"]) * len(config.data.counts) / float(config.privacy.options["clip"])


def matched(tuned: dict[str, float], same_sigma: float) -> Config:
    """Metric privacy, global DP at its sigma, and global DP at its AUC: of one attack, and of the strongest."""
    settings: list[dict[str, Any]] = [
        {"label": "vanilla", "method": "vanilla"},
        {"label": GLOBAL, "method": "global", "noise_multiplier": Z},
        {"label": METRIC, "method": "metric", "noise_multiplier": Z},
        {"label": EQUAL_SIGMA, "method": "global", "noise_multiplier": same_sigma, "derived_from": METRIC},
    ]
    for attack, z in tuned.items():
        label = f"{EQUAL_AUC}, {attack or 'strongest attack'})"
        settings.append({"label": label, "method": "global", "noise_multiplier": z, "derived_from": METRIC})
    return scenario("matched-digits", settings)


def tune(found: Sequence[Summary], attack: str) -> float:
    """The multiplier at which an attack (or the strongest) has metric privacy's AUC at Z, between the swept ones."""
    curve = [(math.log(z), _auc(s, attack)) for z, s in _swept(found, GLOBAL)]
    wanted = _at(math.log(Z), [(math.log(z), _auc(s, attack)) for z, s in _swept(found, METRIC)])
    falling = [min(v for _, v in curve[: i + 1]) for i in range(len(curve))]  # more noise never helps an attack
    pairs = list(zip(falling, (x for x, _ in curve), strict=True))
    return round(math.exp(_at(wanted, sorted(pairs))), 4)


def _swept(found: Sequence[Summary], base: str) -> list[tuple[float, Summary]]:
    first = found[0].values["seed"]
    own = [s for s in found if s.values["base"] == base and s.values["seed"] == first]
    return [(s.values["swept"]["noise_multiplier"], s) for s in own]


def _auc(summary: Summary, attack: str) -> float:
    aucs = [a["auc"] for a in summary.values["audits"] if attack in ("", a["attack"])]
    return max(aucs, default=0.5)


def _at(x: float, points: Sequence[tuple[float, float]]) -> float:
    """Linear between points in order of x, and constant beyond them."""
    xs, ys = zip(*points, strict=True)
    return float(np.interp(x, xs, ys))


if __name__ == "__main__":
    main()
