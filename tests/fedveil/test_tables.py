"""Tables on terminals of any width: nothing is cut off, and no line is longer than the terminal."""

import io

import pytest
from rich.console import Console

from fedveil.tables import Table
from fedveil_lab.report.progress import Display

WIDTHS = (40, 60, 80, 200)
HEADER = (
    "attack",
    "setting",
    "AUC (95%)",
    "measured epsilon >=",
    "AUC without defence",
    "valid",
    "why",
)
ROWS = [
    (
        "loss",
        label,
        "0.833 (0.49-1.00)",
        "0.00 of 0.16",
        "0.833 (0.49-1.00)",
        "yes",
        f"because of {label} and a (regression)",
    )
    for label in ("vanilla", "global DP, noise 0.1", "record-level, epsilon 4")
]


def printed(thing, width):
    return thing.text(width)


def letters(text):
    return sorted(letter for letter in text if not letter.isspace() and letter not in "─")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("wraps", [(), ("why",), HEADER])
def test_a_table_is_whole_on_a_narrow_terminal(width, wraps):
    shown = printed(
        Table(HEADER, ROWS, title="does client 4 take part?", numbers=("AUC (95%)",), wraps=wraps),
        width,
    )
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    if width >= 60:  # narrower than a cell and what names its row, words are broken
        assert all(cell in shown for row in ROWS for cell in row[2:-1])


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_told_apart_in_every_part_of_a_table(width):
    parts = printed(Table(HEADER, ROWS, wraps=("why",)), width).split("attack")[1:]
    assert all("global" in part for part in parts)


def test_a_wide_terminal_has_one_table():
    assert printed(Table(HEADER, ROWS), 200).count("attack") == 1


@pytest.mark.parametrize("width", [20, 40])
def test_a_list_of_facts_loses_nothing(width):
    facts = [
        ("guarantee, worst client", "conditional (results/record-level/and-a-long-name)"),
        ("note", "x" * 50),
    ]
    shown = printed(Table.facts(facts), width)
    assert "…" not in shown
    assert letters(shown) == letters("".join(name + text for name, text in facts))


def test_a_message_on_a_terminal_is_broken_between_words():
    text = io.StringIO()
    Display(Console(file=text, width=40, force_terminal=True, color_system=None)).say(
        "a word of it " * 10
    )
    assert max(map(len, text.getvalue().splitlines())) <= 40
