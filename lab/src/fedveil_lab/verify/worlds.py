"""Pairs of worlds in a claimed relation: a library of traps, each the worst case of a mistake that was made somewhere.

A world is a list of data sets, one a client, each an array [examples, columns]. Under zero-out a client that counts as
nothing holds an empty data set, and a record that does is a row of zeros. Under add/remove it is absent. Under
replace-one it holds something else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FieldError, nearest, require_count
from fedveil_lab.verify.claim import PrivacyClaim

Rows = NDArray[np.float64]
Data = list[Rows]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a world's data.

    Attributes
    ----------
    clients, examples, columns : int
        Clients, rows of each, numbers of a row.
    """

    clients: int = 3
    examples: int = 4
    columns: int = 4

    def __post_init__(self) -> None:
        require_count("--clients", self.clients, least=2)
        require_count("--examples", self.examples, least=2)
        require_count("--columns", self.columns)


@dataclass(frozen=True)
class TwoWorlds:
    """Neighbouring inputs.

    Attributes
    ----------
    name : str
        The trap.
    why : str
        What it is for, and how the worlds differ.
    inside, outside : object
        What the mechanism is given beside the seed; None where its own file makes it.
    """

    name: str
    why: str
    inside: Any
    outside: Any


@dataclass(frozen=True)
class Differing:
    """Difference between the worlds of one trap.

    Attributes
    ----------
    own : array
        [rows, columns], the unit's contents; one row for a record.
    instead : array
        Its contents in the other world, under replace-one.
    others : list of array
        All other data sets.
    beside : array
        Rows that share a record's data set.
    first : bool
        Whether it stands before the others.
    """

    own: Rows
    instead: Rows
    others: Data
    beside: Rows
    first: bool = False


Trap = Callable[[Sizes], Differing]


def unit_vector(columns: int, at: int = 0) -> Rows:
    """A row [columns] of zeros with a one."""
    row = np.zeros(columns)
    row[at] = 1.0
    return row


def zeros(sizes: Sizes) -> Data:
    """Data sets of all others, of nothing but zeros."""
    return [np.zeros((sizes.examples, sizes.columns)) for _ in range(sizes.clients - 1)]


def repeated(row: Rows, count: int) -> Rows:
    """Repeat a row [columns] so many times."""
    return np.tile(row, (count, 1))


def ordinary(sizes: Sizes) -> Data:
    """Data sets of all others, of small numbers that differ."""
    rng = np.random.default_rng(0)
    return [rng.normal(0, 0.1, (sizes.examples, sizes.columns)) for _ in range(sizes.clients - 1)]


def about(sizes: Sizes, row: Rows, others: Data, *, count: int = 0, **rest: Any) -> Differing:
    """A unit of equal rows, against rows that point the other way."""
    times = count or sizes.examples
    beside = rest.pop("beside", np.zeros((sizes.examples, sizes.columns)))
    return Differing(repeated(row, times), repeated(-row, times), others, beside, **rest)


def plain(sizes: Sizes) -> Differing:
    """Everybody else holds zeros."""
    return about(sizes, unit_vector(sizes.columns), zeros(sizes))


def far_outlier(sizes: Sizes) -> Differing:
    """A unit a million times as large as the others."""
    others = ordinary(sizes)
    return about(sizes, 1e6 * unit_vector(sizes.columns), others, beside=others[0].copy())


def all_coordinates(sizes: Sizes) -> Differing:
    """A unit that is large in every coordinate: clipping each by itself lets it grow with their number."""
    return about(sizes, np.full(sizes.columns, 100.0), zeros(sizes))


def duplicates(sizes: Sizes) -> Differing:
    """Return a unit of many equal rows: if single rows are clipped, its contribution grows with their number."""
    beside = repeated(unit_vector(sizes.columns), sizes.examples)
    return about(
        sizes, unit_vector(sizes.columns), zeros(sizes), count=32 * sizes.examples, beside=beside
    )


def extreme_counts(sizes: Sizes) -> Differing:
    """Return a unit with a thousand rows beside units with one: under weights by counts it has nearly all the weight."""
    others = [np.zeros((1, sizes.columns)) for _ in range(sizes.clients - 1)]
    beside = np.zeros((1, sizes.columns))
    return about(sizes, 10 * unit_vector(sizes.columns), others, count=1000, beside=beside)


def empty_others(sizes: Sizes) -> Differing:
    """Nobody else has data: a count of rows is nought in one world."""
    nothing = np.zeros((0, sizes.columns))
    return about(sizes, unit_vector(sizes.columns), [nothing] * (sizes.clients - 1), beside=nothing)


def one_example(sizes: Sizes) -> Differing:
    """Everybody has one row; a standard deviation of it is nought."""
    others = [repeated(0.5 * unit_vector(sizes.columns), 1) for _ in range(sizes.clients - 1)]
    return about(sizes, unit_vector(sizes.columns), others, count=1, beside=others[0])


def not_a_number(sizes: Sizes) -> Differing:
    """A row of NaN among ordinary ones."""
    unit = about(sizes, np.full(sizes.columns, np.nan), ordinary(sizes), beside=ordinary(sizes)[0])
    return replace(unit, instead=repeated(unit_vector(sizes.columns), sizes.examples))


def infinite(sizes: Sizes) -> Differing:
    """Numbers whose squares overflow."""
    return about(sizes, np.full(sizes.columns, 1e200), ordinary(sizes), beside=ordinary(sizes)[0])


def opposite(sizes: Sizes) -> Differing:
    """All others point the other way: medians and trimmed means turn on one unit."""
    row = unit_vector(sizes.columns)
    others = [repeated(row if i % 2 else -row, sizes.examples) for i in range(sizes.clients - 1)]
    return about(sizes, row, others, beside=others[0])


def private_spread(sizes: Sizes) -> Differing:
    """All others agree, so a mean or spread of the data follows the one that differs."""
    row = unit_vector(sizes.columns) + 1e-3 * unit_vector(sizes.columns, -1)
    others = [repeated((1 + 1e-3 * i) * row, sizes.examples) for i in range(sizes.clients - 1)]
    spread = np.linspace(0.999, 1.001, sizes.examples)[:, None]
    return about(sizes, 1e3 * unit_vector(sizes.columns), others, beside=spread * row)


def order(sizes: Sizes) -> Differing:
    """The unit stands first, and all others differ by their places."""
    others = [
        repeated((i + 1.0) * unit_vector(sizes.columns, -1), sizes.examples)
        for i in range(sizes.clients - 1)
    ]
    beside = np.arange(1.0, sizes.examples + 1)[:, None] * unit_vector(sizes.columns, -1)
    return about(sizes, unit_vector(sizes.columns), others, beside=beside, first=True)


def batch_size(sizes: Sizes) -> Differing:
    """One row more than a power of two: the last lot holds the unit alone."""
    others = [np.zeros((8, sizes.columns)) for _ in range(sizes.clients - 1)]
    return about(
        sizes, unit_vector(sizes.columns), others, count=1, beside=np.zeros((32, sizes.columns))
    )


def tiny(sizes: Sizes) -> Differing:
    """A unit that is all but nothing: dividing by a length stretches it."""
    return about(sizes, 1e-9 * unit_vector(sizes.columns), zeros(sizes))


LIBRARY: dict[str, Trap] = {
    "plain": plain,
    "far outlier": far_outlier,
    "all coordinates": all_coordinates,
    "duplicates": duplicates,
    "extreme counts": extreme_counts,
    "empty others": empty_others,
    "one example": one_example,
    "not a number": not_a_number,
    "infinite": infinite,
    "opposite": opposite,
    "private spread": private_spread,
    "order": order,
    "batch size": batch_size,
    "tiny": tiny,
}
FIRST = "plain"  # where a mechanism has to answer


def library(claim: PrivacyClaim, sizes: Sizes, without: Sequence[str] = ()) -> list[TwoWorlds]:
    """Every trap in the claimed relation.

    Parameters
    ----------
    claim : PrivacyClaim
        For its relation and unit.
    sizes : Sizes
        Of the data.
    without : sequence of str
        Traps that are left out, as the claim is not meant for such data.
    """
    for name in without:
        if name not in LIBRARY or name == FIRST:
            raise FieldError(
                "--without", name, nearest(name, [one for one in LIBRARY if one != FIRST])
            )
    made = []
    for name, trap in LIBRARY.items():
        if name not in without:
            made.append(placed(name, trap, claim, sizes))
    return made


def placed(name: str, trap: Trap, claim: PrivacyClaim, sizes: Sizes) -> TwoWorlds:
    """One trap's two worlds."""
    unit = trap(sizes)
    inside, outside = PLACES[claim.unit](unit, claim.relation)
    words = {
        "zero-out": "counts as nothing",
        "add/remove": "is absent",
        "replace-one": "holds something else",
    }
    told = (trap.__doc__ or "").strip().rstrip(".")
    return TwoWorlds(
        name,
        f"{told}; in the other world the {claim.unit} {words[claim.relation]}",
        inside,
        outside,
    )


def place_client(unit: Differing, relation: str) -> tuple[Data, Data]:
    """Both worlds where a client's whole data set is the unit."""
    nothing = np.zeros((0, unit.own.shape[1]))
    gone: dict[str, Data] = {"zero-out": [nothing], "add/remove": [], "replace-one": [unit.instead]}
    return _joined([unit.own], unit.others, unit.first), _joined(
        gone[relation], unit.others, unit.first
    )


def place_record(unit: Differing, relation: str) -> tuple[Data, Data]:
    """Both worlds where one row of the last (or first) data set is the unit."""
    row = unit.own[:1]
    gone = {"zero-out": np.zeros_like(row), "add/remove": row[:0], "replace-one": unit.instead[:1]}
    both = []
    for one in (row, gone[relation]):
        rows = [one, unit.beside] if unit.first else [unit.beside, one]
        both.append(_joined([np.concatenate(rows)], unit.others, unit.first))
    return both[0], both[1]


def place_person(unit: Differing, relation: str) -> tuple[Data, Data]:
    """Both worlds where all rows of one person, among others of the last (or first) data set, are the unit."""
    gone = {
        "zero-out": np.zeros_like(unit.own),
        "add/remove": unit.own[:0],
        "replace-one": unit.instead,
    }
    both = []
    for rows in (unit.own, gone[relation]):
        parts = [rows, unit.beside] if unit.first else [unit.beside, rows]
        both.append(_joined([np.concatenate(parts)], unit.others, unit.first))
    return both[0], both[1]


PLACES = {"client": place_client, "record": place_record, "person": place_person}


def _joined(own: Data, others: Data, first: bool) -> Data:
    return [*own, *others] if first else [*others, *own]
