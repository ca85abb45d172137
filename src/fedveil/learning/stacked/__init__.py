"""Many clients as one computation: stacked parameters, hand-written backward passes."""

from fedveil.learning.stacked.compile import NotStackable, compile_stack
from fedveil.learning.stacked.stack import BATCHED, Stack

__all__ = ["BATCHED", "NotStackable", "Stack", "compile_stack"]
