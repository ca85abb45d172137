"""Warnings of what is likely wrong with a run, each said once and with the fix: in the same words under every engine.

A server under local trust is told nothing here that follows a client's data: it sees noised replies and public facts.
What a client's own update shows is said on that client's node, or to the experimenter who holds all of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median

import torch
from torch import Tensor

from fedveil.accounting import count_of, model_of
from fedveil.accounting.planning import ENOUGH
from fedveil.clipping import Rows
from fedveil.errors import cleaned
from fedveil.layout import Layout
from fedveil.logs import LONGEST
from fedveil.methods import ClientFacts, Method, Releases, models_of

LOST = 25.0  # nats: worse than guessing among ten thousand million classes
FAR = 4.0  # times the length of the updates, from which a clip only adds noise
JUMP = 100.0  # times the length of the model (or 1), which no useful update has
ASKED = 20  # clients whose updates are measured


class RunWarning(UserWarning):
    """Category of the lines of `Warnings` that nobody takes."""


class Warnings:
    """Says each kind of trouble once.

    Parameters
    ----------
    method : Method
        Of the run.
    layout : Layout
        Of the model.
    tell : callable
        Takes each line, which is for whoever may see what it was given.

    Attributes
    ----------
    said : dict of str to str
        What was told, by kind.
    """

    def __init__(self, method: Method, layout: Layout, tell: Callable[[str], None]) -> None:
        self._method, self._layout, self._tell = method, layout, tell
        self.said: dict[str, str] = {}

    def say(self, kind: str, text: str) -> None:
        """Tell a line, unless one of its kind was told."""
        if kind not in self.said:
            self.said[kind] = cleaned(text, LONGEST)
            self._tell(self.said[kind])

    def planned(self, rounds: int, cohort: int) -> None:
        """Look at what is known before anything is trained."""
        planned = self._method.planned or rounds
        if rounds > planned:
            beyond = f"rounds = {rounds}, and the noise is planned for {planned}: what it promises in total holds for"
            self.say("planned", f"{beyond} {planned} alone; plan it for {rounds}, or stop there")
        if self._method.noisy is not None:
            self.protected([()] * cohort, cohort)

    def unread(self, models: int) -> None:
        """Look at training code that does not say which of a broadcast's models it took."""
        if models > 1:
            all_of = f"the broadcast has {models} models, and training code does not say which one it took: the first "
            all_of += "counts as its choice, and nobody trains the others"
            self.say(
                "unread",
                f"{all_of}. Read them all (read_broadcast), and answer with write_facts(chosen=...)",
            )

    def noise(self, ratio: float, clip: float, longest: float, layers: bool = False) -> None:
        """Compare the noise on what a round (or a noisy step) averages with the clip and with the median update.

        Parameters
        ----------
        ratio : float
            Its length, in multiples of the clip.
        clip, longest : float
            The clip, and the median update's length; 0 where that is not known.
        layers : bool
            Whether the clip is that of all layers together, each of which has its own.
        """
        if ratio > 1 / ENOUGH:
            mean = "a round's mean" if self._method.noisy is None else "a step's mean gradient"
            long = f"the noise on {mean} is {ratio:.3g} times as long as that mean can be"
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
        """List what would shorten this method's noise beside what it protects, and is not turned on already."""
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
        """Look at the noise of clients that protect themselves, where their own scales may be seen.

        The mean over the replies has that of one over their square root.
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
        """Look at updates before their protection; the median length of some of them.

        Parameters
        ----------
        start : Tensor
            [d], the model that was trained.
        models : sequence of Tensor
            [d] each, after training.
        loss, kind : float and str
            The clients' median training loss, and its name.
        known : float, optional
            The median length, where it was computed.
        """
        length = _median_length(start, models[:ASKED]) if known is None else known
        jumped = not (length <= JUMP or length <= JUMP * float(torch.linalg.vector_norm(start)))
        drowned = "noise" in self.said  # then the loss is large whatever the rate
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
        """Look at what a server that is trusted received in a round; one that is not sees nothing here.

        Parameters
        ----------
        start, loss, kind
            As for `trained`.
        replies : sequence of Releases
            As they arrived.
        report : mapping of str to float
            The server's figures.
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
        """Look at what one client trained, on its own node: no line of it is for a server that is not trusted."""
        with suppress(Exception):  # under local trust a client answers, whatever its data are
            longest = self.trained(facts.start, models_of([sent]))
            if self._method.noisy is None:
                self.protected([scale], facts.broadcast.public.cohort, longest)
            if count_of(sent) == 0:
                self.say(
                    "empty", "this client holds no example to train on: its reply is noise alone"
                )


def _median_length(start: Tensor, models: Rows) -> float:
    """Return the median length of updates; 0 without any."""
    lengths = [float(torch.linalg.vector_norm(model - start)) for model in models]
    return median(lengths) if lengths else 0.0
