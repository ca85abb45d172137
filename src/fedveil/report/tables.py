"""Tables of runs, comparisons and plans."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedveil.gdp import rounded_up
from fedveil.report.planning import useful
from fedveil.report.table import NOTHING, Table, grouped_by
from fedveil.runs.summary import Summary

OF_TWO = ("accuracy", "macro_auc", "balanced_accuracy", "sensitivity", "specificity")
SHORT = {
    "f1": "F1",
    "macro_auc": "AUC",
    "balanced_accuracy": "balanced",
    "sensitivity": "sens.",
    "specificity": "spec.",
}
WIDE = 130  # columns of a terminal that holds the whole table


def grouped(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Summaries by setting, in order; several of one setting are repetitions under other seeds."""
    return grouped_by(summaries, lambda s: s.setting)


def based(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Summaries by setting as it was written: the points of a swept one belong together."""
    return grouped_by(summaries, lambda s: str(s.values.get("base", s.setting)))


def swept(summary: Summary) -> str:
    """The values of what is swept, in a few letters; nothing where nothing is."""
    return ", ".join(_short(name, value) for name, value in summary.values.get("swept", {}).items())


def _short(name: str, value: Any) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{'z' if name == 'noise_multiplier' else name} {shown}"


def quality(summaries: Sequence[Summary]) -> tuple[str, str]:
    """The figure that a task is judged by, and its name for people."""
    return ("accuracy", "accuracy") if summaries[0].values["task"] == "classification" else ("rmse", "RMSE")


def headline(summaries: Sequence[Summary]) -> str:
    """Data, clients, parameters and rule in a line."""
    first = summaries[0].values
    rule = f", {first['aggregator']}" if first["aggregator"] else ""
    return f"{first['data']['name']}, {first['clients']} clients, {first['dimension']:,} parameters{rule}"


def worst_guarantee(summary: Summary) -> dict[str, Any]:
    """Of the party that counts."""
    found: dict[str, Any] = next(iter(summary.values["guarantees"].values()))
    return found


def promise_of(summary: Summary) -> str:
    """Whose promise it is, who is trusted, and between which neighbours."""
    found = worst_guarantee(summary)
    return f"{found['unit']} {found['trust']} {found['relation']}"


def proven_epsilon(summary: Summary) -> float | None:
    """The epsilon of a run that has one; a heuristic has none."""
    found = worst_guarantee(summary)
    return float(found["epsilon"]) if found["status"] in ("formal", "conditional") and "epsilon" in found else None


def comparison_tables(summaries: Sequence[Summary], width: int) -> list[Table]:
    """One row a setting: accuracy, F1, sigma, d, noise-to-clip, guarantee with its unit, seconds.

    On a narrow terminal the guarantees have a table of their own.
    """
    figures = figures_of(summaries)
    seeds = max(len(runs) for runs in grouped(summaries).values())
    over = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    covered = max((s.values["last_rounds"].get(figures[0], {}).get("rounds", 1) for s in summaries), default=1)
    title = f"{figures[0]}: {f'mean of the last {covered} rounds' if covered > 1 else 'after the last round'}, {over}"
    if seeds > 1 or covered > 1:
        title += f", ± standard deviation over {'seeds' if seeds > 1 else 'these rounds'}"
    attacked = any(s.values.get("audited") for s in summaries)
    tested = next((f for f in ("macro_auc", *figures) if all(f in s.values["test_metrics"] for s in summaries)), "")
    numbers = [*(SHORT.get(f, f) for f in figures), *[f"test {SHORT.get(tested, tested)}"] * bool(tested)]
    numbers += ["sigma", "d", "noise/clip", *["attack AUC"] * attacked]
    rows = []
    for label, runs in grouped(summaries).items():
        cells = [_averaged(runs, figure, spread=figure == figures[0] or figures != OF_TWO) for figure in figures]
        cells += [f"{fmean(r.values['test_metrics'][tested] for r in runs):.3f}"] if tested else []
        cells += [_noise(runs, figure) for figure in ("sigma", "distance", "noise_to_clip")]
        cells += [_attacked(runs[0])] if attacked else []
        seconds = f"{fmean(float(r.values['seconds']['rounds']) for r in runs):.1f}"
        rows.append([label, *cells, seconds, _guarantee(runs)])
    if majority := [s.values["majority"] for s in summaries if "majority" in s.values]:
        guessed = {"accuracy": fmean(majority), "macro_auc": 0.5, "balanced_accuracy": 0.5}
        cells = [f"{guessed[f]:.3f}" if f in guessed else NOTHING for f in figures]
        rows.append(["majority class", *cells, *[NOTHING] * (len(numbers) - len(cells) + 1), NOTHING])
    if public := [s.values["public_model"] for s in summaries if "public_model" in s.values]:
        cells = [f"{fmean(p['metrics'].get(f, math.nan) for p in public):.3f}" for f in figures]
        cells += [f"{fmean(p['test_metrics'][tested] for p in public):.3f}"] if tested else []
        rows.append(["public examples alone", *cells, *[NOTHING] * (len(numbers) - len(cells) + 1), "public data"])
    header = ["setting", *numbers, "seconds", "guarantee"]
    data = [dict(s.values) for s in summaries]
    whole = Table(header, rows, title, [*numbers, "seconds"], ["guarantee"], data=data)
    first = numbers.index("sigma") if figures == OF_TWO else len(numbers)
    parts = [("setting", *numbers[:first]), ("setting", *numbers[first:], "seconds", "guarantee")]
    return [whole] if width >= WIDE else [whole.only(*names) for names in parts]


def figures_of(summaries: Sequence[Summary]) -> tuple[str, ...]:
    """What a comparison is judged by: of two classes, what accuracy hides where one is rare, if it was measured."""
    if summaries[0].values["task"] != "classification":
        return ("rmse", "loss")
    if all(name in s.values["last_rounds"] for s in summaries for name in OF_TWO):
        return OF_TWO
    return ("accuracy", "f1")


def one_class(summary: Summary) -> bool:
    """Whether the last model of two classes names one of them alone."""
    last = summary.values["metrics"]
    return summary.values.get("classes") == 2 and 0.0 in (last.get("sensitivity"), last.get("specificity"))


def below_public(summaries: Sequence[Summary]) -> list[str]:
    """Settings that add noise and end below the model of public examples with which they began, seed by seed."""
    found = []
    for label, runs in grouped(summaries).items():
        begun = [r for r in runs if "public_model" in r.values and r.values["method"] != "vanilla"]
        tested = all("accuracy" in r.values["public_model"]["test_metrics"] for r in begun)
        where = "test_metrics" if tested else "metrics"
        gains = [r.values[where]["accuracy"] - r.values["public_model"][where]["accuracy"] for r in begun]
        if gains and fmean(gains) < 0:
            found.append(label)
    return found


def comparison_notes(summaries: Sequence[Summary]) -> list[str]:
    """What has to be said beside the table."""
    first = summaries[0].values
    of_two = "balanced, sens., spec.: balanced accuracy, sensitivity, specificity. " * (figures_of(summaries) == OF_TWO)
    notes = [
        f"{first['data']['name']}, {first['clients']} clients, {first['rounds']} rounds, {first['dimension']:,} "
        f"parameters; measured on the clients' held-out examples, pooled. {of_two}sigma: standard deviation of the "
        "noise per coordinate, mean over the rounds; d: distance of the clients' models; "
        "noise/clip: sigma sqrt(parameters) / C.",
        f"Noise source: {first['source']}.",
    ]
    found = (c for s in summaries for g in s.values["guarantees"].values() for c in g.get("conditions", []))
    conditions = list(dict.fromkeys(found))
    if conditions:
        notes.append(f"conditional: it holds if {' and if '.join(conditions)}.")
    notes += meanings_of(summaries)
    if worse := below_public(summaries):
        public = "less accurate than the model of public examples alone, which protects everybody"
        notes.append(f"{', '.join(worse)}: {public}: take that one.")
    for text, those in grouped_by(summaries, lambda s: useful(s.values)).items():
        notes += [f"{', '.join(grouped(those))}: vacuous; {text}."] * bool(text)
    notes.append(f"Metrics that clients see after each round: {first['published_metrics']['text']}.")
    reasons = {s.setting: why for s in summaries if (why := worst_guarantee(s).get("reason"))}
    notes += [f"{setting}: heuristic, there is no epsilon: {why}." for setting, why in reasons.items()]
    audits = {s.setting: s.values["audits"][0] for s in summaries if s.values.get("audits")}
    if audits:
        runs = max(a["runs"] for a in audits.values())
        counted = Counter(a["attack"] for a in audits.values())
        strongest = ", ".join(f"{attack} ({count} settings)" for attack, count in counted.most_common())
        asked = f"does the last client take part? {runs} runs with it and {runs} without, 95% over runs"
        notes.append(f"attack AUC: {asked}. The strongest attack that works, which flatters it a little: {strongest}.")
    elif any(s.values.get("audited") for s in summaries):
        notes.append("attack AUC: no attack evidently works here, with or without a defence; more runs would tell.")
    notes += [f"{s.setting}: malicious: {malicious_text(m)}" for s in summaries if (m := s.values.get("malicious"))]
    if alone := [s.setting for s in summaries if one_class(s)]:
        named = ", ".join(dict.fromkeys(alone))
        notes.append(f"{named}: the model names one class, whatever it is shown; its accuracy is that class's share.")
    if first["data"]["note"]:
        notes.append(str(first["data"]["note"]))
    everybody = grouped(summaries)
    said = [(own[0].setting, line) for own in everybody.values() for line in own[0].values["data"].get("warnings", [])]
    for line, warned in grouped_by(said, lambda pair: pair[1]).items():
        notes.append(line if len(warned) == len(everybody) else f"{', '.join(who for who, _ in warned)}: {line}")
    notes += [f"{s.setting}: {fallen}" for s in summaries if (fallen := fell_back(s))]
    stopped = [f"{s.setting}: stopped early, {s.stopped}" for s in summaries if s.stopped]
    return notes + stopped


def meanings_of(summaries: Sequence[Summary]) -> list[str]:
    """What each proven guarantee means for an attacker, a line a setting."""
    lines = {s.setting: _meaning(next(iter(s.values["guarantees"].values()))) for s in reversed(summaries)}
    return [f"{setting}: {line}" for setting, line in reversed(lines.items()) if line]


def _meaning(guarantee: Mapping[str, Any]) -> str:
    if not (meaning := guarantee.get("meaning")):
        return ""
    rates = [(k.removeprefix("tpr_at_"), v) for k, v in meaning.items() if k.startswith("tpr_at_")]
    power = ", ".join(f"{rounded_up(v, 3)} at {100 * float(rate):g}% false positives" for rate, v in rates)
    line = f"the best attacker tells whether one {guarantee['unit']} was there with an accuracy of "
    line += f"{rounded_up(meaning['accuracy'], 3)}; its true positives are at most {power}."
    if "epsilon_of_10_records" in guarantee:
        together = rounded_up(guarantee["epsilon_of_10_records"], 3)
        line += f" For 10 records of one person together epsilon is {together}."
    if "epsilon_of_one_record" in guarantee:
        line += f" For one of her records alone epsilon is {rounded_up(guarantee['epsilon_of_one_record'], 3)}."
    return line


def fell_back(summary: Summary) -> str:
    """In how many rounds metric privacy had no distance to divide by; an empty text if in none."""
    count = sum(bool(row["server"].get("global_fallback")) for row in summary.rows)
    if not count:
        return ""
    return f"global DP's noise in {count} of {len(summary.rows)} rounds: there were no two different models to compare"


def malicious_text(found: Mapping[str, Any]) -> str:
    """How many clients were malicious, and how far they got."""
    acting = "" if found["acting"] else ", not acting: the clean rate"
    text = f"{found['number']} ({found['behaviour']}{acting})"
    if found["relabelled"]:
        text += f", {found['relabelled']} of their {found['examples']} examples relabelled"
    if "success" in found:
        text += f"; success {found['success']:.3g} on {found['goal_examples']} of the {found['measured_on']}, "
        text += f"recall there {found['recall']:.3g}; accuracy {found['accuracy']:.3g}"
    return text


def run_table(summary: Summary) -> Table:
    """One run, a line a fact."""
    values = summary.values
    rows: list[tuple[str, str]] = []
    for name, found in values["last_rounds"].items():
        mean = f"; {found['mean']:.4g} ± {found['deviation']:.2g} over the last {found['rounds']} rounds"
        rows.append((name, f"{values['metrics'][name]:.4g} after the last round{mean if found['rounds'] > 1 else ''}"))
    for name, value in values["test_metrics"].items():
        if name == "accuracy":
            rows.append(("test accuracy", f"{value:.4g} on the set's own test half"))
    if "malicious" in values:
        rows.append(("malicious clients", malicious_text(values["malicious"])))
    for name, found in values["noise"].items():
        parts = [f"{when} {found[when]:.4g}" for when in ("first", "last", "mean")]
        rows.append((name.replace("_", " "), ", ".join(parts)))
    fallen = fell_back(summary)
    if fallen:
        rows.append(("distance", fallen))
    if values.get("malicious", {}).get("unprotected"):
        who = ", ".join(map(str, values["malicious"]["clients"]))
        rows.append(("nothing promised to", f"malicious clients {who}: they go around the method"))
    for party, guarantee in values["guarantees"].items():
        leakage = guarantee.get("leakage")
        what = "of the reported index alone, ln k a round" if values["trust"] == "central" else "sum of n / nu"
        extra = "" if leakage is None else f"; leakage {rounded_up(leakage)} ({what}, no guarantee)"
        rows.append((f"guarantee, {party}", f"{guarantee['text']}{extra}"))
        if curve := guarantee.get("curve"):
            pairs = zip(curve["epsilon"], curve["distance"], strict=True)
            points = ", ".join(f"{rounded_up(e, 3)} at {d:.3g}" for e, d in pairs)
            rows.append(("", f"eps over the distance of every round, delta={curve['delta']:g}: {points}"))
    worst = next(iter(values["guarantees"].values()))
    if meaning := _meaning(worst):
        rows.append(("", meaning))
    if worst.get("reason"):
        rows.append(("", f"heuristic because {worst['reason']}"))
    for condition in worst.get("conditions", []):
        rows.append(("", f"if {condition}"))
    if instead := useful(values):
        rows.append(("to be useful", instead))
    rows.append(("published metrics", str(values["published_metrics"]["text"])))
    replies = values["replies"]
    rows.append(("replies", ", ".join(f"{count} {kind}" for kind, count in replies.items())))
    rows.append(("noise source", str(values["source"])))
    rows.append(("time", f"{values['seconds']['rounds']:.1f} s in {values['rounds']} rounds"))
    if values["data"]["note"]:
        rows.append(("note", str(values["data"]["note"])))
    return Table.facts(rows, {**values, **({"to be useful": instead} if instead else {})})


def _averaged(runs: Sequence[Summary], figure: str, spread: bool = True) -> str:
    values = [v for v in (r.averaged(figure) for r in runs) if v is not None]
    if not values:
        return NOTHING
    last = runs[0].values["last_rounds"][figure]
    deviation = stdev(values) if len(values) > 1 else last["deviation"]
    spread &= len(values) > 1 or last["rounds"] > 1
    return f"{fmean(values):.3f} ±{deviation:.3f}" if spread else f"{fmean(values):.3f}"


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
