"""Many clients as one computation: stacked parameters, hand-written backward passes."""

from fedveil.learning.stacked.batched_losses import BATCHED as BATCHED
from fedveil.learning.stacked.stack import NotStackable as NotStackable
from fedveil.learning.stacked.stack import Stack as Stack
from fedveil.learning.stacked.stack import compile_stack as compile_stack
