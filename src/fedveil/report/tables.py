"""Tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.table import Table

from fedveil.accounting import Plan
from fedveil.experiments.summary import LAST, Summary

NOTHING = "-"
WIDE = 130  # columns of a terminal that holds the whole table


def grouped(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Summaries by setting, in order; several of one setting are repetitions under other seeds."""
    found: dict[str, list[Summary]] = {}
    for summary in summaries:
        found.setdefault(summary.setting, []).append(summary)
    return found


def based(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Summaries by setting as it was written: the points of a swept one belong together."""
    found: dict[str, list[Summary]] = {}
    for summary in summaries:
        found.setdefault(str(summary.values.get("base", summary.setting)), []).append(summary)
    return found


def comparison_tables(summaries: Sequence[Summary], width: int) -> list[Table]:
    """One row a setting: accuracy, F1, sigma, d, noise-to-clip, guarantee with its unit, seconds.

    On a narrow terminal the guarantees have a table of their own.
    """
    narrow = width < WIDE
    figures = ("accuracy", "f1") if summaries[0].values["task"] == "classification" else ("rmse", "loss")
    seeds = max(len(runs) for runs in grouped(summaries).values())
    over = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    deviation = "seeds" if seeds > 1 else "these rounds"
    covered = min(LAST, int(summaries[0].values["rounds"]))
    title = f"{figures[0]}: mean of the last {covered} rounds, {over}, ± standard deviation over {deviation}"
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(title=title, title_justify="left", title_style="", **style)
    table.add_column("setting", no_wrap=True)
    attacked = any(s.values.get("audited") for s in summaries)
    last = ("noise/clip", "attack AUC") if attacked else ("noise/clip",)
    for name in (*(f.upper() if f == "f1" else f for f in figures), "sigma", "d", *last):
        table.add_column(name, justify="right", no_wrap=True)
    promises = Table(**style) if narrow else table
    if narrow:
        promises.add_column("setting", no_wrap=True)
    promises.add_column("seconds", justify="right", no_wrap=True)
    promises.add_column("guarantee")
    for label, runs in grouped(summaries).items():
        measured = [_averaged(runs, figure) for figure in figures]
        measured += [_noise(runs, figure) for figure in ("sigma", "distance", "noise_to_clip")]
        measured += [_attacked(runs[0])] if attacked else []
        seconds = f"{fmean(float(r.values['seconds']['rounds']) for r in runs):.1f}"
        if narrow:
            table.add_row(label, *measured)
            promises.add_row(label, seconds, _guarantee(runs))
        else:
            table.add_row(label, *measured, seconds, _guarantee(runs))
    return [table, promises] if narrow else [table]


def comparison_notes(summaries: Sequence[Summary]) -> list[str]:
    """What has to be said beside the table."""
    first = summaries[0].values
    notes = [
        f"{first['data']['name']}, {first['clients']} clients, {first['rounds']} rounds, {first['dimension']:,} "
        "parameters; measured on the clients' held-out examples, pooled. sigma: standard deviation of the noise per "
        "coordinate, mean over the rounds; d: distance of the clients' models; noise/clip: sigma sqrt(parameters) / C.",
        f"Noise source: {first['source']}.",
    ]
    found = (c for s in summaries for g in s.values["guarantees"].values() for c in g.get("conditions", []))
    conditions = list(dict.fromkeys(found))
    if conditions:
        notes.append(f"conditional: it holds if {' and if '.join(conditions)}.")
    notes.append(f"Metrics that clients see after each round: {first['published_metrics']['text']}.")
    methods = {s.values["method"] for s in summaries}
    if "metric" in methods:
        notes.append(
            "heuristic: noise was added, but no definition of privacy is satisfied, so there is no epsilon. Metric "
            "privacy's server sees every client's model in the clear, and sigma itself depends on them."
        )
    derived = [s for s in summaries if s.values["derived_from"]]
    if derived:
        origin = derived[0].values["derived_from"]
        notes.append(
            f"{derived[0].setting}: its noise multiplier was derived from private runs of {origin!r}: a study, not a "
            "deployment."
        )
    audits = {s.setting: s.values["audits"][0] for s in summaries if s.values.get("audits")}
    if audits:
        runs = max(a["runs"] for a in audits.values())
        counted = Counter(a["attack"] for a in audits.values())
        strongest = ", ".join(f"{attack} ({count} settings)" for attack, count in counted.most_common())
        notes.append(
            f"attack AUC: does the last client take part? {runs} runs with it and {runs} without, 95% over runs. The "
            f"strongest attack of those that work without the defence or evidently against it: {strongest}. Taking the "
            "strongest of several flatters the attacker a little."
        )
    elif any(s.values.get("audited") for s in summaries):
        notes.append("attack AUC: no attack evidently works here, with or without a defence; more runs would tell.")
    if first["data"]["note"]:
        notes.append(str(first["data"]["note"]))
    notes += first["data"].get("warnings", [])
    notes += [f"{s.setting}: {fallen}" for s in summaries if (fallen := fell_back(s))]
    stopped = [f"{s.setting}: stopped early, {s.stopped}" for s in summaries if s.stopped]
    return notes + stopped


def fell_back(summary: Summary) -> str:
    """In how many rounds metric privacy had no distance to divide by; an empty text if in none."""
    count = sum(bool(row["server"].get("global_fallback")) for row in summary.rows)
    if not count:
        return ""
    return f"global DP's noise in {count} of {len(summary.rows)} rounds: there were no two different models to compare"


def run_table(summary: Summary) -> Table:
    """One run, a line a fact."""
    values = summary.values
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, found in values["last_rounds"].items():
        mean = f"; {found['mean']:.4g} ± {found['deviation']:.2g} over the last {found['rounds']} rounds"
        table.add_row(name, f"{values['metrics'][name]:.4g} after the last round{mean if found['rounds'] > 1 else ''}")
    for name, value in values["test_metrics"].items():
        if name == "accuracy":
            table.add_row("test accuracy", f"{value:.4g} on the set's own test half")
    for name, found in values["noise"].items():
        parts = [f"{when} {found[when]:.4g}" for when in ("first", "last", "mean")]
        table.add_row(name.replace("_", " "), ", ".join(parts))
    fallen = fell_back(summary)
    if fallen:
        table.add_row("distance", fallen)
    for party, guarantee in values["guarantees"].items():
        leakage = guarantee.get("leakage")
        extra = "" if leakage is None else f"; leakage {leakage:.4g} (sum of n / nu, no guarantee)"
        table.add_row(f"guarantee, {party}", f"{guarantee['text']}{extra}")
    worst = next(iter(values["guarantees"].values()))
    if worst.get("reason"):
        table.add_row("", f"heuristic because {worst['reason']}")
    for condition in worst.get("conditions", []):
        table.add_row("", f"if {condition}")
    table.add_row("published metrics", str(values["published_metrics"]["text"]))
    replies = values["replies"]
    table.add_row("replies", ", ".join(f"{count} {kind}" for kind, count in replies.items()))
    table.add_row("noise source", str(values["source"]))
    table.add_row("time", f"{values['seconds']['rounds']:.1f} s in {values['rounds']} rounds")
    if values["data"]["note"]:
        table.add_row("note", str(values["data"]["note"]))
    return table


def plan_table(plan: Plan) -> Table:
    """A plan with everything its numbers mean."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    flag = " (vacuous)" if plan.vacuous else ""
    table.add_row(
        "epsilon", f"{plan.epsilon:.4g} at delta {plan.delta:g}{flag}: the total over all {plan.rounds} rounds"
    )
    table.add_row("unit", "client: all data of one client")
    table.add_row("relation", f"{plan.relation}: {_RELATIONS[plan.relation]}")
    table.add_row("trust", "central: the server sees the clients' updates and adds the noise")
    assumed = f"{plan.clients} clients, all in every round, uniform weights, updates clipped to {plan.clip:g}"
    table.add_row("assumes", assumed)
    table.add_row("noise multiplier", f"{plan.noise_multiplier:.6g} (z)")
    table.add_row("sigma", f"{plan.sigma:.4g} per coordinate of the mean update: z C / n")
    table.add_row("mu", f"{plan.mu:.4g} (Gaussian DP, total)")
    if plan.signal_to_noise is not None:
        meaning = f"length of an update over length of the noise, {plan.dimension:,} parameters"
        table.add_row("signal to noise", f"{plan.signal_to_noise:.3g}: {meaning}")
    table.add_row("advice", plan.advice())
    for warning in plan.warnings:
        table.add_row("warning", warning)
    return table


_RELATIONS: dict[str, str] = {
    "zero-out": "a client's update, or zero in its place",
    "add/remove": "with the client, or without it",
    "replace-one": "a client's data, or any other data in their place",
}


def facts(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> Table:
    """A plain table."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _averaged(runs: Sequence[Summary], figure: str) -> str:
    values = [v for v in (r.averaged(figure) for r in runs) if v is not None]
    if not values:
        return NOTHING
    deviation = stdev(values) if len(values) > 1 else runs[0].values["last_rounds"][figure]["deviation"]
    return f"{fmean(values):.3f} ±{deviation:.3f}"


def _noise(runs: Sequence[Summary], figure: str) -> str:
    values = [v for v in (r.noise(figure) for r in runs) if v is not None]
    return f"{fmean(values):.3g}" if values else NOTHING


def _attacked(run: Summary) -> str:
    for found in run.values.get("audits", ()):
        return f"{found['auc']:.3f} ({found['low']:.2f}-{found['high']:.2f})"
    return NOTHING


def _guarantee(runs: Sequence[Summary]) -> str:
    texts = dict.fromkeys(str(r.values["guarantee"]) for r in runs)
    return "; ".join(texts)
