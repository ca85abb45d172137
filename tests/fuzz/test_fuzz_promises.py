"""Ledgers, heads, policies and keys, which hold a promise: a changed one is refused, or says the same."""

import json

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fedveil.accounting import Entry, Guarantee, Ledger, Policy, Spend, SumPolicy
from fedveil.accounting.bounds import GDP
from fedveil.engines.lifetime import (
    LifetimeLedger,
    begin_ledger,
    read_head,
    read_ledger,
    read_policy,
)
from fedveil.engines.site_keys import make_key, read_key
from fedveil.errors import FedVeilError
from fedveil.node.guard import NodePolicy
from fedveil.secure.keys import SiteKey
from fedveil.secure.shares import Site, SumContext, SumTerms
from fuzz_kit import REFUSED, bytes_of, lines_of, outcome, played, trees

pytestmark = pytest.mark.slow

PROMISE = Guarantee(
    unit="client", relation="replace-one", trust="local", scope="round", bound=GDP(1.0)
)
POLICY = {
    "trust": ["local", "secure sum"],
    "methods": ["group", "record"],
    "relations": ["zero-out"],
    "deadline": 60,
    "receipts": True,
    "delta": 1e-5,
    "distance": 1.0,
    "release": {"mu": 1.0, "leakage": 2.0},
    "total": {"mu": 4.0, "participations": 5, "leakage": 2.0, "record_epsilon": 4.0},
    "sum": {
        "peers": ["ab" * 32, "cd" * 32],
        "least_sites": 3,
        "colluding": 1,
        "attempts": 3,
        "silos_per_person": 1,
    },
}
NODE = {**POLICY, "node": {"ledger": "ledgers", "head": "heads", "apps": ["ef" * 32]}}


def spend():
    return Spend(guarantee=PROMISE, mechanism="gaussian", scale=(1.0,), sensitivity=1.0)


def ledger_lines():
    ledger = Ledger("a run", "server")
    return [
        ledger.commit(Entry((i, "combine"), 0, f"{i:064x}", spend(), "secure")) for i in (1, 2, 3)
    ]


LINES = ledger_lines()


def of_lines(lines):
    return Ledger.parse("a run", "server", lines)


@played(6_000)
@given(lines_of(LINES))
def test_a_changed_line_is_refused_or_the_end_of_a_shorter_ledger(lines):
    found = outcome(lambda: of_lines(lines))
    if found is not REFUSED:
        assert [json.loads(line) for line in lines] == [
            json.loads(line) for line in LINES[: len(lines)]
        ]


@played(6_000)
@given(trees(json.loads(LINES[0])))
def test_a_line_sealed_anew_never_crashes_what_reads_it(values):
    if not isinstance(values, dict):
        return
    values.pop("checksum", None)
    try:
        text = json.dumps(values, sort_keys=True)
    except (TypeError, ValueError):
        return
    mark = Ledger._checksum(
        Ledger("a run", "server")._chain, text
    )  # a forger has the checksum's key, too
    line = f'{text[:-1]}, "checksum": "{mark}"}}'
    found = outcome(lambda: of_lines([line]))
    if found is not REFUSED and found.entries:
        outcome(lambda: [entry.spend.guarantee.describe(1e-5) for entry in found.entries])


@pytest.fixture(scope="module")
def lifetime(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lifetime")
    begin_ledger(folder / "sets", "charite", "a test", head=folder / "heads")
    with LifetimeLedger(folder / "sets", "charite", "a run", head=folder / "heads") as book:
        for i in (1, 2):
            book.store(book.ledger.commit(Entry((i, "protect"), 0, f"{i:064x}", spend(), "secure")))
    return folder


@played(3_000)
@given(st.data())
def test_a_changed_lifetime_ledger_is_refused_beside_its_head(lifetime, data):
    path = lifetime / "sets" / "charite.jsonl"
    right = path.read_bytes()
    changed = data.draw(bytes_of(right))
    try:
        path.write_bytes(changed)
        outcome(lambda: read_ledger(path), OSError)
        found = outcome(lambda: read_head(path, lifetime / "heads"), OSError)
    finally:
        path.write_bytes(right)
    # a line that was not written whole is not part of the ledger
    whole = changed[: changed.rfind(b"\n") + 1]
    assert found is REFUSED or [json.loads(one) for one in whole.splitlines()] == [
        json.loads(one) for one in right.splitlines()
    ]


@played(8_000)
@given(trees(POLICY))
def test_a_policy_of_any_values_is_read_or_refused(values):
    if isinstance(values, dict):
        found = outcome(lambda: Policy.from_dict(values))
        if found is not REFUSED:
            outcome(lambda: found.refusal("group", "local", True, spend(), [spend()]))
            outcome(lambda: found.standing([spend()]))


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    folder.chmod(0o700)
    return folder


@played(4_000)
@given(st.one_of(bytes_of(tomli_w.dumps(NODE).encode()), trees(NODE)))
def test_a_policy_s_file_is_read_or_refused(private, given):
    path = private / "policy.toml"
    if not isinstance(given, bytes):
        try:
            given = tomli_w.dumps(given).encode()
        except (TypeError, ValueError, AttributeError, RecursionError):
            return
    path.write_bytes(given)
    path.chmod(0o600)
    outcome(lambda: read_policy(path))
    outcome(lambda: NodePolicy.read(path))


@pytest.fixture(scope="module")
def key(private):
    make_key(private / "right.key")
    return (private / "right.key").read_bytes()


@played(4_000)
@given(st.data())
def test_a_changed_key_is_refused_and_nothing_of_it_is_shown(private, key, data):
    path = private / "a.key"
    path.unlink(missing_ok=True)
    changed = data.draw(bytes_of(key))
    path.write_bytes(changed)
    path.chmod(0o600)
    secret = key.split(b"\n")[1].decode()
    said = ""

    def read():
        nonlocal said
        try:
            return read_key(path)
        except FedVeilError as error:
            said = str(error)
            raise

    outcome(read)
    assert not any(secret[i : i + 8] in said for i in range(0, len(secret), 8))


KEYS = [SiteKey(bytes([number]) * 64) for number in range(1, 5)]
TERMS = {
    "unit": "record",
    "relation": "zero-out",
    "clip": 1.0,
    "noise_multiplier": 2.0,
    "denominator": 20.0,
    "rate": 1.0,
    "units": 20,
    "dimension": 10,
    "least_sites": 3,
    "colluding": 1,
}
QUESTION = {
    "run": "a run",
    "round": 1,
    "attempt": 0,
    "roster": [one.public.hex() for one in KEYS],
    "broadcast": "ab" * 32,
    "layout": "cd" * 32,
    "terms": TERMS,
}
CONTRACT = SumPolicy(peers=[one.public.hex() for one in KEYS[1:]])


@played(4_000)
@given(trees(QUESTION))
def test_a_question_of_a_secure_sum_is_answered_on_the_contract_s_terms_or_refused(asked):
    def ask():
        terms = SumTerms(**asked["terms"])
        context = SumContext(**{**asked, "terms": terms})
        Site(KEYS[0], CONTRACT).require(context)
        return context, context.digest

    if not isinstance(asked, dict) or not isinstance(asked.get("terms"), dict):
        return
    if set(asked) != set(QUESTION) or set(asked["terms"]) != set(TERMS):
        return  # another keyword is refused by Python
    found = outcome(ask)
    if found is not REFUSED:
        context, _ = found
        assert set(context.roster) <= {one.public for one in KEYS}
        assert KEYS[0].public in context.roster
        assert len(context.roster) >= 3
        assert context.terms.colluding >= 1
