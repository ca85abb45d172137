"""Replies that come too late in a swarm: FLARE hands them to the aggregator after their round was combined there."""

from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants


class OpenRounds:
    """Rounds that one peer of a swarm combined, by FLARE's own numbers.

    FLARE refuses a reply with the number of a round that has not begun.
    """

    def __init__(self) -> None:
        self._open: int | None = None
        self._closed: int | None = None

    def late(self, reply: Shareable) -> bool:
        """Whether a reply is of a round that was combined before; else its round is the open one."""
        number = reply.get_header(AppConstants.CURRENT_ROUND)
        if number is None:
            return False
        if self._closed is not None and number <= self._closed:
            return True
        self._open = number
        return False

    def close(self) -> None:
        """Say that the open round is combined."""
        self._closed = self._open
