"""Sections of a report in the order of a reader's questions: the promise first, then what it does not cover.

`Fact.said`, `Grid.said` and `ReportSection.said` mark what the author says. All else follows from ledgers.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from fedveil_lab.report.statement.subject import CHOSEN, Run, Subject

PROVEN = ("formal", "conditional")
LEDGERS, AUTHOR = "ledgers", "the author"
UNBOUND = (
    " The ledgers are of an earlier version and name no parties: one may be missing, and whom to trust, at which delta "
    "and on which conditions is the author's word."
)
QUOTED = " No ledger gives this promise: the author says it."


def sections_of(subject: Subject) -> list[ReportSection]:
    """List all sections, including those without content."""
    return [
        unit_of(subject),
        _trust(subject.by_setting, subject.people),
        ReportSection(
            "leaves",
            [*unprotected_quantities(subject.runs), *_only_people("leaves", subject.people)],
        ),
        subject.accuracy,
        subject.attacked,
        _tuned(subject),
        _budget(subject),
        ReportSection("policy", _policy(subject.policy), said=True),
        _origin(subject.runs),
        ReportSection("approval", _only_people("approval", subject.people), said=True),
    ]


def _only_people(section: str, people: Mapping[str, Any]) -> list[Fact]:
    """List the lines of a section that only people can fill."""
    lines = []
    for label, key in WORDS[section].items():
        told = people.get(key, ())
        if isinstance(told, str):
            told = [told]
        lines.append(Fact.of(label, *told, said=True))
    return lines


def headline_of(subject: Subject) -> list[dict[str, str]]:
    """Say for each setting, in a sentence, who is protected from whom."""
    lines = []
    for label, own in subject.by_setting.items():
        party = own[0].counts
        promise = subject.promises[label][party]
        lines.append({"setting": label, "party": party, "text": sentence_of(own, party, promise)})
    return lines


def sentence_of(runs: Sequence[Run], party: str, promise: Mapping[str, Any]) -> str:
    """Say who is protected from whom by a promise, and which part of it no ledger gives."""
    sentence = protected(promise)
    if _is_quoted(party, runs):
        sentence += QUOTED
    if not all(run.carried.bound for run in runs):
        sentence += UNBOUND
    return sentence


def unit_of(subject: Subject) -> ReportSection:
    """Make the section on units: who is protected by each party's promise, and how strongly."""
    rows: list[list[str]] = []
    lines: list[Fact] = []
    for label, own in subject.promises.items():
        runs = subject.by_setting[label]
        lines += _given_ledgers(label, runs)
        for party, promise in own.items():
            quoted, by = _is_quoted(party, runs), LEDGERS
            if quoted:
                by = AUTHOR
            rows.append([label, party, *_strength(promise), by])
            lines += _besides(label, promise, quoted)
    for one in subject.sets:
        spent = [f"{row[0]} {row[2]} in {row[1]} releases" for row in one["spent"]]
        lines.append(Fact.of(f"data set {one['ledger']['party']}: over all runs", *spent))
    header = (
        "setting",
        "party",
        "unit",
        "status",
        "neighbours",
        "largest epsilon of anyone",
        "attacker is right",
        "by",
    )
    return ReportSection("unit", list(dict.fromkeys(lines)), _grid("", header, rows))


def _grid(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], said: Sequence[str] = ()
) -> list[Grid]:
    """Return a list of one table; an empty list for a table without rows."""
    if not rows:
        return []
    return [Grid(title, header, rows, said)]


def _is_quoted(party: str, runs: Sequence[Run]) -> bool:
    """Whether a party's promise is the author's word in any of these runs."""
    return any(party in run.quoted for run in runs)


def _given_ledgers(label: str, runs: Sequence[Run]) -> list[Fact]:
    """Say how many clients of a setting gave their own ledgers."""
    given = []
    for run in runs:
        if run.carried.sites:
            given.append(f"{len(run.carried.sites)} of {run.said['clients']}")
    if not given:
        return []
    return [Fact.of(f"{label}: clients whose own ledgers are added up", *given, said=True)]


def _strength(promise: Mapping[str, Any]) -> list[str]:
    """Write unit, status, relation, epsilon and attacker's odds of a promise; an absent one is an empty text."""
    unit = relation = right = ""
    if promise["status"] != "none":
        unit = WORDS["units"][promise["unit"]].split(",")[0]
    if promise["status"] in PROVEN:
        relation = promise["relation"]
    if "meaning" in promise:
        right = percent(promise["meaning"]["accuracy"])
    return [unit, promise["status"], relation, epsilon_of(promise) or "", right]


def _besides(label: str, promise: Mapping[str, Any], quoted: bool) -> list[Fact]:
    """List a promise's epsilons for more or less than its unit, and its conditions."""
    lines = [Fact(f"{label}: besides", text, quoted) for text in beside(promise)]
    conditions = promise.get("conditions")
    if conditions:
        lines.append(Fact(f"{label}: conditions", "; and ".join(conditions), quoted))
    return lines


def _trust(runs: Mapping[str, Sequence[Run]], people: Mapping[str, Any]) -> ReportSection:
    rows = []
    engines: set[str] = set()
    every: list[Run] = []
    for label, own in runs.items():
        first = own[0]
        every += own
        engines.add(first.carried.engine)
        status, trust = first.worst["status"], first.carried.trust
        seen, promised = trust, "nobody: nothing is promised"
        if status == "none":
            seen = "central"
        if status in PROVEN:
            promised = WORDS["from"][trust]
        rows.append([label, WORDS["sees"][seen], "the models that the server sends", promised])
    known = dict(people)
    if engines == {"local"}:
        known.setdefault("transport", "none: all clients ran on one machine, as in an experiment")
    header = ("setting", "the server sees", "a client sees", "protected from")
    told: tuple[str, ...] = ()
    if _by_quotes(every):
        told = ("the server sees", "protected from")
    return ReportSection("trust", _only_people("trust", known), _grid("", header, rows, told))


def _by_quotes(runs: Sequence[Run]) -> bool:
    """Whether a counted promise is only the author's word."""
    return any(run.counts in run.quoted for run in runs)


def unprotected_quantities(runs: Sequence[Run]) -> list[Fact]:
    """List what leaves without the promised noise; empty without runs."""
    if not runs:
        return []
    engines, trusts, statuses = set[str](), set[str](), set[str]()
    told, failed = list[str | None](), 0
    for run in runs:
        engines.add(run.carried.engine)
        trusts.add(run.carried.trust)
        statuses.add(run.worst["status"])
        told.append(run.said["published"])
        failed += run.said["failed"]
    clear, published = "central" in trusts, _without_repeats(told)
    if not published and "local" not in engines and not clear:
        published = ["none: under this trust nodes answer no question about metrics"]
    counts = []
    if any(run.worst.get("public_size") for run in runs):
        counts.append("numbers of records of each silo are taken as public")
    if clear:
        counts.append("the server is told each client's number of examples")
    kept = {
        "local": "stay in the run's folder, which is private",
        "flower": "stay in the log of the node that failed",
    }
    logs = [f"texts of failures {kept[engine]}" for engine in sorted(engines & kept.keys())]
    private = None
    if "heuristic" in statuses:
        private = "a heuristic's scale follows private values: keep its ledgers private"
    quoted = _by_quotes(runs)
    return [
        Fact.of("metrics after each round", *published, said=True),
        Fact.of("counts of examples", *counts, said=quoted),
        Fact(
            "replies",
            f"the server sees who answers, fails or refuses ({failed} times here)",
            said=True,
        ),
        Fact("timing", "when a client answers is not hidden"),
        Fact.of("logs", *logs),
        Fact.of("ledgers", private, said=quoted),
        *_around_the_promise(runs),
        Fact(
            "this report",
            "its accuracies, curves and audits carry no noise: handing it on releases them",
        ),
    ]


def _without_repeats(texts: Iterable[str | None]) -> list[str]:
    """Return the non-empty texts, each once, in order."""
    return list(dict.fromkeys(text for text in texts if text is not None))


def _around_the_promise(runs: Sequence[Run]) -> list[Fact]:
    """List the malicious clients that bypassed the method."""
    lines = []
    for run in runs:
        malicious = run.said["malicious"]
        if malicious and malicious.get("unprotected"):
            text = f"malicious clients {malicious['clients']}: they went around it"
            lines.append(Fact("clients beyond the promise", text, said=True))
    return lines


def _tuned(subject: Subject) -> ReportSection:
    """Make the section on tuning: what was compared and chosen, on which data, and whether that was charged."""
    runs, settings = subject.runs, len(subject.by_setting)
    seeds, derived = set[Any](), set[str]()
    charged, chosen = list[str](), dict[str, Mapping[str, Any]]()
    for run in runs:
        seeds.add(run.said["seed"])
        if run.said["derived_from"]:
            derived.add(run.said["derived_from"])
        stopping = run.promises.get("validation clients")
        if stopping is not None:
            charged.append(epsilon_of(stopping) or protected(stopping))
        if run.said["chosen"]:
            chosen[run.setting] = run.said["chosen"]
    searched = None
    if settings > 1 or len(seeds) > 1:
        searched = f"{settings} settings under {len(seeds)} seeds on the same data; "
        searched += "a choice among them by the figures below is not charged to any epsilon above"
    noise = [f"from {one!r}: private, not charged" for one in sorted(derived)]
    lines = [
        Fact.of("compared here", searched, said=True),
        Fact.of("noise taken from other runs", *noise, said=True),
        Fact.of("charged for stopping early", *_without_repeats(charged)),
        *_only_people("tuned", subject.people),
    ]
    keys: list[str] = []
    for own in chosen.values():
        keys = keys or [key for key in CHOSEN if key in own]
    rows = []
    if keys:
        for label, own in chosen.items():
            rows.append([label, *map(_text, map(own.__getitem__, keys))])
    header = ("setting", *keys)
    return ReportSection("tuned", lines, _grid("Chosen values", header, rows, header))


def _budget(subject: Subject) -> ReportSection:
    """Make the section on budgets: the rest of each data set's, and those that runs declared."""
    told = ("allowed", "left")  # by the policy
    grids = []
    for one in subject.sets:
        grids.append(Grid(f"data set {one['ledger']['party']}", one["header"], one["spent"], told))
    declared = []
    for run in subject.runs:
        for budget in run.carried.budgets:
            declared.append(", ".join(f"{name} {value:g}" for name, value in budget.items()))
    lines = [
        Fact.of("budget of a run, declared before its first release", *_without_repeats(declared))
    ]
    if not grids:
        lines.append(Fact("ledger of a data set"))
    return ReportSection("budget", lines, grids)


def _policy(policy: Mapping[str, Any]) -> list[Fact]:
    """List the rules of the policy in force, and what each binds."""
    if not policy:
        return [Fact("policy")]
    return [Fact.of(key, _text(value), WORDS["binds"].get(key)) for key, value in policy.items()]


def _text(value: object) -> str:
    """Write a value of a configuration or policy for a page."""
    if value is True:
        return "yes"
    if value is False:
        return "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def _origin(runs: Sequence[Run]) -> ReportSection:
    """Make the section on the origin of figures: runs, data, versions, ledgers and their heads."""
    rows, heads = [], []
    for run in runs:
        said, own = run.said, run.carried
        versions = ", ".join(f"{name} {text}" for name, text in said["versions"].items())
        data = ""
        if said["data"]["digest"]:
            data = f"{said['data']['name']} {said['data']['digest'][:16]}"
        planned = f"{said['rounds_planned']} rounds planned, {said['clients']} clients"
        if said.get("unfinished"):
            planned += (
                f", not finished ({said['unfinished']}): of what it will release nothing is said"
            )
        released, seed = f"{own.engine}, {own.rounds} rounds released", _text(said["seed"])
        configured = said["files"].get("config.toml", "")[:16]
        rows.append([run.setting, seed, released, planned, own.source, data, configured, versions])
        every, lines = [*own.ledgers, *own.sites], 0
        for ledger in every:
            lines += ledger["lines"]
        heads.append([run.setting, seed, own.run, str(len(every)), str(lines), own.head])
    header = (
        "setting",
        "seed",
        "run",
        "planned",
        "noise source",
        "data",
        "configuration",
        "versions",
    )
    told = ("seed", "planned", "data", "configuration", "versions")
    of_heads = ("setting", "seed", "run", "ledgers", "lines", "head")
    tables = [*_grid("Runs", header, rows, told), *_grid("Ledgers", of_heads, heads, ("seed",))]
    check = (
        "fedveil report --verify report.json --ledgers FOLDER, on any machine that has the ledgers"
    )
    return ReportSection("origin", [Fact("check", check)], tables)
