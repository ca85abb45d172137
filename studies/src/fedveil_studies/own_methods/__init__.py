"""Tests of FedVeil's own methods: whether promise and noise hold, and what heuristics leak."""

from fedveil_studies.own_methods.duels import cases as cases
from fedveil_studies.own_methods.game import DIMENSIONS as DIMENSIONS
from fedveil_studies.own_methods.game import canary_game as canary_game
from fedveil_studies.own_methods.game import guarantees_game as guarantees_game
from fedveil_studies.own_methods.game import noise_game as noise_game
