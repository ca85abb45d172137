"""Audit games: each plays runs with known answers, and judges how often an attack is right.

The package is not named ``audit``, because ``fedveil.audit`` is a function. Two things of one name would hide each
other.
"""

from fedveil_lab.games.game import GAMES as GAMES
from fedveil_lab.games.game import Game as Game
from fedveil_lab.games.game import Judgement as Judgement
from fedveil_lab.games.game import Refused as Refused
from fedveil_lab.games.game import game_of as game_of
from fedveil_lab.games.game import play as play
from fedveil_lab.games.inversion import InversionGame as InversionGame
from fedveil_lab.games.membership import MembershipGame as MembershipGame
from fedveil_lab.games.participation import ParticipationGame as ParticipationGame
from fedveil_lab.games.region import RegionGame as RegionGame
from fedveil_lab.games.scoring import Audit as Audit
from fedveil_lab.games.scoring import Scored as Scored
