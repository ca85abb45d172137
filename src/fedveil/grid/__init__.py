"""Many runs: cells, the store that knows which are done, and comparisons."""

from fedveil.grid.cell import Cell as Cell
from fedveil.grid.cell import Finished as Finished
from fedveil.grid.cell import Outcome as Outcome
from fedveil.grid.cell import distinct as distinct
from fedveil.grid.comparison import compare as compare
from fedveil.grid.comparison import finished_of as finished_of
from fedveil.grid.store import Store as Store
