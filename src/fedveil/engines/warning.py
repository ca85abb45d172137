"""Warnings about likely problems of a run; each is given once, with a fix, in the same words under every engine.

Under local trust a server gets no warning here that depends on a client's data, as it sees only noised replies and
public facts. A warning about a client's own update appears in that client's log, or for the experimenter of a
simulation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median

import torch
from torch import Tensor

from fedveil.accounting import count_of, model_of
from fedveil.accounting.planning import ENOUGH
from fedveil.aggregation import TrimmedMean
from fedveil.clipping import Rows
from fedveil.errors import cleaned
from fedveil.layout import Layout
from fedveil.logs import LONGEST
from fedveil.methods import ClientFacts, Method, Releases, models_of

LOST = 25.0  # nats: worse than guessing among ten thousand million classes
FAR = 4.0  # multiple of the updates' length above which a clip only adds noise
JUMP = 100.0  # multiple of the model's length (or of 1) that no useful update has
ASKED = 20  # clients whose updates are measured


class RunWarning(UserWarning):
    """Category of warnings about a run that no `tell` function receives."""


class Warnings:
    """Checks for likely problems of a run; each kind of warning is given once.

    Parameters
    ----------
    method : Method
        Method of the run.
    layout : Layout
        Layout of the model.
    tell : callable
        Called with the text of each warning. Its reader must be allowed to see the checked values.

    Attributes
    ----------
    said : dict of str to str
        Warnings given so far, by kind.
    """

    def __init__(self, method: Method, layout: Layout, tell: Callable[[str], None]) -> None:
        self._method, self._layout, self._tell = method, layout, tell
        self._rounds = 1
        self.said: dict[str, str] = {}

    def say(self, kind: str, text: str) -> None:
        """Give a warning, unless one of this kind was given before."""
        if kind not in self.said:
            self.said[kind] = cleaned(text, LONGEST)
            self._tell(self.said[kind])

    def planned(self, rounds: int, cohort: int) -> None:
        """Check the plan before training: the number of rounds, and the noise relative to the clip."""
        planned = self._method.planned or rounds
        self._rounds = rounds
        if rounds > planned:
            beyond = f"rounds = {rounds}, and the noise is planned for {planned}: what it promises in total holds for"
            self.say("planned", f"{beyond} {planned} alone; plan it for {rounds}, or stop there")
        rule = self._method.server.rule
        if isinstance(rule, TrimmedMean) and rule.cuts_nobody(cohort):
            trimmed = f"a trimmed mean with fraction = {rule.fraction:g} cuts off nobody among {cohort} clients"
            self.say(
                "trimmed",
                f"{trimmed}: it is the plain mean, unless fraction is at least 1 / {cohort}",
            )
        if self._method.noisy is not None:
            self.protected([()] * cohort, cohort)

    def unread(self, models: int) -> None:
        """Warn if a broadcast has several models, and training code does not report which one it used."""
        if models > 1:
            all_of = f"the broadcast has {models} models, and training code does not say which one it took: the first "
            all_of += "counts as its choice, and nobody trains the others"
            self.say(
                "unread",
                f"{all_of}. Read them all (read_broadcast), and answer with write_facts(chosen=...)",
            )

    def noise(self, ratio: float, clip: float, longest: float, layers: bool = False) -> None:
        """Warn if the noise is large compared with the clip or the median update.

        The noise of all rounds is compared with the clip, as the advice does. That of one is compared with the update.

        Parameters
        ----------
        ratio : float
            Length of the noise on a round's mean (or on a noisy step's), in multiples of the clip.
        clip, longest : float
            Clip, and length of the median update (0 if it is not known).
        layers : bool
            Whether each layer has its own clip; `clip` is then that of all layers together.
        """
        noisy = self._method.noisy
        steps = self._rounds * (1 if noisy is None else noisy.noisy_steps.steps)
        over_the_run = ratio / math.sqrt(steps)
        if over_the_run > 1 / ENOUGH:
            mean = "round's mean" if noisy is None else "step's mean gradient"
            together = f", of all {steps} together {over_the_run:.3g} times" if steps > 1 else ""
            long = (
                f"the noise on a {mean} is {ratio:.3g} times as long as that mean can be{together}"
            )
            ways = f"{', '.join(self._ways())}; fedveil advise ranks them"
            self.say("noise", f"{long}: hopeless beyond {1 / ENOUGH:.1f}. What helps: {ways}")
        if 0 < longest * FAR <= clip and ratio * clip > ENOUGH * longest:
            times = clip / longest
            if layers:
                far = f"the clips of all layers together, {clip:.3g}, are {times:.2g} times the median update's length"
                mend = f"and the noise follows them: divide each by about {times:.1g}"
            else:
                far = f"clip = {clip:g} is {times:.2g} times the median update's length"
                mend = f"and the noise follows it: lower it to about {longest:.1g}"
            self.say("clip", f"{far}, {mend} (in a deployment, as measured on public data)")

    def _ways(self) -> list[str]:
        """List ways to reduce this method's noise relative to the signal, without those already in use."""
        ways = ["more clients", "fewer parameters", "less noise (a larger epsilon)"]
        if self._method.noisy is None:
            return [*ways, "record level, if single records are what to protect"]
        steps = self._method.noisy.noisy_steps
        ways.append("more persons a client" if steps.images else "more examples a client")
        if not (steps.summed or steps.grid):
            ways.append("a trusted or a secure sum")
        return ways

    def protected(
        self, scales: Sequence[tuple[float, ...]], replies: int, longest: float = 0.0
    ) -> None:
        """Check the noise of clients that protect themselves, if the reader may see its deviations.

        The noise on the mean is that of one reply divided by the square root of their number.
        """
        client, noisy = self._method.client, self._method.noisy is not None
        used = [scale for scale in scales if scale or noisy]
        if not used or client.trust == "central":
            return
        figures = client.noise(used, self._layout)
        ratio = figures.get("noise_to_clip", 0.0)
        if ratio:
            clip = figures["sigma"] * math.sqrt(self._layout.size) / ratio
            layers = any(len(scale) > 1 for scale in used)
            averaged = 1.0 if noisy else math.sqrt(replies)
            self.noise(ratio / averaged, clip, longest, layers)

    def trained(
        self,
        start: Tensor,
        models: Rows,
        loss: float = 0.0,
        kind: str = "",
        known: float | None = None,
    ) -> float:
        """Check updates before protection, and return the median length of some of them.

        Parameters
        ----------
        start : Tensor
            [d], model from which training began.
        models : sequence of Tensor
            [d] each, models after training.
        loss, kind : float and str
            Median training loss of the clients, and its name.
        known : float, optional
            Median length, if it was computed before.
        """
        length = _median_length(start, models[:ASKED]) if known is None else known
        jumped = not (length <= JUMP or length <= JUMP * float(torch.linalg.vector_norm(start)))
        drowned = "noise" in self.said  # then the loss is large for any learning rate
        if (
            jumped
            or not math.isfinite(loss)
            or (kind == "cross_entropy" and loss > LOST and not drowned)
        ):
            said = f"updates are {length:.2g} long"
            if kind:
                said += f", the training loss is {loss:.3g}"
            self.say("trained", f"training diverges: {said}. Lower the learning rate (local.lr)")
        return length

    def combined(
        self,
        start: Tensor,
        replies: Sequence[Releases],
        report: Mapping[str, float],
        loss: float = 0.0,
        kind: str = "",
    ) -> None:
        """Check the replies that a trusted server received in a round; an untrusted server gets no warning here.

        Parameters
        ----------
        start, loss, kind
            As for `trained`.
        replies : sequence of Releases
            Replies as they arrived.
        report : mapping of str to float
            Figures of the server.
        """
        if self._method.client.trust != "central" or not replies:
            return
        known, models = report.get("update_norm_median"), list[Tensor]()
        if known is None:
            models = [model for model in map(model_of, replies[:ASKED]) if model is not None]
        length = self.trained(start, models, loss, kind, known)
        empty = sum(count_of(reply) == 0 for reply in replies)
        if empty:
            self.say(
                "empty",
                f"{empty} of {len(replies)} clients hold no example to train on: they return the model",
            )
        self.noise(report.get("noise_to_clip", 0.0), report.get("clip", 0.0), length)

    def on_node(self, facts: ClientFacts, sent: Releases, scale: tuple[float, ...]) -> None:
        """Check one client's training on its own node; these warnings must not reach an untrusted server."""
        with suppress(Exception):  # under local trust a client must answer, whatever its data are
            self._rounds = facts.broadcast.public.rounds
            longest = self.trained(facts.start, models_of([sent]))
            if self._method.noisy is None:
                self.protected([scale], facts.broadcast.public.cohort, longest)
            if count_of(sent) == 0:
                self.say(
                    "empty", "this client holds no example to train on: its reply is noise alone"
                )


def _median_length(start: Tensor, models: Rows) -> float:
    """Return the median length of updates (model less start); 0 without updates."""
    lengths = [float(torch.linalg.vector_norm(model - start)) for model in models]
    return median(lengths) if lengths else 0.0
