"""Table 13 of the metric privacy paper with valid replicates, on digits; what the worlds and the paper's statistic say.

Writes results/metric-privacy/cia-digits.json, .md, .toml and a figure for each noise multiplier; replicates are kept in
runs/cia-digits, so that an interrupted study goes on. Run: python studies/client_inference.py
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from provenance import provenance

from fedveil.attacks.paper import multi_round
from fedveil.attacks.statistics import Estimate, auc_interval, rate
from fedveil.experiments import Audit, Config, audit, load
from fedveil.experiments.audit_paper import play_without_target
from fedveil.experiments.audit_plan import plan_settings, stage_of
from fedveil.experiments.replicates_record import HONEST, Case
from fedveil.experiments.replicates_roles import IN_ITS_PLACE, SHADOWS, Roles
from fedveil.report.audit_figures import draw_audit
from fedveil.report.audit_tables import by_attack

ROOT = Path(__file__).resolve().parent.parent
PRESET = "digits-cia"
NOISES = (0.5, 2.0)
WORLDS = {  # and what is added to the preset's seed
    "replace": 0,
    "twin": 0,
    "remove": 0,
    "empty": 0,
    "itself": 0,
    "itself, another seed": 1,
}
SIX = ("data.clients=6", f"data.counts={[[20] * 10] * 5 + [[0] * 5 + [40] * 5]}")  # colluding: two of five others
PASSIVE = ("loss", "calibrated-loss", "likelihood-ratio", "own-update", "adaptive", "colluding")
WORLD_RUNS = 100  # of those, in each world
CHECKED = ("loss", "calibrated-loss", "own-update", "colluding")
CHECK_RUNS = 600  # of one round, in each of two worlds that are one
HEAD = """# Client inference on digits

Three clients; the first asks whether the last, which alone lacks five of the classes, takes part. How to read the
figures, and what each attack knows: [docs/attacks.md](../../docs/attacks.md). A star supposes that metrics are
published, which they are not here."""
SHARED = """The attacks on one world share their runs, so their luck is common: where `itself` excludes .5, all lean the
same way. The same check on {0} + {0} runs of one round, under another seed (global DP):"""
DEALS = 40  # pairs of runs of the paper's statistic without the target, each on a deal of its own


def main() -> None:
    """Play, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicates", type=int, default=30)
    parser.add_argument("--world-replicates", type=int, default=WORLD_RUNS)
    parser.add_argument("--into", type=Path, default=ROOT / "results" / "metric-privacy")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "cia-digits")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.into.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Audit] = {}
    for noise in NOISES:
        config = load(PRESET, [f"privacy.noise_multiplier={noise}"])
        folder = args.runs / f"noise-{noise:g}"
        settings[f"{noise:g}"] = audit(config, folder, replicates=args.replicates, compare=True)
        suffix = "" if noise == NOISES[0] else f"-noise-{noise:g}"
        draw_audit(settings[f"{noise:g}"], args.into / f"cia-digits{suffix}.png")
        print(f"noise {noise:g} done", flush=True)
    config = load(PRESET)
    worlds = {}
    for label, more in WORLDS.items():
        world, folder = label.partition(",")[0], args.runs / f"world-{label.replace(', ', '-').replace(' ', '-')}"
        seeded = config.model_copy(update={"seed": config.seed + more})
        worlds[label] = audit(seeded, folder, attacks=PASSIVE, replicates=args.world_replicates, world=world)
    shadows = {
        kind: worlds["replace"]
        if kind == "clean"
        else audit(config, args.runs / f"shadow-{kind}", attacks=PASSIVE, replicates=args.world_replicates, shadow=kind)
        for kind in SHADOWS
    }
    larger = audit(load(PRESET, SIX), args.runs / "six-clients", attacks=PASSIVE, replicates=args.world_replicates)
    more = {"shadows": shadows, "six clients": {"three clients": worlds["replace"], "six clients": larger}}
    print("worlds done", flush=True)
    nulls = {planned.label: null_of(planned.config) for planned in plan_settings(config, compare=False)}
    check = check_of(config)
    record = {
        "provenance": provenance(
            f"scikit-learn digits, as in the preset {PRESET}", list(range(config.seed, config.seed + DEALS))
        ),
        "noise_multipliers": {noise: kept(found) for noise, found in settings.items()},
        "worlds": {world: kept(found) for world, found in worlds.items()},
        "shadows": {kind: kept(found) for kind, found in shadows.items() if kind != "clean"},
        "six_clients": kept(larger),
        "itself_in_short_runs": {"runs": CHECK_RUNS, **{name: asdict(found) for name, found in check.items()}},
        "paper_multi_round_without_target": nulls,
    }
    (args.into / "cia-digits.json").write_text(json.dumps(rounded(record), indent=1) + "\n")
    (args.into / "cia-digits.md").write_text(page(settings, worlds, more, check, nulls))
    shutil.copyfile(args.runs / f"noise-{NOISES[0]:g}" / "config.toml", args.into / "cia-digits.toml")


def null_of(config: Config) -> dict[str, Any]:
    """How often the paper's interval excludes guessing for two runs that both lack the target."""
    excluded, points = 0, []
    for deal in range(DEALS):
        one = config.model_copy(update={"seed": config.seed + deal})
        first, second = play_without_target(one, Roles.of(3), 2)
        found = multi_round("", first, second).auc
        points.append(found.point)
        excluded += not found.low <= 0.5 <= found.high
    share = rate(excluded, len(points))
    return {"pairs": len(points), "excluded": excluded, "share": [share.point, share.low, share.high], "auc": points}


def check_of(config: Config) -> dict[str, Estimate]:
    """Attacks where both worlds are one, on many short runs of global DP: all have to be guessing."""
    short = config.model_copy(update={"rounds": 1, "seed": config.seed + 1})
    stage = stage_of(plan_settings(short, compare=False)[-1], Roles.of(3, world="itself"), short.seed)
    scores: dict[tuple[str, bool], list[float]] = {}
    for inside in (True, False):
        cases = [Case(stage.label, HONEST, "run", inside, i) for i in range(CHECK_RUNS)]
        for first in range(0, CHECK_RUNS, stage.block):
            for replicate in stage.play(cases[first : first + stage.block], lambda: None):
                for name in CHECKED:
                    scores.setdefault((name, inside), []).append(replicate.scores[name][-1])
    return {name: auc_interval(scores[name, True], scores[name, False]) for name in CHECKED}


def kept(found: Audit) -> dict[str, Any]:
    """An audit without the scores of its runs, and without the time of its last call."""
    values = {k: v for k, v in found.values.items() if k not in ("versions", "source", "notes", "seconds")}
    drop = ("scores", "notes", "true_rates", "unit", "threat")
    values["results"] = [{k: v for k, v in r.items() if k not in drop} for r in values["results"]]
    paper = values["paper"]
    values["paper"] = {kind: [{k: v for k, v in r.items() if k not in drop} for r in paper[kind]] for kind in paper}
    return values


def rounded(values: Any) -> Any:
    """Plain values with four significant digits."""
    if isinstance(values, dict):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded(value) for value in values]
    return float(f"{values:.4g}") if isinstance(values, float) else values


def page(
    settings: dict[str, Audit],
    worlds: dict[str, Audit],
    more: dict[str, dict[str, Audit]],
    check: dict[str, Estimate],
    nulls: dict[str, Any],
) -> str:
    """The tables for people."""
    lines = [HEAD, ""]
    for noise, found in settings.items():
        runs, ceiling = found.values["replicates"], found.values["epsilon_ceiling"]
        lines += [f"## z = {noise}: AUC (95% over {runs} + {runs} independent runs)", ""]
        lines += table("attack", found.settings, auc_rows(found, found.settings))
        lines += ["", f"Advantage; measured epsilon >= at 95% (at most {ceiling:.2f} can be proven):", ""]
        lines += table("attack", found.settings, bound_rows(found))
        lines += [""]
    runs = next(iter(worlds.values())).values["replicates"]
    lines += [f"## What stands in the target's place (z = 0.5): AUC (95% over {runs} + {runs} runs)", ""]
    lines += beside(worlds)
    lines += [f"* {world}: {IN_ITS_PLACE[world]}" for world in worlds if world in IN_ITS_PLACE]
    lines += ["", SHARED.format(CHECK_RUNS), ""]
    lines += table("", list(check), [["itself", *map(interval, check.values())]])
    lines += ["", f"## What the adversary holds (z = 0.5): AUC (95% over {runs} + {runs} runs)", ""]
    lines += beside(more["shadows"])
    lines += [f"* {kind}: {what}" for kind, what in SHADOWS.items()]
    lines += ["", f"## Among more clients (z = 0.5): AUC (95% over {runs} + {runs} runs)", ""]
    lines += [
        "`colluding` pools what two clients sent: all but the target among three, two of five others among six.",
        "",
    ]
    lines += beside(more["six clients"])
    lines += ["## The paper's multi-round statistic, with the target in neither run", ""]
    head = ("pairs of runs", "interval excludes .5", "share (95%)", "AUC from", "to")
    rows = []
    for label, null in nulls.items():
        point, low, high = null["share"]
        shown = f"{point:.0%} ({low:.0%}-{high:.0%})"
        rows.append(
            [label, null["pairs"], null["excluded"], shown, f"{min(null['auc']):.2f}", f"{max(null['auc']):.2f}"]
        )
    lines += table("setting", head, rows)
    return "\n".join(lines) + "\n"


def beside(audits: dict[str, Audit]) -> list[str]:
    """Several audits side by side, without a defence and with it."""
    lines = []
    for label, column in (("vanilla", 0), ("global", 1)):
        rows = [[name, *cells] for name, cells in across(audits, column).items()]
        lines += [*table(f"attack, {label}", list(audits), rows), ""]
    return lines


def auc_rows(found: Audit, labels: Sequence[str]) -> list[list[str]]:
    """Accuracy and average noise, then a line an attack, then the paper's."""
    about = [found.values["settings"][label] for label in labels]
    rows = [["accuracy with the target", *(f"{a['accuracy']:.3f}" for a in about)]]
    for name, key in (("with", "sigma"), ("without", "sigma_without_target")):
        shown = ("-" if a[key] is None else f"{a[key]:.3f}" for a in about)
        rows.append([f"average sigma {name} the target", *shown])
    for name, by in by_attack(found).items():
        star = " *" if any(v.supposed for v in by.values()) else ""
        rows.append([name + star, *(interval(by[label].result.auc) for label in labels)])
    paper = {r.setting: r for r in found.multi_rounds}
    rows.append(["paper-multi-round (over rounds: no inference)", *(interval(paper[label].auc) for label in labels)])
    shots = {s.setting: s for s in found.single_shots}
    rows.append(["paper-single-shot (no other world)", *(f"{shots[label].difference:.1f}%" for label in labels)])
    return rows


def bound_rows(found: Audit) -> list[list[str]]:
    """Advantage and bound of each attack, then what all prove together."""
    rows = []
    for name, by in by_attack(found).items():
        results = [by[label].result for label in found.settings]
        rows.append([name, *(f"{r.advantage.point:.2f}; {r.epsilon.lower:.2f}" for r in results)])  # type: ignore[union-attr]
    together = found.judged.together
    rows.append(["together", *(f"{together[s].lower:.2f} of {together[s].ceiling:.2f}" for s in found.settings)])
    return rows


def across(worlds: dict[str, Audit], column: int) -> dict[str, list[str]]:
    """By attack, the AUC in each world."""
    found: dict[str, list[str]] = {}
    for audited in worlds.values():
        for name, by in by_attack(audited).items():
            found.setdefault(name, []).append(interval(by[audited.settings[column]].result.auc))
    return found


def interval(value: Any) -> str:
    """A figure for the page."""
    return f"{value.point:.3f} ({value.low:.2f}-{value.high:.2f})"


def table(first: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A Markdown table."""
    head = [f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return head + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


if __name__ == "__main__":
    main()
