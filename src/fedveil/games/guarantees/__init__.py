"""The distinguishing game on every method's path: whether the noise keeps its promise, and what heuristics leak."""

from fedveil.games.guarantees.game import DIMENSIONS as DIMENSIONS
from fedveil.games.guarantees.game import cases as cases
from fedveil.games.guarantees.game import play as play
from fedveil.games.guarantees.game import verify as verify
from fedveil.games.guarantees.noise import LEVEL as LEVEL
from fedveil.games.guarantees.noise import examine_all as examine_all
from fedveil.games.guarantees.noise import methods as methods
from fedveil.games.guarantees.worlds import Duel as Duel
