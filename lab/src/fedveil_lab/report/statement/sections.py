"""What a report says, in the order of a reader's questions: the promise first, then what it does not cover.

What follows from ledgers is told from what the author says: `Fact.said`, `Grid.said` and `ReportSection.said`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil_lab.report.statement.document import (
    WORDS,
    Fact,
    Grid,
    ReportSection,
    beside,
    epsilon_of,
    percent,
    protected,
)
from fedveil_lab.report.statement.subject import Run, Subject

PROVEN = ("formal", "conditional")
LEDGERS, AUTHOR = "ledgers", "the author"
UNBOUND = (
    " The ledgers are of an earlier version and name no parties: one may be missing, and whom to trust, at which delta "
    "and on which conditions is the author's word."
)
QUOTED = " No ledger gives this promise: the author says it."


def sections_of(subject: Subject) -> list[ReportSection]:
    """All of them; those without anything to say, too."""
    return [
        unit_of(subject),
        _trust(subject.by_setting, subject.people),
        ReportSection("leaves", [*unprotected_quantities(subject.runs), *_only_people("leaves", subject.people)]),
        subject.accuracy,
        subject.attacked,
        _tuned(subject),
        _budget(subject),
        ReportSection("policy", _policy(subject.policy), said=True),
        _origin(subject.runs),
        ReportSection("approval", _only_people("approval", subject.people), said=True),
    ]


def _only_people(section: str, people: Mapping[str, Any]) -> list[Fact]:
    """The lines of a section that only people can fill."""
    told = {key: [value] if isinstance(value, str) else value for key, value in people.items()}
    return [Fact.of(label, *told.get(key, ()), said=True) for label, key in WORDS[section].items()]


def headline_of(subject: Subject) -> list[dict[str, str]]:
    """Who is protected from whom, a sentence a setting."""
    lines = []
    for label, own in subject.by_setting.items():
        party = own[0].counts
        promise = subject.promises[label][party]
        lines.append({"setting": label, "party": party, "text": sentence_of(own, party, promise)})
    return lines


def sentence_of(runs: Sequence[Run], party: str, promise: Mapping[str, Any]) -> str:
    """Who is protected from whom by one promise of runs, and what no ledger says of it."""
    quoted = any(party in run.quoted for run in runs)
    unbound = any(not run.carried.bound for run in runs)
    return protected(promise) + QUOTED * quoted + UNBOUND * unbound


def unit_of(subject: Subject) -> ReportSection:
    """Whom the promises of each setting, by party, are about, and how strong they are."""
    rows, lines = [], []
    for label, own in subject.promises.items():
        quoted = {party for run in subject.by_setting[label] for party in run.quoted}
        given = [
            f"{len(run.carried.sites)} of {run.said['clients']}"
            for run in subject.by_setting[label]
            if run.carried.sites
        ]
        lines += [Fact.of(f"{label}: clients whose own ledgers are added up", *given, said=True)] * bool(given)
        for party, promise in own.items():
            unit = "" if promise["status"] == "none" else WORDS["units"][promise["unit"]].split(",")[0]
            relation = promise["relation"] if promise["status"] in PROVEN else ""
            right = percent(promise["meaning"]["accuracy"]) if "meaning" in promise else ""
            by = AUTHOR if party in quoted else LEDGERS
            rows.append([label, party, unit, promise["status"], relation, epsilon_of(promise) or "", right, by])
            lines += [Fact(f"{label}: besides", text, party in quoted) for text in beside(promise)]
            if conditions := promise.get("conditions"):
                lines.append(Fact(f"{label}: holds if", "; and if ".join(conditions), party in quoted))
    for one in subject.sets:
        spent = [f"{row[0]} {row[2]} in {row[1]} releases" for row in one["spent"]]
        lines.append(Fact.of(f"data set {one['ledger']['party']}: over all runs", *spent))
    header = ("setting", "party", "unit", "status", "neighbours", "largest epsilon of anyone", "attacker is right")
    tables = [Grid("", (*header, "by"), rows)] * bool(rows)
    return ReportSection("unit", list(dict.fromkeys(lines)), tables)


def _trust(runs: Mapping[str, Sequence[Run]], people: Mapping[str, Any]) -> ReportSection:
    rows, engines = [], set[str]()
    for label, own in runs.items():
        first = own[0]
        engines.add(first.carried.engine)
        status, trust = first.worst["status"], first.carried.trust
        server = WORDS["sees"]["central" if status == "none" else trust]
        promised = WORDS["from"][trust] if status in PROVEN else "nobody: nothing is promised"
        rows.append([label, server, "the models that the server sends", promised])
    alone = "none: all clients ran on one machine, as in an experiment" if engines == {"local"} else None
    lines = _only_people("trust", {"transport": alone} | dict(people) if alone else people)
    header = ("setting", "the server sees", "a client sees", "protected from")
    told = ("the server sees", "protected from") if _by_quotes([run for own in runs.values() for run in own]) else ()
    return ReportSection("trust", lines, [Grid("", header, rows, told)] * bool(rows))


def _by_quotes(runs: Sequence[Run]) -> bool:
    """Whether a promise counts that the author says."""
    return any(run.counts in run.quoted for run in runs)


def unprotected_quantities(runs: Sequence[Run]) -> list[Fact]:
    """What leaves without the noise that the promise is about; nothing where nothing ran."""
    if not runs:
        return []
    published = dict.fromkeys(run.said["published"] for run in runs if run.said["published"] is not None)
    sizes = any(run.worst.get("public_size") for run in runs)
    clear = any(run.carried.trust == "central" for run in runs)
    counts = ["numbers of records of each silo are taken as public"] * sizes
    counts += ["the server is told each client's number of examples"] * clear
    engines = {run.carried.engine for run in runs}
    kept = {"local": "stay in the run's folder, which is private", "flower": "stay in the log of the node that failed"}
    if not published and "local" not in engines and not clear:
        published["none: under this trust nodes answer no question about metrics"] = None
    failed = sum(run.said["failed"] for run in runs)
    quoted = _by_quotes(runs)
    scale = any(run.worst["status"] == "heuristic" for run in runs)
    bad = [m for run in runs if (m := run.said["malicious"]) and m.get("unprotected")]
    around = [f"malicious clients {m['clients']}: they went around it" for m in bad]
    return [
        Fact.of("metrics after each round", *published, said=True),
        Fact.of("counts of examples", *counts, said=quoted),
        Fact("replies", f"the server sees who answers, fails or refuses ({failed} times here)", said=True),
        Fact("timing", "when a client answers is not hidden"),
        Fact.of("logs", *(f"texts of failures {kept[engine]}" for engine in sorted(engines & kept.keys()))),
        Fact.of(
            "ledgers",
            "a heuristic's scale follows private values: keep its ledgers private" if scale else None,
            said=quoted,
        ),
        *[Fact("clients beyond the promise", text, said=True) for text in around],
        Fact("this report", "its accuracies, curves and audits carry no noise: handing it on releases them"),
    ]


def _tuned(subject: Subject) -> ReportSection:
    runs, settings = subject.runs, len(subject.by_setting)
    seeds = len({run.said["seed"] for run in runs})
    searched = settings > 1 or seeds > 1
    told = f"{settings} settings under {seeds} seeds on the same data; a choice among them by the figures below is not "
    derived = {run.said["derived_from"] for run in runs if run.said["derived_from"]}
    noise = [f"from {one!r}: private, not charged" for one in sorted(derived)]
    stopping = [run.promises["validation clients"] for run in runs if "validation clients" in run.promises]
    lines = [
        Fact.of("compared here", f"{told}charged to any epsilon above" if searched else None, said=True),
        Fact.of("noise taken from other runs", *noise, said=True),
        Fact.of("charged for stopping early", *dict.fromkeys(epsilon_of(p) or protected(p) for p in stopping)),
        *_only_people("tuned", subject.people),
    ]
    chosen = {run.setting: run.said["chosen"] for run in runs if run.said["chosen"]}
    keys = list(next(iter(chosen.values()), {}))
    rows = [[label, *(_text(own[key]) for key in keys)] for label, own in chosen.items()]
    return ReportSection("tuned", lines, [Grid("Chosen values", ("setting", *keys), rows, keys)] * bool(rows))


def _budget(subject: Subject) -> ReportSection:
    told = ("allowed", "left")  # by the policy
    grids = [Grid(f"data set {one['ledger']['party']}", one["header"], one["spent"], told) for one in subject.sets]
    declared = [budget for run in subject.runs for budget in run.carried.budgets]
    texts = dict.fromkeys(", ".join(f"{k} {v:g}" for k, v in budget.items()) for budget in declared)
    of_runs = Fact.of("budget of a run, declared before its first release", *texts)
    return ReportSection("budget", [of_runs] if grids else [of_runs, Fact("ledger of a data set")], grids)


def _policy(policy: Mapping[str, Any]) -> list[Fact]:
    return [Fact.of(key, _text(value), WORDS["binds"].get(key)) for key, value in policy.items()] or [Fact("policy")]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _origin(runs: Sequence[Run]) -> ReportSection:
    rows, heads = [], []
    for run in runs:
        said, own = run.said, run.carried
        versions = ", ".join(f"{name} {text}" for name, text in said["versions"].items())
        data = f"{said['data']['name']} {said['data']['digest'][:16]}" if said["data"]["digest"] else ""
        planned = f"{said['rounds_planned']} rounds planned, {said['clients']} clients"
        planned += (
            f", not finished ({said['unfinished']}): of what it will release nothing is said"
            if said.get("unfinished")
            else ""
        )
        released, seed = f"{own.engine}, {own.rounds} rounds released", _text(said["seed"])
        configured = said["files"].get("config.toml", "")[:16]
        rows.append([run.setting, seed, released, planned, own.source, data, configured, versions])
        every = [*own.ledgers, *own.sites]
        lines = sum(one["lines"] for one in every)
        heads.append([run.setting, seed, own.run, str(len(every)), str(lines), own.head])
    header = ("setting", "seed", "run", "planned", "noise source", "data", "configuration", "versions")
    told = ("seed", "planned", "data", "configuration", "versions")
    tables = [Grid("Runs", header, rows, told)] * bool(rows)
    of_heads = ("setting", "seed", "run", "ledgers", "lines", "head")
    tables += [Grid("Ledgers", of_heads, heads, ("seed",))] * bool(heads)
    check = "fedveil report --verify report.json --ledgers FOLDER, on any machine that has the ledgers"
    return ReportSection("origin", [Fact("check", check)], tables)
