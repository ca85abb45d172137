"""Many runs: cells (single runs), the store that keeps their results, and comparisons of settings."""

from fedveil_lab.grid.cell import Cell as Cell
from fedveil_lab.grid.cell import Finished as Finished
from fedveil_lab.grid.cell import Outcome as Outcome
from fedveil_lab.grid.cell import distinct as distinct
from fedveil_lab.grid.comparison import compare as compare
from fedveil_lab.grid.comparison import finished_of as finished_of
from fedveil_lab.grid.store import Store as Store
