"""What a report says, in the order of a reader's questions: the promise first, then what it does not cover."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.engines.party import SERVER
from fedveil.evidence import spent_of
from fedveil.report.statement.document import (
    WORDS,
    Fact,
    Grid,
    Picture,
    ReportSection,
    beside,
    epsilon_of,
    percent,
    protected,
)
from fedveil.report.statement.figures import accuracy_rows, curves, roc_charts
from fedveil.report.statement.gather import Gathered, Promises, Run
from fedveil.tables import NOTHING

PROVEN = ("formal", "conditional")
CHOSEN = ("privacy.clip", "privacy.epsilon", "privacy.noise_multiplier", "local.lr", "local.epochs")


def sections_of(gathered: Gathered) -> list[ReportSection]:
    """All of them; those without anything to say, too."""
    runs = gathered.by_setting
    return [
        unit_of(gathered.promises),
        _trust(runs, gathered.people),
        ReportSection("leaves", [*unprotected_quantities(gathered.runs), *_only_people("leaves", gathered.people)]),
        ReportSection("accuracy", _accuracy_lines(gathered.runs), [accuracy_rows(runs)] * bool(runs), curves(runs)),
        _attacked(gathered, list(runs)),
        _tuned(gathered),
        _budget(gathered),
        ReportSection("policy", _policy(gathered.policy)),
        _origin(gathered.runs),
        ReportSection("approval", _only_people("approval", gathered.people)),
    ]


def _only_people(section: str, people: Mapping[str, Any]) -> list[Fact]:
    """The lines of a section that only people can fill."""
    said = {key: [value] if isinstance(value, str) else value for key, value in people.items()}
    return [Fact.of(label, *said.get(key, ())) for label, key in WORDS[section].items()]


def headline_of(promises: Mapping[str, Promises]) -> list[dict[str, str]]:
    """Who is protected from whom, a sentence a setting."""
    return [{"setting": label, "text": protected(next(iter(own.values())))} for label, own in promises.items()]


def unit_of(promises: Mapping[str, Promises]) -> ReportSection:
    """Whom the promises of each setting, by party, are about, and how strong they are."""
    rows, lines = [], []
    for label, own in promises.items():
        for party, promise in own.items():
            unit = "" if promise["status"] == "none" else WORDS["units"][promise["unit"]].split(",")[0]
            relation = promise["relation"] if promise["status"] in PROVEN else ""
            right = percent(promise["meaning"]["accuracy"]) if "meaning" in promise else ""
            rows.append([label, party, unit, promise["status"], relation, epsilon_of(promise) or "", right])
            lines += [Fact(f"{label}: besides", text) for text in beside(promise)]
            if conditions := promise.get("conditions"):
                lines.append(Fact(f"{label}: holds if", "; and if ".join(conditions)))
    header = ("setting", "party", "unit", "status", "neighbours", "largest epsilon of anyone", "attacker is right")
    return ReportSection("unit", list(dict.fromkeys(lines)), [Grid("", header, rows)] * bool(rows))


def _trust(runs: Mapping[str, Sequence[Run]], people: Mapping[str, Any]) -> ReportSection:
    rows, engines = [], set[str]()
    for label, own in runs.items():
        values = own[0].summary.values
        engines.add(values["engine"])
        status = own[0].worst["status"]
        server = WORDS["sees"]["central" if status == "none" else values["trust"]]
        promised = WORDS["from"][values["trust"]] if status in PROVEN else "nobody: nothing is promised"
        rows.append([label, server, "the models that the server sends", promised])
    alone = "none: all clients ran on one machine, as in an experiment" if engines == {"local"} else None
    lines = _only_people("trust", {"transport": alone} | dict(people) if alone else people)
    header = ("setting", "the server sees", "a client sees", "protected from")
    return ReportSection("trust", lines, [Grid("", header, rows)] * bool(rows))


def unprotected_quantities(runs: Sequence[Run]) -> list[Fact]:
    """What leaves without the noise that the promise is about; nothing where nothing ran."""
    if not runs:
        return []
    values = [run.summary.values for run in runs]
    published = dict.fromkeys(v["published_metrics"]["text"] for v in values if "published_metrics" in v)
    sizes = any(run.worst.get("public_size") for run in runs)
    clear = any(v["trust"] == "central" for v in values)
    counts = ["numbers of records of each silo are taken as public"] * sizes
    counts += ["the server is told each client's number of examples"] * clear
    engines = {v["engine"] for v in values}
    kept = {"local": "stay in the run's folder, which is private", "flower": "stay in the log of the node that failed"}
    if not published and "local" not in engines and not clear:
        published["none: under this trust nodes answer no question about metrics"] = None
    failed = sum(v["replies"][kind] for v in values for kind in ("failed", "invalid", "refused"))
    scale = any(run.worst["status"] == "heuristic" for run in runs)
    bad = [m for v in values if (m := v.get("malicious")) and m.get("unprotected")]
    return [
        Fact.of("metrics after each round", *published),
        Fact.of("counts of examples", *counts),
        Fact("replies", f"the server sees who answers, fails or refuses ({failed} times here)"),
        Fact("timing", "when a client answers is not hidden"),
        Fact.of("logs", *(f"texts of failures {kept[engine]}" for engine in sorted(engines & kept.keys()))),
        Fact.of("ledgers", "a heuristic's scale follows private values: keep its ledgers private" if scale else None),
        *[Fact("clients beyond the promise", f"malicious clients {m['clients']}: they went around it") for m in bad],
        Fact("this report", "its accuracies, curves and audits carry no noise: handing it on releases them"),
    ]


def _accuracy_lines(runs: Sequence[Run]) -> list[Fact]:
    bare = dict.fromkeys(run.summary.setting for run in runs if run.worst["status"] == "none")
    public = [run.summary.values.get("public_model", {}).get("metrics", {}) for run in runs]
    rivals = {f"{name} {metrics[name]:.3f}" for metrics in public for name in ("accuracy", "rmse") if name in metrics}
    majority = {f"{run.summary.values['majority']:.3f}" for run in runs if "majority" in run.summary.values}
    return [
        Fact.of("the same without noise", *(f"{label!r} below" for label in bare)),
        Fact.of("a model of public data alone", *sorted(rivals)),
        Fact.of("naming the most frequent class", *sorted(majority)),
    ]


def _attacked(gathered: Gathered, settings: list[str]) -> ReportSection:
    rows, lines, pictures = [], [], []
    for audit in gathered.audits:
        game = audit["game"]
        lines.append(Fact.of(f"{game}: how strongly", _strength(audit), audit.get("unit")))
        for label, bound in audit.get("together", {}).items():
            proven = f"epsilon of at least {bound['lower']:.2f}, where {bound['ceiling']:.2f} is the most that so many"
            lines.append(Fact(f"{label}: all attacks together prove", f"{proven} runs can prove"))
        reasons = dict.fromkeys((one["attack"], one["reason"]) for one in audit.get("refused", ()))
        lines += [Fact(f"{game}, {attack}: not run", reason) for attack, reason in reasons]
        rows += [_verdict(game, result) for result in audit.get("results", ())]
        shown = list(dict.fromkeys(result["setting"] for result in audit.get("results", ())))
        for attack, digest in audit.get("pictures", {}).items():
            text = f"clients' images, and what the attack {attack} made of the releases of {', '.join(shown)}"
            pictures += [Picture(f"{game}: {attack}", text, digest)] if digest in gathered.pictures else []
        if audit.get("pictures") and not gathered.pictures:
            lines.append(Fact(f"{game}: pictures", "left out: they show clients' images; --pictures puts them in"))
    played = {audit["game"] for audit in gathered.audits}
    lines += [Fact(f"{name}: {what}") for name, what in WORDS["asked"].items() if name not in played]
    lines.append(Fact("attacks that nobody has thought of, and stronger ones"))
    header = ("game", "attack", "setting", "figure", "reached (95%)", "without the defence", "works there")
    tables = [Grid("", header, rows)] * bool(rows)
    return ReportSection("attacked", lines, tables, roc_charts(gathered.audits, settings), pictures)


def _strength(audit: Mapping[str, Any]) -> str | None:
    if "canaries" in audit:
        return f"{audit['canaries']} canaries in one run of each method, whose settings are not those above"
    if "images" in audit:
        clients = f"{audit['clients']} clients at the most, {audit['images']} images each, one round"
        return f"{clients}; nu: other noise, in lengths of the update"
    return f"{audit['replicates']} independent runs a side" if "replicates" in audit else None


def _verdict(game: str, result: Mapping[str, Any]) -> list[str]:
    at = result.get("auc", result)  # as audits before Verdict wrote it
    reached = f"{at['point']:.3g}" + (f" ({at['low']:.3g} to {at['high']:.3g})" if at["low"] < at["high"] else "")
    bare, valid = result.get("without_defence"), {True: "yes", False: "no", None: ""}[result.get("valid")]
    known = {k.replace("_", " "): v for k, v in result.get("details", {}).items() if "without defence" not in k}
    details = ", ".join(f"{name} {value:.3g}" for name, value in known.items())
    figure = "; ".join(filter(None, [result.get("figure", "AUC"), details]))
    where = [game, result["attack"], result["setting"], figure, reached]
    return [*where, "" if bare is None else f"{bare:.3g}", valid]


def _tuned(gathered: Gathered) -> ReportSection:
    runs, settings = gathered.runs, len(gathered.by_setting)
    seeds = len({run.summary.values.get("seed") for run in runs})
    searched = settings > 1 or seeds > 1
    said = f"{settings} settings under {seeds} seeds on the same data; a choice among them by the figures below is not "
    derived = {v["derived_from"] for run in runs if (v := run.summary.values).get("derived_from")}
    stopping = [run.promises["validation clients"] for run in runs if "validation clients" in run.promises]
    lines = [
        Fact.of("compared here", f"{said}charged to any epsilon above" if searched else None),
        Fact.of("noise taken from other runs", *(f"from {one!r}: private, not charged" for one in sorted(derived))),
        Fact.of("charged for stopping early", *dict.fromkeys(epsilon_of(p) or protected(p) for p in stopping)),
        *_only_people("tuned", gathered.people),
    ]
    configs = {run.summary.setting: run.config for run in runs if run.config}
    keys = [name.split(".") for name in CHOSEN]
    rows = [[label, *(_text(c.get(table, {}).get(k, "")) for table, k in keys)] for label, c in configs.items()]
    return ReportSection("tuned", lines, [Grid("Chosen values", ("setting", *CHOSEN), rows)] * bool(rows))


def _budget(gathered: Gathered) -> ReportSection:
    grids = []
    for name, book in gathered.sets.items():
        table = spent_of(book.ledger, gathered.rule)
        rows = [["" if cell == NOTHING else str(cell) for cell in row] for row in table.rows]
        grids.append(Grid(f"data set {name}", table.header, rows))
    declared = [b.ledger.budget for run in gathered.runs for b in run.books.values() if b.ledger.budget]
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
        v, whose = run.summary.values, [run.summary.setting, str(run.summary.values.get("seed", ""))]
        versions = ", ".join(f"{name} {text}" for name, text in v["versions"].items())
        data = f"{v['data']['name']} {v['data']['digest'][:16]}" if v.get("data", {}).get("digest") else ""
        ran = f"{v['engine']}, {v['rounds']} of {v['rounds_planned']} rounds, {v['clients']} clients"
        rows.append([*whose, ran, v["source"], data, run.digests.get("config.toml", "")[:16], versions])
        first = sorted(run.books, key=lambda party: (party == SERVER) != (v["trust"] == "central"))[:1]
        books = {f"{party} and {len(run.books) - 1} more": run.books[party] for party in first}
        for party, book in (books | {f"data set {name}": book for name, book in run.sites.items()}).items():
            at = book.values()
            heads.append([*whose, party.removesuffix(" and 0 more"), str(at["lines"]), at["head"]])
    header = ("setting", "seed", "run", "noise source", "data", "configuration", "versions")
    tables = [Grid("Runs", header, rows)] * bool(rows)
    tables += [Grid("Ledgers", ("setting", "seed", "party", "lines", "head"), heads)] * bool(heads)
    check = "fedveil report --verify report.json --ledgers FOLDER, on any machine that has the ledgers"
    return ReportSection("origin", [Fact("check", check)], tables)
