"""Work shared between threads, which ends soon after whoever waits for it has left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Event
from typing import TypeVar

import torch

M = TypeVar("M")
J = TypeVar("J")


class Left(BaseException):
    """Ends work that nobody waits for any longer; no error, so that nobody takes it for a client's failure."""


class Threads:
    """Members that do jobs side by side, each in a thread of its own on one intra-op thread."""

    def __init__(self) -> None:
        self._left = Event()

    def stay(self) -> None:
        """Go on working, unless the caller has left; to be called often.

        Raises
        ------
        Left
            If it has.
        """
        if self._left.is_set():
            raise Left

    def share(self, members: Sequence[M], jobs: Sequence[J], work: Callable[[M, J], None]) -> None:
        """Do all jobs, in order; what a job raises, or Ctrl-C in the caller, ends the others at their next `stay`.

        Parameters
        ----------
        members : sequence
            Whatever each thread needs for itself.
        jobs : sequence
            A single one, or those of a single member, are done by the caller.
        work : callable
            Given a member and a job.
        """
        self._left.clear()
        if len(members) == 1 or len(jobs) < 2:
            for job in jobs:
                work(members[0], job)
            return
        queue: SimpleQueue[J] = SimpleQueue()
        for job in jobs:
            queue.put(job)

        def loop(member: M) -> None:
            torch.set_num_threads(1)
            try:
                while not self._left.is_set():
                    work(member, queue.get_nowait())
            except (Empty, Left):
                pass
            except BaseException:
                self._left.set()
                raise

        with ThreadPoolExecutor(len(members)) as pool:  # waits: no thread may outlive the interpreter in an operation
            try:
                for done in [pool.submit(loop, member) for member in members]:
                    done.result()
            except BaseException:
                self._left.set()
                raise
