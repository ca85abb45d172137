"""Tables of runs, comparisons and plans."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any

from fedveil.evidence import OF_TWO as RARE
from fedveil.gdp import rounded_up
from fedveil.tables import NOTHING, Table, grouped_by, shown
from fedveil_lab.report.choosing import cost_of_choosing
from fedveil_lab.report.learned import chance_level, price_unreadable
from fedveil_lab.report.planning import in_words, of_strength, of_whom, useful
from fedveil_lab.runs.summary import Summary

OF_TWO = ("accuracy", *RARE)
SHORT = {
    "f1": "F1",
    "auc": "AUC",
    "balanced_accuracy": "balanced",
    "sensitivity": "sens.",
    "specificity": "spec.",
}
NOISE_COLUMNS = {"sigma": "sigma", "distance": "d", "noise_to_clip": "noise/clip"}
NOISE_NAMES = {"noise_to_clip": "noise/clip", "signal_to_noise": "update/noise"}
WIDE = 130  # columns of a terminal that holds the whole table
THESE = "these rounds"  # over which the figures of a single seed spread


def grouped(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Group summaries by setting, in order; several of one setting are repetitions with other seeds."""
    return grouped_by(summaries, attrgetter("setting"))


def based(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Group summaries by the setting in the file; all points of a sweep belong to one."""
    return grouped_by(summaries, lambda s: str(s.values.get("base", s.setting)))


def swept(summary: Summary) -> str:
    """Write the swept values of a run briefly; "" without a sweep."""
    parts = []
    for name, value in summary.values.get("swept", {}).items():
        text, letter = str(value), name
        if isinstance(value, float):
            text = f"{value:g}"
        if name == "noise_multiplier":
            letter = "z"
        parts.append(f"{letter} {text}")
    return ", ".join(parts)


def quality(summaries: Sequence[Summary]) -> tuple[str, str]:
    """Return the figure by which a task is judged, and its name."""
    if summaries[0].values["task"] == "classification":
        return "accuracy", "accuracy"
    return "rmse", "RMSE"


def headline(summaries: Sequence[Summary]) -> str:
    """Write data set, number of clients and parameters, and rule in one line."""
    first = summaries[0].values
    line = f"{first['data']['name']}, {first['clients']} clients, {first['dimension']:,} parameters"
    if first["aggregator"]:
        line += f", {first['aggregator']}"
    return line


def worst_guarantee(summary: Summary) -> dict[str, Any]:
    """Return the run's main promise, which is the first in its summary: the server's, or the one for every client."""
    return dict(next(iter(summary.values["guarantees"].values())))


def comparison_tables(summaries: Sequence[Summary], width: int) -> list[Table]:
    """Make the table of a comparison, a row per setting: quality, noise, guarantee with its unit, and seconds.

    If the terminal is too narrow, guarantees form a second table.
    """
    figures, tested = figures_of(summaries), ""
    for name in ("auc", *figures):
        if not tested and all(name in summary.values["test_metrics"] for summary in summaries):
            tested = name
    names, on_test = (
        {name: SHORT.get(name, name) for name in figures},
        f"test {SHORT.get(tested, tested)}",
    )
    audited = any(summary.values.get("audited") for summary in summaries)
    rows: list[dict[str, str]] = []
    for label, runs in grouped(summaries).items():
        row = {"setting": label}
        for figure, name in names.items():
            spread = figure == figures[0] or figures != OF_TWO
            row[name] = _averaged(runs, figure, spread=spread)
        if tested:
            row[on_test] = _mean([run.values["test_metrics"][tested] for run in runs], ".3f")
        for figure, name in NOISE_COLUMNS.items():
            row[name] = _mean([run.noise(figure) for run in runs], ".3g")
        if audited:
            row["attack AUC"] = NOTHING
            for strongest in runs[0].values.get("audits", ())[:1]:
                span = f"({strongest['low']:.2f}-{strongest['high']:.2f})"
                row["attack AUC"] = f"{strongest['auc']:.3f} {span}"
        row["seconds"] = _mean([float(run.values["seconds"]["rounds"]) for run in runs], ".1f")
        promises = dict.fromkeys(str(run.values["guarantee"]) for run in runs)
        rows.append({**row, "guarantee": "; ".join(promises)})
    majority, public = _each(summaries, "majority"), _each(summaries, "public_model")
    if majority:
        guessed = {"accuracy": fmean(majority), "auc": 0.5, "balanced_accuracy": 0.5}
        row = {"setting": "majority class"}
        for figure, name in names.items():
            row[name] = shown(guessed.get(figure), ".3f")
        rows.append(row)
    if public:
        row = {"setting": "public examples alone"}
        for figure, name in names.items():
            row[name] = _mean([model["metrics"].get(figure) for model in public], ".3f")
        if tested:
            row[on_test] = _mean([model["test_metrics"][tested] for model in public], ".3f")
        rows.append({**row, "guarantee": "public data"})
    for column in NOISE_COLUMNS.values():
        if all(row.get(column, NOTHING) == NOTHING for row in rows):
            for row in rows:
                row.pop(column, None)
    header, data = list(rows[0]), [dict(summary.values) for summary in summaries]
    over, spread_over = covered(summaries, figures[0])
    title = f"{figures[0]}: {over}"
    if spread_over == THESE:
        title += f", ± standard deviation over {spread_over}"
    elif spread_over:
        title += f", mean ± standard deviation over {spread_over}"
    whole = Table.of(rows, title=title, numbers=header[1:-1], wraps=["guarantee"], data=data)
    if width >= WIDE:
        return [whole]
    first = header.index("seconds")
    if figures == OF_TWO and "sigma" in header:
        first = header.index("sigma")
    return [whole.only(*header[:first]), whole.only("setting", *header[first:])]


def _each(summaries: Sequence[Summary], name: str) -> list[Any]:
    """List a value from the summaries that have it."""
    return [summary.values[name] for summary in summaries if name in summary.values]


def covered(summaries: Sequence[Summary], figure: str) -> tuple[str, str]:
    """Say over which rounds a figure is averaged, and over what mean and deviation are taken."""
    counts = [s.values["last_rounds"].get(figure, {}).get("rounds", 0) for s in summaries]
    least, most = min(filter(None, counts), default=0), max(counts)
    rounds = over = ""
    if most > 1:
        over = THESE
        rounds = f"mean of the last {most} rounds"
        if least < most:
            rounds = f"mean of the last {least} to {most} rounds"
    seeds = max(map(len, grouped(summaries).values()))
    if seeds > 1:
        over = f"{seeds} seeds"
    return rounds or "last round", over


def figures_of(summaries: Sequence[Summary]) -> tuple[str, ...]:
    """List the figures by which a comparison is judged; with a rare class further ones beside accuracy."""
    if summaries[0].values["task"] != "classification":
        return ("rmse", "loss")
    if all(summary.values["last_rounds"].keys() >= set(OF_TWO) for summary in summaries):
        return OF_TWO
    return ("accuracy", "f1")


def below_public(summaries: Sequence[Summary]) -> list[str]:
    """List noisy settings that end below the public model with which they began, compared seed by seed."""
    gains: dict[str, list[float]] = {}
    for run in summaries:
        public = run.values.get("public_model")
        if not public or run.values["method"] == "vanilla":
            continue
        where = "metrics"
        if "accuracy" in public["test_metrics"]:
            where = "test_metrics"
        gain = run.values[where]["accuracy"] - public[where]["accuracy"]
        gains.setdefault(run.setting, []).append(gain)
    return [setting for setting, own in gains.items() if fmean(own) < 0]


def comparison_notes(summaries: Sequence[Summary]) -> list[str]:
    """Write the notes beside the table, each once."""
    first, everybody = summaries[0].values, grouped(summaries)
    notes = [
        _about_the_table(summaries),
        f"Noise source: {first['source']}.",
        f"Metrics that clients see after each round: {first['published_metrics']['text']}.",
    ]
    if any(summary.values.get("audited") or summary.values.get("audits") for summary in summaries):
        notes.append(_about_the_attacks(everybody))
    if first["data"]["note"]:
        notes.append(str(first["data"]["note"]))
    notes += _said_once(everybody, below_public(summaries))
    notes += [*price_unreadable(everybody), *cost_of_choosing(summaries)]
    return [*notes, *_conditions(summaries)]


def _about_the_table(summaries: Sequence[Summary]) -> str:
    """Write the size of the federation, where figures are measured, and what the columns mean."""
    first = summaries[0].values
    sentences = [
        f"{first['data']['name']}, {first['clients']} clients, {first['rounds']} rounds, {first['dimension']:,} "
        "parameters; measured on the clients' held-out examples, pooled."
    ]
    if figures_of(summaries) == OF_TWO:
        sentences.append("balanced, sens., spec.: balanced accuracy, sensitivity, specificity.")
        if "positive" in first:
            which = f"AUC, sens. and spec. are of the positive class: {first['positive']}"
            if not first["positive_named"]:
                which += ", the second of the two (data.positive names the other)"
            sentences.append(f"{which}.")
    columns = _noise_columns(summaries)
    if columns:
        sentences.append(columns)
    return " ".join(sentences)


def _about_the_attacks(everybody: Mapping[str, Sequence[Summary]]) -> str:
    """Write what the column of attacks means, and how often each attack was the strongest."""
    strongest = []
    for runs in everybody.values():
        strongest += list(runs[0].values.get("audits", ()))[:1]
    if not strongest:
        return "attack AUC: no attack evidently works here, with or without a defence; more runs would tell."
    runs_each = max(attack["runs"] for attack in strongest)
    counted = Counter(attack["attack"] for attack in strongest)
    names = ", ".join(f"{attack} ({count} settings)" for attack, count in counted.most_common())
    return (
        f"attack AUC: does the last client take part? {runs_each} runs with it and {runs_each} without, 95% over "
        f"runs. The strongest attack that works, which flatters it a little: {names}."
    )


def _said_once(
    everybody: Mapping[str, Sequence[Summary]], worse_than_public: Sequence[str]
) -> list[str]:
    """List notes on single settings; equal notes are merged and name all their settings."""
    about: dict[str, list[str]] = {}
    for label, runs in everybody.items():
        for sentence in _said_of(runs):
            labels = about.setdefault(sentence, [])
            if label not in labels:
                labels.append(label)
    if worse_than_public:
        sentence = "less accurate than the model of public examples alone, which protects everybody: take that one."
        about[sentence] = list(worse_than_public)
    notes = []
    for sentence, labels in about.items():
        if len(labels) == len(everybody) > 1:
            notes.append(sentence)
        elif len(labels) == 1:
            notes.append(f"{labels[0]}: {sentence}")
        else:
            quoted = " and ".join(f'"{label}"' for label in labels)
            notes.append(f"{quoted}: {sentence}")
    return notes


def _conditions(summaries: Sequence[Summary]) -> list[str]:
    """List the conditions of all promises, each once."""
    stated: list[str] = []
    for summary in summaries:
        for guarantee in summary.values["guarantees"].values():
            stated += guarantee.get("conditions", [])
    return [f"Condition: {condition}." for condition in dict.fromkeys(stated)]


def _noise_columns(summaries: Sequence[Summary]) -> str:
    """Explain the noise columns that are in the table."""
    meanings = {
        "sigma": "sigma: standard deviation of the noise per coordinate, mean over the rounds",
        "distance": "d: distance of the clients' models",
        "noise_to_clip": "noise/clip: sigma sqrt(parameters) / C",
    }
    there = []
    for figure, text in meanings.items():
        if any(summary.noise(figure) is not None for summary in summaries):
            there.append(text)
    if not there:
        return ""
    return f"{'; '.join(there)}."


def _said_of(runs: Sequence[Summary]) -> Iterator[str]:
    """Yield the notes on one setting."""
    first = runs[0].values
    promise = worst_guarantee(runs[0])
    sentences = []
    if promise["status"] != "none":
        sentences += [of_whom(promise), of_strength(promise)]
    instead = useful(first)
    if instead:
        sentences.append(f"To promise something: {instead}.")
    sentences += [*first["data"].get("warnings", []), chance_level(runs)]
    for run in runs:
        sentences += _said_of_run(run)
    yield from filter(None, sentences)


def _said_of_run(run: Summary) -> list[str]:
    """List the notes on one run; "" where there is none."""
    sentences = []
    malicious = run.values.get("malicious")
    if malicious:
        sentences.append(f"malicious: {malicious_text(malicious)}")
    last = run.values["metrics"]
    if run.values.get("classes") == 2 and 0.0 in (last.get("sensitivity"), last.get("specificity")):
        sentences.append(
            "the model names one class, whatever it is shown; its accuracy is that class's share."
        )
    sentences.append(fell_back(run))
    if run.stopped:
        sentences.append(f"stopped early, {run.stopped}")
    return sentences


def fell_back(summary: Summary) -> str:
    """Say in how many rounds metric privacy had no distance to divide by; "" if in none."""
    count = sum(bool(row["server"].get("global_fallback")) for row in summary.rows)
    if not count:
        return ""
    return f"global DP's noise in {count} of {len(summary.rows)} rounds: there were no two different models to compare"


def malicious_text(malicious: Mapping[str, Any]) -> str:
    """Say how many clients were malicious, and how well their attack worked."""
    how = malicious["behaviour"]
    if not malicious["acting"]:
        how += ", not acting: the clean rate"
    text = f"{malicious['number']} ({how})"
    if malicious["relabelled"]:
        text += f", {malicious['relabelled']} of their {malicious['examples']} examples relabelled"
    if "success" in malicious:
        where = f"{malicious['goal_examples']} of the {malicious['measured_on']}"
        text += f"; success {malicious['success']:.3g} on {where}, recall there {malicious['recall']:.3g}"
        text += f"; accuracy {malicious['accuracy']:.3g}"
    return text


def run_table(summary: Summary) -> Table:
    """Make the table of one run, with a line per fact."""
    values, worst, instead = summary.values, worst_guarantee(summary), useful(summary.values)
    malicious = values.get("malicious", {})
    rows: list[tuple[str, str]] = []
    for name, figures in values["last_rounds"].items():
        text = f"{values['metrics'][name]:.4g} after the last round"
        if figures["rounds"] > 1:
            text += f"; {figures['mean']:.4g} ± {figures['deviation']:.2g} over the last {figures['rounds']} rounds"
        rows.append((name, text))
    if "accuracy" in values["test_metrics"]:
        on_test = values["test_metrics"]["accuracy"]
        rows.append(("test accuracy", f"{on_test:.4g} on the set's own test half"))
    rows.append(("learned", chance_level([summary])))
    if malicious:
        rows.append(("malicious clients", malicious_text(malicious)))
    for name, figures in values["noise"].items():
        if name == "signal_to_noise" and _says_the_same(values["noise"]):
            continue
        parts = {when: f"{figures[when]:.4g}" for when in ("first", "last", "mean")}
        text = ", ".join(f"{when} {value}" for when, value in parts.items())
        if len(set(parts.values())) == 1:
            text = f"{parts['mean']} in every round"
        rows.append((NOISE_NAMES.get(name, name), text))
    rows.append(("distance", fell_back(summary)))
    if malicious.get("unprotected"):
        who = ", ".join(map(str, malicious["clients"]))
        rows.append(("nothing promised to", f"malicious clients {who}: they go around the method"))
    rows.append(("promise", in_words(worst)))
    for party, guarantee in _parties(values["guarantees"]).items():
        text, leakage, curve = guarantee["text"], guarantee.get("leakage"), guarantee.get("curve")
        if leakage is not None:
            what = "sum of n / nu"
            if values["trust"] == "central":
                what = "of the reported index alone, ln k a round"
            text += f"; leakage {rounded_up(leakage)} ({what}, no guarantee)"
        rows.append((f"guarantee, {party}", text))
        if curve:
            pairs = zip(curve["epsilon"], curve["distance"], strict=True)
            points = ", ".join(f"{rounded_up(e, 3)} at {d:.3g}" for e, d in pairs)
            rows.append(
                ("", f"eps over the distance of every round, delta={curve['delta']:g}: {points}")
            )
    rows += [("condition", condition) for condition in worst.get("conditions", [])]
    rows += [
        ("to be useful", instead),
        ("published metrics", str(values["published_metrics"]["text"])),
        ("replies", ", ".join(f"{count} {kind}" for kind, count in values["replies"].items())),
        ("noise source", str(values["source"])),
        ("time", f"{values['seconds']['rounds']:.1f} s in {values['rounds']} rounds"),
        ("note", str(values["data"]["note"])),
    ]
    data = dict(values)
    if instead:
        data["to be useful"] = instead
    return Table.facts([(name, text) for name, text in rows if text], data)


def _says_the_same(noise: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether a run's signal to noise is 1 over its noise/clip, as where no update was measured."""
    ratio, inverse = noise.get("noise_to_clip"), noise["signal_to_noise"]
    if ratio is None:
        return False
    return all(isclose(ratio[when] * inverse[when], 1, rel_tol=1e-3) for when in ("first", "last"))


def _parties(guarantees: Mapping[str, Any]) -> dict[str, Any]:
    """List promises by party; the median client's is left out if it equals the worst client's."""
    parties, by_name = dict(guarantees), dict[str, Any]()
    worst, middle = parties.get("worst client"), parties.get("median client")
    if worst is not None and middle is not None and worst["text"] == middle["text"]:
        del parties["median client"]
        for party, own in parties.items():
            name = party
            if party == "worst client":
                name = "every client"
            by_name[name] = own
        return by_name
    return parties


def _averaged(runs: Sequence[Summary], figure: str, spread: bool = True) -> str:
    averages = [run.averaged(figure) for run in runs]
    values = [value for value in averages if value is not None]
    mean, last = _mean(values, ".3f"), runs[0].values["last_rounds"].get(figure, {})
    if not spread or not values or len(values) == 1 == last["rounds"]:
        return mean
    if len(values) > 1:
        return f"{mean} ±{stdev(values):.3f}"
    return f"{mean} ±{last['deviation']:.3f}"


def _mean(values: Iterable[float | None], form: str) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return NOTHING
    return format(fmean(there), form)
