"""A lifetime ledger of years: it opens from the sums of its head, forgets nothing, and takes no edit for a saving."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from fedveil.accounting import OPEN, Entry, Filter, Guarantee, Limits, Policy, Spend
from fedveil.accounting.bounds import GDP
from fedveil.accounting.carried import gathered, without
from fedveil.engines.ledger_sums import read_sums
from fedveil.engines.lifetime import LifetimeLedger, begin_ledger, read_head, read_ledger
from fedveil.errors import LedgerError

MU = Guarantee(unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(0.1))
PURPOSES = ("protect", "validate", "share")


def spend(mu):
    return Spend(guarantee=replace(MU, bound=GDP(mu)), mechanism="gaussian", scale=(1.0,))


def entry(round_, digest, mu=0.1, attempt=0, purpose="protect"):
    return Entry((round_, purpose), attempt, digest, spend(mu), "secure", 5)


class Book:
    """A ledger whose sums are made after every `unsummed` lines."""

    def __init__(self, root):
        self.folder, self.head = root / "ledgers", root / "head"
        self.path = begin_ledger(self.folder, "ward", by="the tests", head=self.head)
        self.sums = self.head / "ward.sums"

    def open(self, run):
        return LifetimeLedger(self.folder, "ward", run, head=self.head)

    def release(self, run, *rounds, **more):
        with self.open(run) as mine:
            for number in rounds:
                for digest in (OPEN, f"{run} {number}"):
                    mine.store(mine.ledger.commit(entry(number, digest, **more)))


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil.engines.lifetime.UNSUMMED", 4)
    monkeypatch.setattr("fedveil.files.locked.PATIENCE", 0.2)
    return Book(tmp_path)


def seen(book, run):
    """What a run sees from the sums, and from all lines."""
    with book.open(run) as mine:
        quick = mine.ledger
    held = book.sums.read_bytes() if book.sums.exists() else None
    book.sums.unlink(missing_ok=True)
    with book.open(run) as mine:
        whole = mine.ledger
    if held is not None:
        book.sums.write_bytes(held)
    return quick, whole


def costs(ledger):
    return {
        one: times for times, one in gathered([*ledger.earlier, *ledger.entries], ledger.carried)
    }


def test_from_its_sums_a_ledger_is_what_it_is_from_all_its_lines(book):
    for turn in range(6):
        for run in ("a", "b", f"new {turn}"):
            purpose = PURPOSES[turn % 3]
            if purpose == "share":
                purpose += f" question {turn} {run}"
            book.release(run, turn + 1, mu=0.1 * (turn % 3 + 1), purpose=purpose)
    assert read_sums_of(book).carried
    for run in ("a", "b", "new 0", "new 5", "never seen"):
        quick, whole = seen(book, run)
        assert quick.carried
        assert not whole.carried
        assert costs(quick) == costs(whole)
        assert (quick.entries, quick.checksum, quick.lines) == (
            whole.entries,
            whole.checksum,
            whole.lines,
        )
        for one in read_ledger(book.path)[0].all_entries:
            assert quick.find(one.key) == whole.find(one.key)
            if one.key[1].startswith("share "):
                assert quick.was_asked(one.key) == whole.was_asked(one.key)
        assert quick.was_asked((3, "share question 2 a")) == (run != "a")


def read_sums_of(book):
    with book.open("who asks") as mine:
        return read_sums(mine._place, mine._head.ledger)


def test_a_filter_and_a_policy_go_on_counting_from_the_sums(book):
    policy, budget = Policy(total=Limits(mu=1.0)), Filter(epsilon=4, delta=1e-5)
    for made in range(20):
        quick, whole = seen(book, str(made))
        assert policy.refusal(
            "m", "local", True, spend(0.3), [e.spend for e in quick.all_entries]
        ) == policy.refusal("m", "local", True, spend(0.3), [e.spend for e in whole.all_entries])
        book.release(str(made), 1, mu=0.3)
    spent = [budget.admit_spend(one.spend) for one in seen(book, "last")[0].all_entries]
    assert spent == [True] * sum(spent) + [False] * (20 - sum(spent))
    assert 0 < sum(spent) < 20


def test_intents_and_attempts_that_go_on_after_the_sums_cost_what_they_cost(book):
    with book.open("old") as mine:
        mine.store(mine.ledger.commit(entry(1, OPEN)))
        mine.store(mine.ledger.commit(entry(2, OPEN)))
        mine.store(mine.ledger.commit(entry(2, "b")))
    book.release("filler", *range(1, 6))
    book.release("filler", 6)
    assert read_sums_of(book).count >= 13
    with book.open("old") as mine:
        assert mine.ledger.find((1, "protect")).digest == OPEN
        mine.store(mine.ledger.commit(entry(1, "a")))
        mine.store(mine.ledger.commit(entry(2, "c", attempt=1)))
        with pytest.raises(LedgerError, match="not the next one"):
            mine.ledger.commit(entry(2, "d", attempt=1))
    quick, whole = seen(book, "another")
    assert costs(quick) == costs(whole)
    assert len(quick.all_entries) == len(whole.all_entries) == 9


def test_an_edit_in_lines_that_are_not_read_saves_nothing_and_show_finds_it(book):
    for run in range(8):
        book.release(str(run), 1, 2, mu=0.2)
    quick, _ = seen(book, "later")
    edited = book.path.read_bytes().replace(b'"mu": 0.2', b'"mu": 0.1', 1)
    book.path.write_bytes(edited)
    with book.open("later") as mine:
        assert costs(mine.ledger) == costs(quick)
    with pytest.raises(LedgerError, match="edited"):
        read_ledger(book.path)
    with pytest.raises(LedgerError, match="edited"):
        read_head(book.path, book.head)
    with (
        pytest.raises(LedgerError, match="edited"),
        book.open("0"),
    ):  # of its own lines all are read
        pass


def test_what_is_cut_off_or_put_back_is_refused_with_sums_too(book):
    for run in range(6):
        book.release(str(run), 1, 2)
    book.release("6", 1)
    whole = book.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    summed = read_sums_of(book).count
    assert summed > 1
    for kept in range(1, len(lines)):
        book.path.write_bytes(b"".join(lines[:kept]))
        with pytest.raises(LedgerError), book.open("x"):
            pass
    book.path.write_bytes(whole)
    with book.open("x") as mine:
        assert len(mine.ledger.all_entries) == 13


def test_sums_that_are_missing_torn_forged_or_older_are_made_anew(book, tmp_path):
    for run in range(6):
        book.release(str(run), 1, 2)
    older = book.sums.read_bytes()
    for run in range(6, 12):
        book.release(str(run), 1, 2)
    mark, text = book.sums.read_bytes().split(b"\n", 1)
    cheaper = json.loads(text)
    cheaper["carried"][0]["times"] = 1
    forged = mark + b"\n" + json.dumps(cheaper).encode()
    other = Book(tmp_path / "other")
    for run in range(6):
        other.release(str(run), 1)
    for content in (None, b"", text, older[:-9], forged, older, other.sums.read_bytes()):
        book.sums.unlink(missing_ok=True)
        if content is not None:
            book.sums.write_bytes(content)
        with book.open("x") as mine:
            assert len(mine.ledger.all_entries) == 24
    assert len(seen(book, "x")[0].all_entries) == 24


def test_sums_of_a_head_that_was_put_back_are_not_taken(book):
    for run in range(6):
        book.release(str(run), 1, 2)
    head = (book.head / "ward.head").read_bytes()
    for run in range(6, 12):
        book.release(str(run), 1, 2)
    (book.head / "ward.head").write_bytes(head)
    with pytest.raises(LedgerError, match="put back"), book.open("x"):
        pass


def test_a_copy_of_a_ledger_with_its_sums_is_refused_like_one_without(book, tmp_path):
    for run in range(6):
        book.release(str(run), 1, 2)
    shutil.copytree(book.folder, tmp_path / "copy")
    book.release("6", 1, 2)
    with (
        pytest.raises(LedgerError, match="put back"),
        LifetimeLedger(tmp_path / "copy", "ward", "x", head=book.head),
    ):
        pass


def test_costs_are_taken_off_as_often_as_they_were_paid():
    paid = [entry(1, "a"), entry(2, "b"), entry(1, "c", mu=0.2)]
    carried = gathered(paid)
    assert [times for times, _ in carried] == [2, 1]
    assert without(carried, paid) == ()
    assert [times for times, _ in without(carried, paid[1:])] == [1]
    with pytest.raises(ValueError, match="not among"):
        without(carried, [*paid, entry(3, "d")])


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_sums_are_for_their_owner_alone(book):
    for run in range(4):
        book.release(str(run), 1, 2)
    assert book.sums.stat().st_mode & 0o777 == 0o600
