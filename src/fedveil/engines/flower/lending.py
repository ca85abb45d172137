"""What a node lends to training code during one train message: the randomness of noise in training, and an own loop's trainer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from flwr.app import RecordDict
from torch import Tensor

from fedveil.engines.flower.records import write_trained
from fedveil.errors import FieldError
from fedveil.learning import AppLoop, PrivateTrainer
from fedveil.mechanisms import Source


@dataclass
class Lent:
    """Things lent to training code for one message, and the loop that the code opened with them.

    Attributes
    ----------
    source : Source, optional
        Randomness of the noise; None for a method whose noise does not go inside training.
    trainer : PrivateTrainer, optional
        Trainer of the app's `privacy_mod`.
    start : Tensor, optional
        [d], broadcast model.
    loop : AppLoop or None
        Loop that the code opened.
    """

    source: Source | None = None
    trainer: PrivateTrainer | None = None
    start: Tensor | None = None
    loop: AppLoop | None = None
    _ends: ExitStack = field(default_factory=ExitStack)

    def begin(self, loop: AppLoop) -> AppLoop:
        """Open a loop, which ends with the message.

        Raises
        ------
        FieldError
            For a second loop, and as in `AppLoop`.
        """
        if self.loop is not None:
            accepted = "has one loop a round: passes = ... divides its steps among several passes"
            raise FieldError("app_loop", "a second loop", accepted)
        self.loop = self._ends.enter_context(loop)
        return self.loop

    def answer(self) -> RecordDict | None:
        """Return the content that leaves in place of the code's answer if the code opened a loop; None without a loop."""
        if self.loop is None or self.trainer is None:
            return None
        return write_trained(self.loop.trained, self.trainer.layout)


_LENT: ContextVar[Lent | None] = ContextVar("fedveil_lent", default=None)


@contextmanager
def lending(lent: Lent) -> Iterator[Lent]:
    """Lend these things to the code that runs in this context, and end the code's loop after it."""
    with lent._ends:
        before = _LENT.set(lent)
        try:
            yield lent
        finally:
            _LENT.reset(before)


def lent_here() -> Lent:
    """Return what is lent to the code that runs here; nothing outside a train message."""
    return _LENT.get() or Lent()


def training_source() -> Source:
    """Return the randomness for noise inside training: an app's argument for `PrivateTrainer.train_noisily`.

    Raises
    ------
    FieldError
        Outside a train message, or for a method whose noise does not go inside training.
    """
    source = lent_here().source
    if source is None:
        raise FieldError(
            "source",
            None,
            "there is none here: it belongs to a train message of the method 'record'",
        )
    return source
