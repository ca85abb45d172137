"""Public facts of a round, as a server sends them: a value of another kind is refused, and takes no memory."""

import math

import pytest

from fedveil.errors import FieldError
from fedveil.methods import PublicFacts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("roster", (5_000_000_000,)),
        ("roster", 7),
        ("roster", ("ab" * 32,)),
        ("run", 3),
        ("terms", None),
        ("receipt", 5),
        ("attempt", -1),
        ("layer_scores", (1.0, math.nan)),
        ("layer_scores", ("x",)),
        ("layer_scores", 0.5),
    ],
)
def test_a_fact_of_another_kind_is_refused(field, value):
    with pytest.raises(FieldError) as refused:
        PublicFacts(round=1, rounds=3, cohort=2, dimension=10, **{field: value})
    assert refused.value.field == field
