"""What an adversary learns."""

from fedveil.attacks.distinguishing import GameResult, bound, play

__all__ = ["GameResult", "bound", "play"]
