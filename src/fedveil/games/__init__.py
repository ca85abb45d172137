"""Audits: games that are played over cells, and what they say of an attack.

The room is not called like the function ``fedveil.audit``: Python binds a submodule to its package under the name that
the function has, so that whichever was imported last would hide the other.
"""

from fedveil.games.game import GAMES as GAMES
from fedveil.games.game import Game as Game
from fedveil.games.game import Judgement as Judgement
from fedveil.games.game import Refused as Refused
from fedveil.games.game import game_of as game_of
from fedveil.games.game import play as play
from fedveil.games.inversion import InversionGame as InversionGame
from fedveil.games.membership import MembershipGame as MembershipGame
from fedveil.games.participation import ParticipationGame as ParticipationGame
from fedveil.games.scoring import Audit as Audit
from fedveil.games.scoring import Scored as Scored
