"""The distinguishing game on every method's path: whether the noise keeps its promise, and what heuristics leak."""

from fedveil.audit.guarantees.game import DIMENSIONS, cases, play, verify
from fedveil.audit.guarantees.noise import LEVEL, examine_all, methods
from fedveil.audit.guarantees.worlds import Duel

__all__ = ["DIMENSIONS", "LEVEL", "Duel", "cases", "examine_all", "methods", "play", "verify"]
