"""The check of this machine's kernels finds a row whose result follows one other row, wherever both lie."""

import pytest
import torch
from torch import nn

from fedveil.layout import Layout
from fedveil.learning.row_isolation import BatchForm, rows_are_isolated
from fedveil.learning.traced import OneByOne

ROWS = 8
NEIGHBOURS = [(0, 1), (1, 0)]  # compared only where every second row is replaced
OF_ONE_PARITY = [(2, 6), (6, 2)]  # compared only where a half of the batch is replaced


class Reading(OneByOne):
    """Gradients of single examples, where the loss of the row `reader` follows the row `read`."""

    reader, read = 0, 0

    def __call__(self, x, y, here, lengths=None):
        """Return gradients, losses and marks."""
        gradients, losses, good = super().__call__(x, y, here, lengths)
        losses[self.reader] = x[self.read].nan_to_num().sum()
        return gradients, losses, good


def isolated(reader, read, each=1):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    layout = Layout.from_module(model)
    rule = Reading(model, layout, "cross_entropy", None)
    rule.reader, rule.read = reader, read
    x, y = torch.rand(ROWS, 3), torch.zeros(ROWS, dtype=torch.long)
    form = BatchForm(ROWS, each, formed=False, spanned=False)
    return rows_are_isolated(rule, model, layout, x, y, form)


def test_a_row_that_follows_itself_alone_is_isolated():
    assert isolated(3, 3)


@pytest.mark.parametrize(("reader", "read"), [*NEIGHBOURS, *OF_ONE_PARITY, (0, 7), (7, 0)])
def test_a_row_that_follows_another_is_found(reader, read):
    assert not isolated(reader, read)


def test_rows_of_one_person_may_follow_each_other_and_no_others():
    assert isolated(0, 1, each=2)
    assert not isolated(0, 2, each=2)
