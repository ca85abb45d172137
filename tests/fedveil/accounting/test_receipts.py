"""The Merkle tree of receipts, by hand and against another way to compute it; and what no receipt may be."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.accounting import Entry, Ledger, Receipt, Release, ShareReceipt, digest
from fedveil.accounting.ledger import nothing
from fedveil.accounting.receipts import leaf, path, question, seal, share_digest, tree, tree_of_path
from fedveil.errors import FieldError, LedgerError
from fedveil.methods import build


def sha(data):
    return hashlib.sha256(data).digest()


def leaves(count):
    return sorted(sha(bytes([i])).hex() for i in range(count))


def receipt(**values):
    shown = {"run": "r", "round": 3, "asked": 4, "leaves": tuple(leaves(3))}
    marks = dict.fromkeys(("facts", "opened", "model", "previous"), leaves(1)[0])
    return Receipt(**{**shown, **marks, **values})


def by_stack(items):
    """The same hash by RFC 9162's other reading: full subtrees are merged from the left, the rest from the right."""
    stack = []
    for place, item in enumerate(items):
        stack.append(sha(b"\x00" + bytes.fromhex(item)))
        while place & 1:
            right, left = stack.pop(), stack.pop()
            stack.append(sha(b"\x01" + left + right))
            place >>= 1
    while len(stack) > 1:
        right, left = stack.pop(), stack.pop()
        stack.append(sha(b"\x01" + left + right))
    return stack[0]


def test_the_tree_of_three_leaves_by_hand():
    a, b, c = leaves(3)
    of = [sha(b"\x00" + bytes.fromhex(one)) for one in (a, b, c)]
    assert tree([a, b, c]) == sha(b"\x01" + sha(b"\x01" + of[0] + of[1]) + of[2])


@given(st.integers(1, 40))
def test_the_tree_agrees_with_another_way_and_each_leaf_has_a_path(count):
    own = leaves(count)
    assert tree(own) == by_stack(own)
    for place in range(count):
        assert tree_of_path(own[place], path(own, place)) == tree(own)
        assert tree_of_path(sha(b"other").hex(), path(own, place)) != tree(own)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7])
def test_a_doubled_last_leaf_and_inner_nodes_as_leaves_have_other_roots(count):
    """Second preimages: Bitcoin's doubled leaf (CVE-2012-2459), and nodes that pass for leaves."""
    own = leaves(count)
    assert tree([*own, own[-1]]) != tree(own)
    if count > 2:
        cut = 1 << ((count - 1).bit_length() - 1)
        assert tree([tree(own[:cut]).hex(), tree(own[cut:]).hex()]) != tree(own)


@pytest.mark.parametrize(
    "cheat",
    [
        {"leaves": (*leaves(3)[:2], leaves(3)[1])},
        {"leaves": tuple(reversed(leaves(3)))},
        {"leaves": ()},
        {"asked": 2},
        {"asked": 0},
        {"asked": True},
        {"asked": -1},
        {"round": 1.0},
        {"run": 3},
        {"leaves": ("F" * 64,)},
        {"leaves": ("0" * 63,)},
        {"previous": ""},
    ],
)
def test_a_receipt_that_contradicts_itself_is_refused(cheat):
    with pytest.raises(FieldError, match="receipt"):
        receipt(**cheat)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"run": "r"}', "[" * 100])
def test_a_text_that_is_no_receipt_is_refused(text):
    with pytest.raises(FieldError, match="receipt"):
        Receipt.parse(text)


def test_the_root_binds_every_value():
    one = receipt()
    assert Receipt.parse(one.text) == one
    other = sha(b"x").hex()
    changes = {"run": "s", "round": 4, "asked": 5, "leaves": one.leaves[:2]}
    changes |= dict.fromkeys(("facts", "opened", "model", "previous"), other)
    roots = {replace(one, **{name: value}).root for name, value in changes.items()}
    assert len(roots | {one.root}) == len(changes) + 1


def test_a_leaf_binds_question_share_terms_and_salt():
    spends = [
        build("record", examples=6, noise_multiplier=z, clip=0.5, rounds=3).client.spend()
        for z in (2.0, 3.0)
    ]
    asked, share = question("a", "b"), digest((Release("model", torch.zeros(3)),))
    salts = (bytes(32), bytes([1]) + bytes(31))
    made = {leaf(asked, share, seal(salt, spend)) for salt in salts for spend in spends}
    made.add(leaf(question("a", "c"), share, seal(salts[0], spends[0])))
    made.add(leaf(asked, digest((Release("model", torch.ones(3)),)), seal(salts[0], spends[0])))
    assert len(made) == 6


def test_only_what_a_server_combines_is_digested():
    model, metric = Release("model", torch.zeros(3)), Release("metric", torch.tensor(1.0), "loss")
    assert share_digest((metric, model)) == digest((model,))


def line(values):
    ledger = Ledger("r", "0")
    text = ledger.commit(Entry((1, "protect"), 0, leaves(1)[0], nothing("local"), receipt=values))
    [entry] = Ledger.parse("r", "0", [text]).entries
    return text, entry


def test_a_line_keeps_its_receipt_and_one_of_before_has_none():
    held = ShareReceipt(leaf=leaves(1)[0], salt="00" * 32, question=leaves(1)[0], seen=leaves(1)[0])
    text, entry = line(held.values())
    assert ShareReceipt.of(entry) == held
    assert "receipt" in json.loads(text)
    text, entry = line({})
    assert ShareReceipt.of(entry) is None
    assert "receipt" not in json.loads(text)


@pytest.mark.parametrize(
    "values", [{"leaf": "a"}, {"leaf": 1, "salt": "", "question": "", "seen": ""}, {"x": "y"}]
)
def test_a_line_whose_receipt_is_none_is_refused(values):
    with pytest.raises(LedgerError, match="receipt"):
        ShareReceipt.of(line(values)[1])
