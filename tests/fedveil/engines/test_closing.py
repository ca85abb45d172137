"""A ledger is closed at the end of a year: the next one forgets nothing, and the closed one releases nothing."""

import hashlib
import io
import itertools
import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
from click.testing import CliRunner

from fedveil.accounting import OPEN, Entry, Filter, Guarantee, Limits, Policy, Spend
from fedveil.accounting.bounds import GDP
from fedveil.cli import app
from fedveil.engines.closing import close_ledger, require_closed
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger, ledger_id, read_head
from fedveil.engines.site_keys import bind_key, make_key
from fedveil.errors import FieldError, LedgerError

MU = Guarantee(unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(0.1))
SPEND = Spend(guarantee=MU, mechanism="gaussian", scale=(1.0,))


class Ward:
    """A data set's ledger, closed year by year."""

    def __init__(self, root):
        self.root, self.folder, self.head = root, root / "ledgers", root / "head"
        self.path = begin_ledger(self.folder, "ward", by="the tests", head=self.head)

    def open(self, run="x"):
        return LifetimeLedger(self.folder, "ward", run, head=self.head)

    def release(self, run, *rounds, spend=SPEND):
        with self.open(run) as mine:
            for number in rounds:
                for digest in (OPEN, "a"):
                    one = Entry((number, "protect"), 0, digest, spend, "secure", 5)
                    mine.store(mine.ledger.commit(one))

    def close(self, year):
        return close_ledger(
            self.folder, "ward", f"end of {year}", archive=self.root / str(year), head=self.head
        )

    def spends(self):
        with self.open() as mine:
            return [one.spend for one in mine.ledger.all_entries]


@pytest.fixture
def ward(tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil.files.locked.PATIENCE", 0.2)
    return Ward(tmp_path)


def test_over_years_a_policy_and_a_budget_count_as_over_one_ledger(ward, tmp_path):
    policy = Policy(total=Limits(mu=1.0))  # 100 releases of mu .1
    other = Ward(tmp_path / "never closed")
    for year in range(2024, 2028):
        for run in range(2):
            for book in (ward, other):
                book.release(f"{year} {run}", 1, 2, 3)
            assert ward.spends() == other.spends()
        before = ward.path.read_bytes()
        closed = ward.close(year)
        assert closed.digest == hashlib.sha256(before).hexdigest()
        assert closed.archive.read_bytes() == before
        assert len(ward.path.read_bytes().splitlines()) == 1
        assert closed.releases == len(other.spends())
        require_closed(ward.path, closed.archive)
    assert ward.spends() == other.spends()
    assert len(ward.spends()) == 24
    standing = policy.standing(ward.spends())
    assert standing["mu"][:2] == (24, pytest.approx(0.1 * 24**0.5))
    budget, spent = Filter(epsilon=1.0, delta=1e-5), []
    for one in ward.spends():
        spent.append(budget.admit_spend(one))
    assert spent == [Filter(epsilon=1.0, delta=1e-5).admit(0.1)] * sum(spent) + [False] * (
        24 - sum(spent)
    )
    assert read_head(ward.path, ward.head).by == "end of 2027"


def test_a_declared_budget_is_carried_and_none_is_declared_anew(ward):
    with ward.open("one") as mine:
        mine.store(mine.ledger.declare({"epsilon": 4.0, "delta": 1e-5}))
        mine.store(mine.ledger.commit(Entry((1, "protect"), 0, OPEN, SPEND, "secure", 5)))
    ward.close(2024)
    ward.close(2025)
    with ward.open("two") as mine:
        assert mine.ledger.budget == {"epsilon": 4.0, "delta": 1e-5}
        assert len(mine.ledger.all_entries) == 1  # what was begun and not closed stays spent
        with pytest.raises(LedgerError, match="before the first release"):
            mine.ledger.declare({"epsilon": 8.0, "delta": 1e-5})


def test_the_closed_ledger_put_back_is_refused_and_a_run_under_way_too(ward):
    ward.release("run", 1)
    last = ward.path.read_text().splitlines()[-1]
    closed = ward.close(2024)
    with ward.open("run") as mine, pytest.raises(LedgerError, match="lacks a line"):
        mine.require(last)
    new = ward.path.read_bytes()
    ward.path.unlink()
    shutil.copy(closed.archive, ward.path)
    ward.path.chmod(0o600)
    with pytest.raises(LedgerError, match="another ledger"), ward.open():
        pass
    ward.path.write_bytes(new.replace(b'"times": 1', b'"times": 0'))
    with pytest.raises(LedgerError), ward.open():
        pass
    cheaper = json.loads(new)
    cheaper["carried"] = []
    ward.path.write_text(json.dumps(cheaper) + "\n")
    with pytest.raises(LedgerError, match="another ledger"), ward.open():
        pass
    ward.path.write_bytes(new)
    assert len(ward.spends()) == 1


def test_a_key_of_secure_sums_ends_with_its_ledger(ward, tmp_path):
    make_key(tmp_path / "key")
    bind_key(tmp_path / "key", ledger_id(ward.folder, "ward"))
    ward.close(2024)
    with pytest.raises(FieldError, match="key of its own"):
        bind_key(tmp_path / "key", ledger_id(ward.folder, "ward"))


def test_what_cannot_be_closed_is_left_as_it_is(ward):
    ward.release("run", 1, 2)
    whole = ward.path.read_bytes()
    head = (ward.head / "ward.head").read_bytes()
    for archive, by in ((ward.folder, "me"), (ward.root / "new", " ")):
        with pytest.raises(FieldError):
            close_ledger(ward.folder, "ward", by, archive=archive, head=ward.head)
    taken = ward.root / "2024"
    taken.mkdir()
    (taken / "ward.jsonl").write_text("another\n")
    with pytest.raises(FieldError, match="archive"):
        ward.close(2024)
    with ward.open(), pytest.raises(LedgerError, match="in use"):
        ward.close(2025)
    for damage in (whole[:-900], whole.replace(b'"mu": 0.1', b'"mu": 0.0', 1)):
        ward.path.write_bytes(damage)
        with pytest.raises(LedgerError):
            ward.close(2026)
    ward.path.write_bytes(whole)
    assert (ward.head / "ward.head").read_bytes() == head
    assert len(ward.spends()) == 2


def test_the_command_closes_and_show_checks_what_is_carried_over(ward):
    ward.release("run", 1, 2)
    ward.release("other", 1, spend=replace(SPEND, scale=(2.0,)))

    def called(*arguments):
        return CliRunner().invoke(app, ["ledger", *map(str, arguments)])

    done = called(
        "close",
        ward.path,
        "--by",
        "Dr. Roe: 2024",
        "--head",
        ward.head,
        "--archive",
        ward.root / "2024",
    )
    assert done.exit_code == 0, done.output
    archived = ward.root / "2024" / "ward.jsonl"
    assert hashlib.sha256(archived.read_bytes()).hexdigest() in done.output
    shown = called("show", ward.path, "--head", ward.head, "--closed", archived)
    assert shown.exit_code == 0, shown.output
    assert "3 releases" in shown.output
    assert called("show", archived).exit_code == 0
    other = Ward(ward.root / "other")
    assert called("show", ward.path, "--closed", other.path).exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_process_killed_at_any_step_of_a_closing_forgets_nothing(tmp_path):
    writes, syncs, replaces, opened = os.write, os.fsync, os.replace, io.open
    for fatal in itertools.count(1):
        ward = Ward(tmp_path / str(fatal))
        ward.release("run", 1, 2)
        pid = os.fork()
        if not pid:
            steps = itertools.count(1)

            def at(call, steps=steps, fatal=fatal):
                def stepping(*arguments, **more):
                    if next(steps) == fatal:
                        os.kill(os.getpid(), signal.SIGKILL)
                    result = call(*arguments, **more)
                    if next(steps) == fatal:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return result

                return stepping

            os.write, os.fsync, os.replace, io.open = map(at, (writes, syncs, replaces, opened))
            ward.close(2024)
            os._exit(0)
        over = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(ward.spends()) == 2
        ward.release("next", 1)
        ward.close(2025)
        assert len(ward.spends()) == 3
        if over:
            break
    assert fatal > 20
