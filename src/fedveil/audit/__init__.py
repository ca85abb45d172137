"""Audits: games that are played over cells, and what they say of an attack."""

from fedveil.audit.game import GAMES, Game, Judgement, play
from fedveil.audit.inversion import InversionGame
from fedveil.audit.membership import MembershipGame
from fedveil.audit.participation import Audit, ParticipationGame, audit

__all__ = [
    "GAMES",
    "Audit",
    "Game",
    "InversionGame",
    "Judgement",
    "MembershipGame",
    "ParticipationGame",
    "audit",
    "play",
]
