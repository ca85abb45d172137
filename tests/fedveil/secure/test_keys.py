"""Public keys of sites: what is none is refused."""

import pytest

from fedveil.errors import FieldError
from fedveil.secure.keys import public_key, roster


@pytest.mark.parametrize("value", [5_000_000_000, -1, None, 1.5, [1] * 32])
def test_what_is_no_key_is_refused_before_memory_is_taken(value):
    with pytest.raises(FieldError):
        public_key(value)
    with pytest.raises(FieldError):
        roster([value])
    with pytest.raises(FieldError):
        roster(value)
