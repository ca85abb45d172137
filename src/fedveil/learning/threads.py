"""Jobs run in parallel threads; all threads stop soon after a job fails or the caller is interrupted."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

M = TypeVar("M")
J = TypeVar("J")


class Interrupted(BaseException):
    """Signal that ends a job when its result is no longer needed.

    It is a BaseException, so that it is not taken for a client's failure.
    """


class Threads:
    """Pool that runs jobs in parallel; each thread owns one member (such as a model) and has one intra-op thread."""

    def __init__(self) -> None:
        self._here = threading.local()

    def raise_if_stopped(self) -> None:
        """End this thread's job if another job failed or the caller of `run` was interrupted. Call it often in a job.

        Raises
        ------
        Interrupted
            If work has to stop.
        """
        call: _Call | None = getattr(self._here, "call", None)
        if call is not None and call.stopped:
            raise Interrupted

    def run(
        self,
        members: Sequence[M],
        jobs: Sequence[J],
        work: Callable[[M, J], None],
    ) -> None:
        """Run all jobs in the threads; they are started in order.

        If a job raises an error, or the caller gets Ctrl-C, the other jobs end at their next `raise_if_stopped`. After
        this method returns or raises, no thread uses a member.

        Parameters
        ----------
        members : sequence
            One member for each thread, such as a model that only this thread uses.
        jobs : sequence
            Jobs. If there is one job or one member, the caller's thread does all jobs.
        work : callable
            Called with a member and a job.
        """
        if len(members) == 1 or len(jobs) < 2:
            for job in jobs:
                work(members[0], job)
            return
        call = _Call()
        queue: SimpleQueue[J] = SimpleQueue()
        for job in jobs:
            queue.put(job)

        def loop(member: M) -> None:
            if not call.enter():
                return
            self._here.call = call
            torch.set_num_threads(1)
            try:
                while not call.stopped:
                    work(member, queue.get_nowait())
            except (Empty, Interrupted):
                pass
            except BaseException:
                call.stopped = True
                raise
            finally:
                call.leave()

        with ThreadPoolExecutor(len(members)) as pool:
            try:
                for done in [pool.submit(loop, member) for member in members]:
                    done.result()
            except BaseException:
                call.end()
                raise


class _Call:
    """State of one call of `run`: its running threads, and whether they have to stop.

    Threads are counted here, because an interruption may come while a thread starts and no pool lists it yet.

    Attributes
    ----------
    stopped : bool
        Whether the threads have to stop, because the caller was interrupted or a job raised.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._change, self._busy = threading.Condition(), 0

    def enter(self) -> bool:
        """Count a thread as started and return True; return False if the threads have to stop."""
        with self._change:
            self._busy += not self.stopped
            return not self.stopped

    def leave(self) -> None:
        """Count a thread as ended."""
        with self._change:
            self._busy -= 1
            self._change.notify_all()

    def end(self) -> None:
        """Stop all threads and wait for them, at most for one training step. Further Ctrl-C is ignored until then."""
        while True:
            try:
                with self._change:
                    self.stopped = True
                    self._change.wait_for(lambda: not self._busy)
                return
            except KeyboardInterrupt:
                continue
