"""`fedveil ledger`: an operator begins the ledger of a data set, and reads what was spent from it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.accounting import OPEN, Entry, Guarantee, Ledger, Limits, Policy, Spend
from fedveil.accounting.bounds import GDP, Heuristic
from fedveil.accounting.guarantee import BEFORE_ORDER, BEFORE_ROUNDING
from fedveil.accounting.ledger import FORMAT
from fedveil.cli import app
from fedveil.cli.site import runs_of
from fedveil.engines.history import total_of
from fedveil.engines.lifetime import LifetimeLedger, read_ledger
from fedveil.evidence import encoded, spent_of
from fedveil.files import LedgerFiles
from inclusion_kit import federation

MU = Guarantee(unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(0.6))
LOOSE = Guarantee(
    unit="client",
    relation="replace-one",
    trust="local",
    scope="round",
    bound=Heuristic("its scale follows data"),
)


def called(*arguments):
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


@pytest.fixture
def path(tmp_path):
    """A ledger with two runs: two proven releases, one of them not closed, and a heuristic one."""
    path = tmp_path / "ledgers" / "ward-7.jsonl"
    assert called("begin", path, "--by", "the tests", "--head", tmp_path / "head").exit_code == 0
    for run, entries in (("one", [(1, MU, "a"), (2, MU, OPEN)]), ("two", [(1, LOOSE, "b")])):
        with LifetimeLedger(path.parent, path.stem, run, head=tmp_path / "head") as mine:
            for round_, promise, digest in entries:
                spend = Spend(guarantee=promise, mechanism="gaussian")
                mine.store(
                    mine.ledger.commit(Entry((round_, "protect"), 0, digest, spend, "secure", 5))
                )
    return path


def test_a_ledger_is_begun_once_and_says_by_whom(path):
    head = json.loads(path.read_text().splitlines()[0])
    assert (head["dataset"], head["by"]) == ("ward-7", "the tests")
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert (
        called("begin", path, "--by", "somebody else", "--head", path.parent / "head").exit_code
        == 2
    )
    assert (
        called(
            "begin", path.with_suffix(".txt"), "--by", "me", "--head", path.parent / "head"
        ).exit_code
        == 2
    )
    for missing in (
        ("--head", path.parent / "head"),
        ("--by", "me"),
    ):  # nobody begins it; nowhere is its head
        assert called("begin", path.with_name("ward-8.jsonl"), *missing).exit_code == 2
    assert path.read_bytes() == before


def test_what_was_spent_is_shown_kind_by_kind(path):
    ledger, lines, torn = read_ledger(path)
    assert torn == 0
    assert [row[:4] for row in runs_of(ledger, lines).rows] == [
        ("one", "1 to 2", 2, 1),
        ("two", "1 to 1", 1, 0),
    ]
    policy = Policy(total=Limits(mu=1.0, participations=5))
    rows = {row[0]: row[1:] for row in spent_of(ledger, policy).rows}
    assert rows["mu"] == ["2", "0.848529", "1", "0.5291"]  # sqrt(2) 0.6, and sqrt(1 - 0.72)
    assert rows["participations"] == ["3", "3", "5", "2"]
    assert set(rows) == {"mu", "participations"}


def test_show_writes_nothing_and_names_what_is_damaged(path, tmp_path):
    with path.open("ab") as file:
        file.write(b'{"torn')  # a line that was never written whole
    before = path.read_bytes()
    (tmp_path / "policy.toml").write_text("[total]\nmu = 1.0\n")
    shown = called("show", path, "--policy", tmp_path / "policy.toml")
    assert shown.exit_code == 0
    assert "0.848529" in shown.output
    assert path.read_bytes() == before
    path.write_bytes(before.replace(b"0.6", b"0.1"))
    assert called("show", path).exit_code == 2
    assert called("show", tmp_path / "none.jsonl").exit_code == 2
    assert called("show", path, "--policy", path).exit_code == 2


def test_the_head_is_made_and_shown(path, tmp_path):
    looked = called("show", path, "--head", tmp_path / "head")
    assert looked.exit_code == 0
    assert "agrees, 3 lines" in looked.output
    assert "not looked at" in called("show", path).output
    assert (
        called("head", path, "--by", "me", "--head", tmp_path / "head").exit_code == 2
    )  # there is one
    assert called("head", path, "--by", "me", "--head", tmp_path / "other").exit_code == 0
    assert called("show", path, "--head", tmp_path / "other").exit_code == 0
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert called("show", path, "--head", tmp_path / "head").exit_code == 2
    assert called("show", path, "--head", tmp_path / "nowhere").exit_code == 2


def test_record_level_releases_of_the_earlier_format_are_marked(path):
    # made before a machine's rounding was covered; lines of that format name none
    ledger, _, _ = read_ledger(path)
    chain, spend = (
        ledger.checksum,
        Spend(guarantee=replace(MU, unit="record", public_size=True), mechanism="gaussian"),
    )
    values = json.loads(
        Ledger("old", path.stem, "").commit(Entry((1, "protect"), 0, "d", spend, "secure", 5))
    )
    values = {**values, "run": "old"}
    del values["checksum"], values["format"]
    text = json.dumps(values, sort_keys=True)
    mark = hashlib.sha256((chain + text).encode()).hexdigest()
    old = path.read_text() + f'{text[:-1]}, "checksum": "{mark}"}}\n'
    assert not spent_of(ledger, Policy()).notes[1:]
    path.write_text(old)
    ledger, _, _ = read_ledger(path)
    assert [entry.doubt for entry in ledger.all_entries] == ["", "", "", BEFORE_ROUNDING]
    assert spent_of(ledger, Policy()).notes[1].startswith("1 ")
    assert "SECURITY.md" in called("show", path).output


def test_a_total_of_the_earlier_format_says_against_whom_it_holds():
    cases = {
        (FORMAT, "record"): (),
        (2, "record"): (BEFORE_ORDER,),
        (2, "person"): (BEFORE_ORDER,),
        (1, "record"): (BEFORE_ROUNDING,),
        (1, "client"): (),
    }
    for (format_, unit), said in cases.items():
        ledger = Ledger("run", "0")
        spend = Spend(
            guarantee=replace(MU, unit=unit, public_size=None if unit == "client" else True),
            mechanism="gaussian",
        )
        ledger.entries += [
            Entry((i, "protect"), 0, "d", spend, "secure", 5, format_) for i in (1, 2)
        ]
        assert total_of(ledger).conditions[len(MU.conditions) :] == said
        assert len(spent_of(ledger, Policy()).notes[1:]) == len(said)
        lines = [Ledger("run", "0").commit(ledger.entries[0])]
        assert Ledger.parse("run", "0", lines).entries[0].format == format_


@pytest.mark.parametrize(
    ("rounds", "lacking"), [((1, 2, 3), ""), ((4, 5, 6), "1 to 3"), ((1, 3), "round 2")]
)
def test_a_servers_ledger_that_begins_in_the_middle_of_a_run_is_named(tmp_path, rounds, lacking):
    ledger, folder = Ledger("a run", "server"), tmp_path / "ledger"
    folder.mkdir()
    promise = replace(MU, trust="central", relation="zero-out")
    lines = [
        ledger.commit(
            Entry(
                (number, "combine"),
                0,
                "a",
                Spend(guarantee=promise, mechanism="gaussian"),
                "secure",
            )
        )
        for number in rounds
    ]
    (folder / "server.jsonl").write_text("".join(f"{line}\n" for line in lines))
    result = called("show", folder / "server.jsonl")
    assert result.exit_code == 0, result.output
    assert ("SECURITY.md" in result.stdout) == bool(lacking)
    assert lacking in result.stdout
    assert (total_of(ledger).status == "conditional") == bool(lacking)


@pytest.mark.parametrize("number", [2, 4])
def test_a_run_of_a_data_set_that_begins_at_a_later_round_is_named(path, number):
    assert "begins at round" not in called("show", path).stdout
    with LifetimeLedger(path.parent, path.stem, "three", head=path.parent.parent / "head") as mine:
        spend = Spend(guarantee=MU, mechanism="gaussian")
        mine.store(mine.ledger.commit(Entry((number, "protect"), 0, "c", spend, "secure", 6)))
    assert f"run three begins at round {number}" in " ".join(called("show", path).stdout.split())


STORED = Path(__file__).parents[1] / "evidence" / "stored"


@pytest.mark.parametrize(
    ("report", "ledgers"),
    [("report", ["run"]), ("deployed/report", ["deployed/run", "deployed/ledgers"])],
)
def test_a_reports_promises_are_checked_by_the_library_alone(report, ledgers, tmp_path):
    given = [word for one in ledgers for word in ("--ledgers", str(STORED / one))]
    file = str(STORED / report / "report.json")
    result = called("check", file, *given)
    assert result.exit_code == 0, result.output
    assert "DIFFERS" not in result.output
    values = json.loads((STORED / report / "report.json").read_text())
    for stated in values["evidence"]["runs"][0]["promises"].values():
        stated["epsilon"] = stated["epsilon"] / 2
    (tmp_path / "report.json").write_bytes(encoded(values))
    assert called("check", tmp_path / "report.json", *given).exit_code == 1
    other = str(STORED / "node" / "ledgers")
    assert called("check", file, "--ledgers", other).exit_code == 5


def test_receipts_are_checked_against_the_sites_ledgers(tmp_path):
    (tmp_path / "run" / "ledger").mkdir(parents=True)
    files = LedgerFiles(tmp_path / "run" / "ledger", "run", durable=True, message=print)
    federation("none", 3, ledgers=files.open, run_id="run").run(2)
    assert called("receipts", tmp_path / "run").exit_code == 0
    away = (tmp_path / "run" / "ledger" / "1.jsonl").rename(tmp_path / "1.jsonl")
    result = called("receipts", tmp_path / "run")
    assert (result.exit_code, "Give all sites' ledgers" in result.output) == (5, True)
    assert called("receipts", tmp_path / "run", "--ledgers", away).exit_code == 0
    away.write_text("".join(away.read_text().splitlines(keepends=True)[1:]))
    assert called("receipts", tmp_path / "run", "--ledgers", away).exit_code == 1
