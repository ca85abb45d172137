"""The distinguishing game on every method's path: whether the noise keeps its promise, and what heuristics leak."""

from fedveil.audit.guarantees.game import DIMENSIONS, play, verify
from fedveil.audit.guarantees.worlds import Duel, cases

__all__ = ["DIMENSIONS", "Duel", "cases", "play", "verify"]
