"""Many runs: cells, the store that knows which are done, and comparisons."""

from fedveil.grid.cell import Cell, distinct
from fedveil.grid.comparison import compare, finished_of
from fedveil.grid.outcome import Finished, Outcome
from fedveil.grid.store import Store

__all__ = ["Cell", "Finished", "Outcome", "Store", "compare", "distinct", "finished_of"]
