"""Pairs of neighbouring data sets: each is the worst case of a known mistake in private mechanisms.

A world is a list of data sets, one per client, each an array [examples, columns]. Under zero-out a missing client holds
an empty data set, and a missing record is a row of zeros. Under add/remove the unit is absent. Under replace-one it has
other contents. `require_meaningful` refuses claims for which such data mean nothing.
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
    """Sizes of the data of a world.

    Attributes
    ----------
    clients, examples, columns : int
        Number of clients, of rows per client, and of columns per row.
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
    """Pair of neighbouring inputs of a mechanism.

    Attributes
    ----------
    name : str
        Name of the trap.
    why : str
        Which mistake the pair detects, and how the worlds differ.
    inside, outside : object
        Data for the mechanism in both worlds; None if the mechanism's file makes them.
    of_author : bool
        Whether the author of the mechanism or app made the pair, so that it is always looked at twice.
    """

    name: str
    why: str
    inside: Any
    outside: Any
    of_author: bool = False


@dataclass(frozen=True)
class Differing:
    """Data of one trap: the unit that differs, and everything else.

    Attributes
    ----------
    own : array
        Contents of the unit, [rows, columns]; one row for a record.
    instead : array
        Contents of the unit in the other world under replace-one, [rows, columns].
    others : list of array
        Data sets of the other clients.
    beside : array
        Rows of the data set that holds the unit, if the unit is a record.
    first : bool
        Whether the unit's data set comes before the others.
    """

    own: Rows
    instead: Rows
    others: Data
    beside: Rows
    first: bool = False


Trap = Callable[[Sizes], Differing]


def unit_vector(columns: int, at: int = 0) -> Rows:
    """Make a row [columns] of zeros with a single one at index `at`."""
    row = np.zeros(columns)
    row[at] = 1.0
    return row


def zeros(sizes: Sizes) -> Data:
    """Make the data sets of the other clients from zeros."""
    return [np.zeros((sizes.examples, sizes.columns)) for _ in range(sizes.clients - 1)]


def repeated(row: Rows, count: int) -> Rows:
    """Repeat a row [columns] `count` times."""
    return np.tile(row, (count, 1))


def ordinary(sizes: Sizes) -> Data:
    """Make the data sets of the other clients from small numbers that differ."""
    rng = np.random.default_rng(0)
    return [rng.normal(0, 0.1, (sizes.examples, sizes.columns)) for _ in range(sizes.clients - 1)]


def about(sizes: Sizes, row: Rows, others: Data, *, count: int = 0, **rest: Any) -> Differing:
    """Make a unit of equal rows against other clients' data."""
    times = count or sizes.examples
    beside = rest.pop("beside", np.zeros((sizes.examples, sizes.columns)))
    return Differing(repeated(row, times), repeated(-row, times), others, beside, **rest)


def plain(sizes: Sizes) -> Differing:
    """All others hold zeros."""
    return about(sizes, unit_vector(sizes.columns), zeros(sizes))


def far_outlier(sizes: Sizes) -> Differing:
    """The unit is a million times as large as the others."""
    others = ordinary(sizes)
    return about(sizes, 1e6 * unit_vector(sizes.columns), others, beside=others[0].copy())


def all_coordinates(sizes: Sizes) -> Differing:
    """The unit is large in every coordinate: if coordinates are clipped one by one, its effect grows with their number."""
    return about(sizes, np.full(sizes.columns, 100.0), zeros(sizes))


def duplicates(sizes: Sizes) -> Differing:
    """The unit is many equal rows: if single rows are clipped, its effect grows with their number."""
    beside = repeated(unit_vector(sizes.columns), sizes.examples)
    return about(
        sizes, unit_vector(sizes.columns), zeros(sizes), count=32 * sizes.examples, beside=beside
    )


def extreme_counts(sizes: Sizes) -> Differing:
    """The unit has a thousand rows, the others one each: weighting by counts gives it nearly all the weight."""
    others = [np.zeros((1, sizes.columns)) for _ in range(sizes.clients - 1)]
    beside = np.zeros((1, sizes.columns))
    return about(sizes, 10 * unit_vector(sizes.columns), others, count=1000, beside=beside)


def empty_others(sizes: Sizes) -> Differing:
    """No other client has data: a count of rows is 0 in one world."""
    nothing = np.zeros((0, sizes.columns))
    return about(sizes, unit_vector(sizes.columns), [nothing] * (sizes.clients - 1), beside=nothing)


def one_example(sizes: Sizes) -> Differing:
    """Every client has one row: the standard deviation of its rows is 0."""
    others = [repeated(0.5 * unit_vector(sizes.columns), 1) for _ in range(sizes.clients - 1)]
    return about(sizes, unit_vector(sizes.columns), others, count=1, beside=others[0])


def one_other(sizes: Sizes) -> Differing:
    """One other row holds data: a count or mean of two rows becomes that of one."""
    row = repeated(0.5 * unit_vector(sizes.columns), 1)
    nothing = np.zeros((0, sizes.columns))
    others = [row, *[nothing] * (sizes.clients - 2)]
    return about(sizes, unit_vector(sizes.columns), others, count=1, beside=nothing)


def not_a_number(sizes: Sizes) -> Differing:
    """The unit is a row of NaN among ordinary rows."""
    unit = about(sizes, np.full(sizes.columns, np.nan), ordinary(sizes), beside=ordinary(sizes)[0])
    return replace(unit, instead=repeated(unit_vector(sizes.columns), sizes.examples))


def infinite(sizes: Sizes) -> Differing:
    """The unit's numbers are so large that their squares overflow."""
    return about(sizes, np.full(sizes.columns, 1e200), ordinary(sizes), beside=ordinary(sizes)[0])


def opposite(sizes: Sizes) -> Differing:
    """All others point the other way: a median or trimmed mean depends on the one unit."""
    row = unit_vector(sizes.columns)
    others = [repeated(row if i % 2 else -row, sizes.examples) for i in range(sizes.clients - 1)]
    return about(sizes, row, others, beside=others[0])


def private_spread(sizes: Sizes) -> Differing:
    """All others are equal: a mean or spread of the data follows the one unit that differs."""
    row = unit_vector(sizes.columns) + 1e-3 * unit_vector(sizes.columns, -1)
    others = [repeated((1 + 1e-3 * i) * row, sizes.examples) for i in range(sizes.clients - 1)]
    spread = np.linspace(0.999, 1.001, sizes.examples)[:, None]
    return about(sizes, 1e3 * unit_vector(sizes.columns), others, beside=spread * row)


def order(sizes: Sizes) -> Differing:
    """The unit comes first, and all others differ by their position."""
    others = [
        repeated((i + 1.0) * unit_vector(sizes.columns, -1), sizes.examples)
        for i in range(sizes.clients - 1)
    ]
    beside = np.arange(1.0, sizes.examples + 1)[:, None] * unit_vector(sizes.columns, -1)
    return about(sizes, unit_vector(sizes.columns), others, beside=beside, first=True)


def batch_size(sizes: Sizes) -> Differing:
    """There is one row more than a power of two: the last batch holds the unit alone."""
    others = [np.zeros((8, sizes.columns)) for _ in range(sizes.clients - 1)]
    return about(
        sizes, unit_vector(sizes.columns), others, count=1, beside=np.zeros((32, sizes.columns))
    )


def tiny(sizes: Sizes) -> Differing:
    """The unit is almost zero: dividing by its norm enlarges it."""
    return about(sizes, 1e-9 * unit_vector(sizes.columns), zeros(sizes))


def labelled(sizes: Sizes) -> Differing:
    """All numbers are 0 or 1, as labels, classes and counts are; the unit holds ones, and its label may be the first or last."""
    rng = np.random.default_rng(1)
    rows = (sizes.examples, sizes.columns)
    others = [rng.integers(0, 2, rows).astype(np.float64) for _ in range(sizes.clients - 1)]
    other_label = np.ones(sizes.columns)
    other_label[[0, -1]] = 0.0
    unit = about(sizes, np.ones(sizes.columns), others, beside=others[0].copy())
    return replace(unit, instead=repeated(other_label, sizes.examples))


def half_and_half(sizes: Sizes) -> Differing:
    """Half of all rows hold zeros, half ones: a median of numbers in [0, 1] depends on the one unit, which holds ones."""
    ones = np.ones(sizes.columns)
    evenly = np.arange(sizes.examples)[:, None] % 2 * ones
    others = [repeated(i % 2 * ones, sizes.examples) for i in range(sizes.clients - 1)]
    if len(others) % 2:
        others[-1] = 1 - evenly
    unit = about(sizes, ones, others, beside=evenly)
    return replace(unit, instead=np.zeros_like(unit.own))


def one_behind(sizes: Sizes) -> Differing:
    """One row more lies in the second column than in the first: the unit makes both equal, and may decide which is chosen."""
    first, second = unit_vector(sizes.columns, 0), unit_vector(sizes.columns, 1)
    others = [
        repeated(first if i % 2 else second, sizes.examples) for i in range(sizes.clients - 1)
    ]
    if len(others) % 2 == 0:  # one client more lies in the second column, too
        others[-1] = np.zeros((0, sizes.columns))
    unit = about(sizes, first, others, beside=repeated(first, sizes.examples - 1))
    return replace(unit, instead=repeated(second, sizes.examples))


def scattered(sizes: Sizes) -> Differing:
    """Every number is drawn at random, and the unit points in a direction of no column."""
    rng = np.random.default_rng(2)
    rows = (sizes.examples, sizes.columns)
    others = [rng.normal(0, 1, rows) for _ in range(sizes.clients - 1)]
    return about(sizes, 3 * rng.normal(0, 1, sizes.columns), others, beside=others[0].copy())


def in_column(at: int) -> Trap:
    """Make the trap whose unit lies in the column at index `at` alone."""

    def column(sizes: Sizes) -> Differing:
        return about(sizes, unit_vector(sizes.columns, at), zeros(sizes))

    column.__doc__ = f"The unit lies in column {at + 1} alone: a mistake that concerns this column, or a vote for it, shows here."
    return column


COLUMNS = {f"column {at + 1}": at for at in range(1, 8)}  # the first one has the other traps
LAST_COLUMN = {"one behind": 1, **COLUMNS}  # index of the last column that a trap needs; else 0
LIBRARY: dict[str, Trap] = {
    "plain": plain,
    "far outlier": far_outlier,
    "all coordinates": all_coordinates,
    "duplicates": duplicates,
    "extreme counts": extreme_counts,
    "empty others": empty_others,
    "one example": one_example,
    "one other": one_other,
    "not a number": not_a_number,
    "infinite": infinite,
    "opposite": opposite,
    "private spread": private_spread,
    "order": order,
    "batch size": batch_size,
    "tiny": tiny,
    "labelled": labelled,
    "half and half": half_and_half,
    "one behind": one_behind,
    "scattered": scattered,
    **{name: in_column(at) for name, at in COLUMNS.items()},
}
FIRST = "plain"  # where a mechanism has to answer


def library(claim: PrivacyClaim, sizes: Sizes, without: Sequence[str] = ()) -> list[TwoWorlds]:
    """List every trap whose columns there are as a pair of worlds in the claimed relation.

    Parameters
    ----------
    claim : PrivacyClaim
        The claim, which gives relation and unit.
    sizes : Sizes
        Sizes of the data.
    without : sequence of str
        Names of traps to leave out because the claim does not cover such data.
    """
    for name in without:
        if name not in LIBRARY or name == FIRST:
            raise FieldError(
                "--without", name, nearest(name, [one for one in LIBRARY if one != FIRST])
            )
    made = []
    for name, trap in LIBRARY.items():
        if name not in without and LAST_COLUMN.get(name, 0) < sizes.columns:
            made.append(placed(name, trap, claim, sizes))
    return made


def require_meaningful(claim: PrivacyClaim) -> None:
    """Refuse a claim whose neighbours cannot be written as lists of arrays for every function.

    Raises
    ------
    FieldError
        For zero-out of a record or person: a row of zeros is a row like others for most functions. For add/remove of a
        client under local trust: whoever sees what each client sends counts the clients.
    """
    why = ""
    if claim.relation == "zero-out" and claim.unit != "client":
        why = "a row of zeros counts as nothing in few functions: claim add/remove or replace-one"
    elif claim.relation == "add/remove" and claim.unit == "client" and claim.trust == "local":
        why = "whoever sees what each client sends counts them: claim replace-one or zero-out"
    if why:
        accepted = f"{why}, or make the worlds in your file by worlds(relation, unit)"
        raise FieldError("--claim", claim.describe(), accepted)


def placed(name: str, trap: Trap, claim: PrivacyClaim, sizes: Sizes) -> TwoWorlds:
    """Make the pair of worlds of one trap."""
    unit = trap(sizes)
    inside, outside = PLACES[claim.unit](unit, claim.relation)
    words = {
        "zero-out": "contributes nothing",
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
    """Make both worlds if the unit is a client's whole data set."""
    nothing = np.zeros((0, unit.own.shape[1]))
    gone: dict[str, Data] = {"zero-out": [nothing], "add/remove": [], "replace-one": [unit.instead]}
    return _joined([unit.own], unit.others, unit.first), _joined(
        gone[relation], unit.others, unit.first
    )


def place_record(unit: Differing, relation: str) -> tuple[Data, Data]:
    """Make both worlds if the unit is one row of the last (or first) data set."""
    row = unit.own[:1]
    gone = {"zero-out": np.zeros_like(row), "add/remove": row[:0], "replace-one": unit.instead[:1]}
    both = []
    for one in (row, gone[relation]):
        rows = [one, unit.beside] if unit.first else [unit.beside, one]
        both.append(_joined([np.concatenate(rows)], unit.others, unit.first))
    return both[0], both[1]


def place_person(unit: Differing, relation: str) -> tuple[Data, Data]:
    """Make both worlds if the unit is all rows of one person within the last (or first) data set."""
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
