"""Audits: games that are played over cells, and what they say of an attack."""

import sys
from types import ModuleType
from typing import Any

from fedveil.audit.game import GAMES, Game, Judgement, game_of, play
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
    "game_of",
    "play",
]


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """``fv.audit(...)``: see `fedveil.own.audit`."""
        from fedveil.own import audit

        return audit(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
