"""Reports of many kinds, and every edit of what they are made of: a forger with the true ledgers against him."""

import hashlib
import json
import re
import shutil
import tomllib
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import tomli_w
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedveil.accounting import Guarantee, Ledger, Spend
from fedveil.accounting.bounds import GDP
from fedveil.accounting.ledger import Entry
from fedveil.aggregation import FedAvgM
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger
from fedveil.errors import FieldError
from fedveil.evidence import REPORT, encoded
from fedveil.flower import (
    FACTS,
    FedVeilStrategy,
    ServerFolder,
    privacy_mod,
    read_broadcast,
    run_in_process,
    to_arrays,
    training_source,
    write_facts,
)
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.methods import build
from fedveil_lab.config import parse
from fedveil_lab.games import GAMES, play
from fedveil_lab.grid import compare
from fedveil_lab.report.audits import show
from fedveil_lab.report.statement.check import check
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import PAGE, write_report
from fedveil_lab.report.statement.sections import LEDGERS, QUOTED, UNBOUND
from fedveil_lab.report.statement.subject import Subject
from fedveil_lab.runs import run


@dataclass
class Case:
    """What a report is made of: folders of runs and audits, ledgers of data sets, a policy, and what people say."""

    folders: list[Path]
    ledgers: tuple[Path, ...] = ()
    policy: Path | None = None
    people: Path | None = None
    pictures: bool = False

    def subject(self):
        return gather(self.folders, self.ledgers, self.policy, self.people, pictures=self.pictures)

    @property
    def held(self):
        """What the verifier holds."""
        return [*(folder for folder in self.folders if any(folder.rglob("ledger"))), *self.ledgers]


def config(**changes):
    base = {
        "name": "tiny",
        "rounds": 2,
        "data": {"name": "breast-cancer", "clients": 3},
        "model": {"name": "logistic"},
    }
    return parse({**base, **changes})


CENTRAL = {"method": "global", "noise_multiplier": 4.0, "clip": 1.0}
RECORD = {"method": "record", "epsilon": 4.0, "clip": 1.0, "examples": 150, "rounds": 2}
STOPPING = {"clients": 0.4, "patience": 9}
SIX = {"name": "breast-cancer", "clients": 6}
RUNS = {
    "in the secure source's noise": {"privacy": RECORD, "source": {"kind": "secure"}},
    "with a budget": {"privacy": {**CENTRAL, "budget": {"epsilon": 7.0}}},
    "validation clients": {
        "privacy": {**RECORD, "examples": 60},
        "data": SIX,
        "stopping": {**STOPPING, "noise_multiplier": 2.0},
    },
    "validation in the clear": {
        "privacy": CENTRAL,
        "data": SIX,
        "stopping": {**STOPPING, "losses": "public"},
    },
    "a trusted sum": {"privacy": {**RECORD, "sum": "trusted"}},
    "a secure sum": {"privacy": {**RECORD, "sum": "secure"}},
    "hypotheses": {"privacy": {"method": "group", "hypotheses": 2, "noise_multiplier": 1.0}},
}


def comparison(path):
    settings = [{"method": m} for m in ("vanilla", "global", "metric")]
    compare(config(privacy=CENTRAL, compare={"settings": settings}), path / "run", seeds=2)
    return Case([path / "run"])


def of_run(name):
    def made(path):
        run(config(**RUNS[name]), path / "run")
        return Case([path / "run"])

    return made


def of_data_set(path):
    run(config(privacy=CENTRAL), path / "run")
    begin_ledger(path / "sets", "charite", "a test", head=path / "heads")
    promise = Guarantee(
        unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(1.0)
    )
    with LifetimeLedger(path / "sets", "charite", "another run", head=path / "heads") as book:
        for i in range(3):
            spend = Spend(guarantee=promise, mechanism="gaussian", scale=(1.0,), sensitivity=1.0)
            book.store(
                book.ledger.commit(Entry((i + 1, "protect"), 0, f"{i:064x}", spend, "secure"))
            )
    (path / "policy.toml").write_text('trust = ["local"]\n[total]\nmu = 4.0\n')
    (path / "people.toml").write_text('approved_by = "A"\ntuning = "none"\ncurators = ["B", "C"]\n')
    return Case(
        [path / "run"],
        (path / "sets" / "charite.jsonl",),
        path / "policy.toml",
        path / "people.toml",
    )


def audited(path):
    spec = config(
        data={"name": "digits", "clients": 3, "holdout": 0.5},
        rounds=1,
        privacy={**RECORD, "examples": 20},
    )
    run(spec.model_copy(deep=True), path / "run")
    played = {
        "inversion": {"attacks": ("analytic",), "replicates": 2},
        "membership": {"attacks": ("loss",), "replicates": 1},
    }
    for name, options in played.items():
        found = play(GAMES[name](spec, **options), path / name)
        if name == "inversion":
            show(found, path / name)
    return Case([path / name for name in ("run", *played)], pictures=True)


def of_earlier_version(path):
    """Ledgers that bind nothing."""
    run(config(privacy=RECORD), path / "run")
    for file in (path / "run" / "ledger").glob("*.jsonl"):
        books = {}
        for line in file.read_text().splitlines():
            values = json.loads(line)
            books.setdefault((values["run"], values["party"]), []).append(line)
        lines = []
        for (of, party), own in books.items():
            bare = Ledger(of, party)
            lines += [bare.commit(entry) for entry in Ledger.parse(of, party, own).entries]
        file.write_text("".join(f"{line}\n" for line in lines))
    return Case([path / "run"])


def deployed(method, trainer, path, nodes):
    """A run under Flower in one process: a server's folder, and clients that train on 40 rows each."""
    network = torch.nn.Linear(6, 2)
    layout = Layout.from_module(network)
    client, server = ClientApp(mods=[privacy_mod(layout, method, trainer=trainer)]), ServerApp()

    @client.train()
    def train(message, context):
        start = read_broadcast(message.content, layout).models
        generator = torch.Generator().manual_seed(context.node_config["partition-id"])
        x, y = (
            torch.randn(40, 6, generator=generator),
            torch.randint(0, 2, (40,), generator=generator),
        )
        content = RecordDict(
            {
                "arrays": to_arrays(layout, start[0] + 0.1),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        if trainer is not None:
            [made] = trainer.train_noisily(start, [ClientData(x, y)], [(0,)], [training_source()])
            content["arrays"], content[FACTS] = (
                to_arrays(layout, made.model),
                write_facts(noised=made.noised),
            )
        return Message(content, reply_to=message)

    @server.main()
    def main(grid, context):
        strategy = FedVeilStrategy(
            method, layout, rounds=2, folder=ServerFolder(path / "run"), evaluate=False
        )
        strategy.start(grid, ArrayRecord(network.state_dict()))

    run_in_process(server, client, 3, node_configs=nodes)


def deployed_centrally(path):
    deployed(build("global", FedAvgM(), noise_multiplier=2.0, clip=1.0), None, path, [{}] * 3)
    return Case([path / "run"])


def deployed_sites(path):
    method = build("record", FedAvgM(), examples=40, epsilon=4.0, rounds=2, clip=0.5)
    network = torch.nn.Linear(6, 2)
    trainer = PrivateTrainer(
        network, Layout.from_module(network), LocalTraining(lr=0.5), method.client.noisy_steps
    )
    names = ["charite", "mayo", "nikko"]
    for name in names:
        begin_ledger(path / "sets", name, by="the tests", head=path / "heads")
    own = {"privacy.ledger": str(path / "sets"), "privacy.head": str(path / "heads")}
    deployed(method, trainer, path, [{**own, "privacy.dataset": name} for name in names])
    return Case([path / "run"], tuple(path / "sets" / f"{name}.jsonl" for name in names))


REPORTS = {
    "a comparison": comparison,
    **{name: of_run(name) for name in RUNS},
    "a data set and a policy": of_data_set,
    "audits with pictures": audited,
    "an earlier version": of_earlier_version,
    "Flower, a trusted server": deployed_centrally,
    "Flower, sites' own ledgers": deployed_sites,
}


# Edits


def places(values, path=()):
    """Every field and element of plain values, inner ones first."""
    items = (
        values.items()
        if isinstance(values, dict)
        else enumerate(values)
        if isinstance(values, list)
        else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))
        yield (*path, key)


def changed(values, place):
    """Copies of plain values with another value at a place, or without it."""
    *way, last = place
    for other in others(at(values, place)):
        if other == at(values, place):
            continue
        copy = deepcopy(values)
        at(copy, way)[last] = other
        yield copy
    copy = deepcopy(values)
    del at(copy, way)[last]
    yield copy


def at(values, place):
    for key in place:
        values = values[key]
    return values


def others(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value / 2]
    if isinstance(value, str):
        return [value + "x", value.replace("1", "0") if "1" in value else "0"]
    if isinstance(value, list):
        return [[*value, value[0]]] if value else [["x"]]
    if isinstance(value, dict):
        return [{**value, "x": 1}]
    return [1]


def verdict(folder, held):
    """How `fedveil report --verify` ends."""
    try:
        found = check(folder / REPORT, held)
    except FieldError:
        return 2
    if any(one.holds is False for one in found):
        return 1
    promises = [one.holds for one in found if one.kind == "promise"]
    if not promises or None in promises:
        return 5
    return 6 if any(one.kind == "file" and one.holds is None for one in found) else 0


def resealed(folder):
    """Write digests of a folder's files into its report.json, and its own."""
    values = json.loads((folder / REPORT).read_bytes())
    values["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in values["files"]
    }
    (folder / REPORT).write_bytes(encoded(values))


def remade(values, pictures, folder):
    """Write all files of a report from other evidence or other words; False where nothing can be made of it."""
    try:
        write_report(Subject.again(values, pictures), folder)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return True


def unmarked(values):
    """What a page says, one by one, of which it does not say that it is the author's word."""
    found = [
        one
        for one in values["headline"]
        if not any(doubt in one["text"] for doubt in (QUOTED, UNBOUND))
    ]
    if any(
        not run["bound"] for run in values["evidence"]["runs"]
    ):  # the sentence says what all of it rests on
        return found
    for section in values["sections"]:
        if not section["said"]:
            found += [[section["name"], line] for line in section["lines"] if not line["said"]]
            found += [[section["name"], *row] for grid in section["tables"] for row in _cells(grid)]
    return [*found, values["evidence"]]


def _cells(grid):
    columns = [i for i, name in enumerate(grid["header"]) if name not in grid["said"]]
    rows = [row for row in grid["rows"] if "by" not in grid["header"] or row[-1] == LEDGERS]
    return [[grid["title"], row[0], grid["header"][i], row[i]] for row in rows for i in columns]


class Forger:
    """Edits one report, and puts everything back."""

    def __init__(self, case, home):
        self.case, self.home, self.folder = case, home, home / "report"
        self.subject = case.subject()
        write_report(self.subject, self.folder)
        self.values = json.loads((self.folder / REPORT).read_bytes())
        self.files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        assert verdict(self.folder, case.held) in ((0, 5) if not self.subject.runs else (0,))

    def restore(self):
        for name, content in self.files.items():
            (self.folder / name).write_bytes(content)

    def fields(self):
        """Edit a field of report.json, with its digest."""
        for place in places({k: v for k, v in self.values.items() if k != "digest"}):
            for number, values in enumerate(changed(self.values, place)):
                said = place[0] == "said"  # digests are shown in part
                yield (
                    f"field {place} {number}",
                    lambda values=values, said=said: self._field(values) or said,
                )

    def _field(self, values):
        (self.folder / REPORT).write_bytes(encoded(values))
        return verdict(self.folder, self.case.held) != 0

    def evidence(self):
        """Edit what the ledgers carry, and make all files again from that."""
        yield from self._remade("evidence", lambda: verdict(self.folder, self.case.held) != 0)

    def words(self):
        """Edit what the author says, and make all files again: nothing else may look otherwise."""
        yield from self._remade("said", self._marked)

    def _remade(self, part, noticed):
        for place in places(self.values[part]):
            for number, own in enumerate(changed(self.values[part], place)):
                values = {**self.values, part: own}
                yield (
                    f"{part} {place} {number}",
                    lambda values=values: (
                        not remade(values, self.subject.pictures, self.folder) or noticed()
                    ),
                )

    def _marked(self):
        if verdict(self.folder, self.case.held) != 0:
            return True
        return self._alike(self.folder)

    def _alike(self, folder):
        """Whether a page says nothing unmarked that the first did not."""
        before, after = unmarked(self.values), unmarked(json.loads((folder / REPORT).read_bytes()))
        return all(one in before for one in after)

    def elements(self):
        """Edit the page's tags, texts and attributes, and the card's lines, with all digests."""
        page = self.files[PAGE].decode()
        for found in re.finditer(r"<[^>]*>|[^<>]+", page):
            for number, other in enumerate(("", found[0] + "<b>0</b>")):
                if found[0].strip():
                    text = page[: found.start()] + other + page[found.end() :]
                    yield (
                        f"page at {found.start()} {number}",
                        lambda text=text: self._file(PAGE, text),
                    )
        for name in self.files.keys() - {PAGE, REPORT}:
            lines = self.files[name].decode().splitlines(keepends=True)
            for i in range(len(lines)):
                for number, other in enumerate(
                    ([], [lines[i], lines[i]], [lines[i].replace("1", "0") + " "])
                ):
                    text = "".join([*lines[:i], *other, *lines[i + 1 :]])
                    yield (
                        f"{name}, line {i} {number}",
                        lambda name=name, text=text: self._file(name, text),
                    )

    def _file(self, name, text):
        (self.folder / name).write_text(text)
        resealed(self.folder)
        return verdict(self.folder, self.case.held) != 0

    def lines(self):
        """Edit a line of a ledger, with all checksums after it, or leave it, or the file, out."""
        shutil.rmtree(self.home / "held", ignore_errors=True)
        for number, path in enumerate(self.case.held):
            where = self.home / "held" / str(number)
            (shutil.copytree if path.is_dir() else _copied)(path, where)
        held = sorted((self.home / "held").iterdir())
        assert verdict(self.folder, held) == verdict(self.folder, self.case.held)
        for file in sorted((self.home / "held").rglob("*.jsonl")):
            if file.name != "metrics.jsonl":
                lines = file.read_text().splitlines()
                for i, line in enumerate(lines):
                    for number, other in enumerate(_lines(line)):
                        text = "".join(f"{one}\n" for one in [*lines[:i], *other, *lines[i + 1 :]])
                        yield (
                            f"{file.name}, line {i} {number}",
                            lambda f=file, t=text: self._ledger(f, t, held),
                        )
                yield f"without {file.name}", lambda f=file: self._ledger(f, None, held)

    def _ledger(self, file, text, held):
        before = file.read_bytes()
        edited = None if text is None else rechained(text).encode()
        if edited == before:  # a checksum, which is made again
            return True
        try:
            if edited is None:
                file.unlink()
            else:
                file.write_bytes(edited)
            return verdict(self.folder, held) != 0
        finally:
            file.write_bytes(before)

    def folders(self):
        """Edit what a run left: it is refused, or nothing looks otherwise that is not the author's word."""
        names = {"summary.json", "comparison.json", "config.toml"}
        for folder in self.case.folders:
            for file in sorted(path for path in folder.rglob("*") if path.name in names):
                own = (json.loads if file.suffix == ".json" else tomllib.loads)(file.read_text())
                for place in places(own):
                    for number, values in enumerate(changed(own, place)):
                        text = json.dumps(values) if file.suffix == ".json" else None
                        yield (
                            f"{file.parent.name}/{file.name} {place} {number}",
                            lambda f=file, t=text, v=values: self._folder(
                                f, tomli_w.dumps(v) if t is None else t
                            ),
                        )

    def _folder(self, file, text):
        before = file.read_bytes()
        try:
            file.write_text(text)
            subject = self.case.subject()
            write_report(subject, self.home / "other")
        except (ValueError, LookupError, TypeError, AttributeError):
            return True
        finally:
            file.write_bytes(before)
        return self._alike(self.home / "other")


KINDS = ("fields", "evidence", "words", "elements", "lines", "folders")


def _copied(path, where):
    where.mkdir(parents=True)
    shutil.copy(path, where)


def _lines(line):
    """What a line is replaced by: nothing, itself twice, and each of its fields with another value."""
    yield []
    yield [line, line]
    values = json.loads(line)
    for place in places(values):
        for other in changed(values, place):
            yield [json.dumps(other, sort_keys=True)]


def rechained(text):
    """Lines of ledgers whose checksums follow from one another, as far as they can be read."""
    chains, lines = {}, []
    for line in text.splitlines():
        try:
            values = json.loads(line)
            key = (values["run"], values["party"])
            values.pop("checksum")
        except (ValueError, KeyError, TypeError, AttributeError):
            lines.append(line)
            continue
        chain = (
            chains.get(key)
            or hashlib.sha256(f"fedveil ledger\x1f{key[0]}\x1f{key[1]}".encode()).hexdigest()
        )
        plain = json.dumps(values, sort_keys=True)
        chains[key] = hashlib.sha256((chain + plain).encode()).hexdigest()
        lines.append(f'{plain[:-1]}, "checksum": "{chains[key]}"}}')
    return "".join(f"{line}\n" for line in lines)
