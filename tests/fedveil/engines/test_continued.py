"""An object that is made in the middle of a run goes on from the ledgers of the rounds before, or is refused."""

import ast
import re
from pathlib import Path

import pytest
import torch

import fedveil
import fedveil_lab
from engine_kit import federation
from fedveil.accounting import Filter, LeakageFilter, Ledger, Limits, ParticipationFilter, Policy
from fedveil.engines.federation import Federation
from fedveil.errors import FieldError
from fedveil.methods import build

RELEASED = build("sga-ldp", similarity="released", clip=1.0)
METHODS = {
    "sga-ldp": None,
    "group": None,
    "released": RELEASED,
    "global": None,
    "ifca": build("ifca", hypotheses=2),
    "vanilla": None,
}


def books():
    """Ledgers that outlive a federation, as its files would; their lines by party."""
    files = {}

    def ledgers(party):
        lines = files.setdefault(party, [])
        return Ledger.parse("memory", party, list(lines)), lines.append

    return files, ledgers


def made(name, **options) -> Federation:
    return federation("sga-ldp" if name == "released" else name, method=METHODS[name], **options)


def begun(name, rounds=3, **options):
    """Lines of every ledger after so many rounds, and what `restore` takes."""
    files, ledgers = books()
    first = made(name, ledgers=ledgers, **options)
    total = first.run(rounds).guarantee
    return (
        files,
        ledgers,
        (first.models, first.round, first.server.state, first.client_states()),
        total,
    )


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "options", [{}, {"client_budgets": lambda p: ParticipationFilter(9)}, {"clients_per_round": 2}]
)
@pytest.mark.parametrize("name", METHODS)
def test_a_federation_goes_on_with_its_ledgers_alone(name, options):
    files, ledgers, state, _ = begun(name, **options)
    whole = {party: list(lines) for party, lines in files.items()}
    later = made(name, ledgers=ledgers, **options)
    later.restore(*state)
    assert later.run(4).guarantee == made(name, **options).run(4).guarantee
    kept = [party for party, lines in whole.items() if lines]
    for lost in (kept, ["server"], *([party] for party in kept)):
        files.clear()
        files.update(
            {party: [] if party in lost else list(lines) for party, lines in whole.items()}
        )
        later = made(name, ledgers=ledgers, **options)
        with pytest.raises(FieldError, match="ledgers"):
            later.restore(*state)
    for lost in kept:  # its last line
        if name == "released" and lost != "server":
            continue  # a budget that follows releases may have declined it
        files.clear()
        files.update(
            {party: list(lines)[: -1 if party == lost else None] for party, lines in whole.items()}
        )
        later = made(name, ledgers=ledgers, **options)
        with pytest.raises(FieldError, match="ledgers"):
            later.restore(*state)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sga-ldp", {"client_budgets": lambda p: ParticipationFilter(1 if p == 3 else 9)}),
        ("global", {"client_budgets": lambda p: ParticipationFilter(1 if p == 3 else 9)}),
        ("group", {"client_budgets": lambda p: LeakageFilter(1e-9 if p == 0 else 1e9)}),
        ("sga-ldp", {"policy": Policy(trust=("local",), total=Limits(participations=2))}),
        ("released", {"client_budgets": lambda p: Filter(1e-9 if p == 2 else 1e6, 1e-5)}),
    ],
)
def test_a_client_that_declined_is_missed_by_nobody(name, options):
    _, ledgers, state, _ = begun(name, **options)
    later = made(name, ledgers=ledgers, **options)
    later.restore(*state)
    later.run(4)


def test_a_round_of_other_ledgers_is_refused_before_anybody_trains():
    later = made("global")
    later.models, later.round = (
        torch.zeros_like(later.models),
        3,
    )  # custom code that puts a run together
    with pytest.raises(FieldError, match="ledgers"):
        later.run(4)
    assert not later.server.ledger.entries


@pytest.mark.parametrize("name", METHODS)
def test_a_second_call_states_the_total_of_both(name):
    fed = made(name)
    fed.run(2)
    assert fed.run(4).guarantee == made(name).run(4).guarantee


# What may be removed by whoever reads it: rows and files of data, a second name of a file; never a run's folder.
HARMLESS = (
    "row",
    "example",
    "window",
    "both",
    "declare it",
    "list it in data.absent",
    "copies and backups",
    "in an absent target's place",  # a world of an audit
)
ADVICE = re.compile(r"\b(delete|erase|rm -r|remove|wipe|throw away)\b", re.IGNORECASE)


def texts(file):
    """What a module may say: its strings, joined where they are written in pieces; docstrings left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documents = {id(node.body[0].value) for node in ast.walk(tree) if _documented(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documents
        ):
            yield node.value


def _documented(node):
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, holders) and bool(node.body) and isinstance(node.body[0], ast.Expr)


def test_no_message_advises_to_delete_what_may_hold_a_ledger():
    said = []
    for file in (
        file
        for package in (fedveil, fedveil_lab)
        for file in Path(package.__path__[0]).rglob("*.py")
    ):
        for text in texts(file):
            advice = ADVICE.search(text.replace("add/remove", ""))
            if (
                advice
                and " " in text.strip()
                and not any(word in text.lower() for word in HARMLESS)
            ):
                said.append(f"{file.name}: {text}")
    options = ("--out-world", "copy-move", "replaces an absent target")  # which name such a thing
    assert [one for one in said if not any(word in one for word in options)] == []
