"""Local training with noise inside its steps: DP-SGD (Abadi et al. 2016, arXiv 1607.00133)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from threading import Lock

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.gradients import all_finite
from fedveil.learning.local import LocalTraining, Trained
from fedveil.learning.losses import losses_of
from fedveil.learning.lots import UNCLIPPED, Lots
from fedveil.learning.made_up import Example, labels, not_trainable, probes
from fedveil.learning.noisy_round import NoisyRound
from fedveil.learning.per_example import PerExample
from fedveil.learning.regions import require_blank, unusable_blank
from fedveil.learning.streams import Key, stream
from fedveil.learning.training import SequentialTrainer, Stepper, check_request
from fedveil.learning.validation import require_separable, require_unmixed
from fedveil.mechanisms import Source
from fedveil.methods.facts import NoisySteps
from fedveil.ranges import require_within


class PrivateTrainer(SequentialTrainer):
    """Train clients by DP-SGD: steps along noised sums of clipped gradients of single examples or persons.

    Every step draws each example independently with probability `rate`; an empty sample gives a step of pure noise. The
    step sums the clipped gradients, adds noise and divides by a constant. The optimiser sees only the result, so
    momentum, Adam and FedProx's term are post-processing. Sampling, dropout and noise have separate random streams. The
    result carries the `NoisySteps` that were used.

    Parameters
    ----------
    model, layout, device
        See `SequentialTrainer`.
    local : LocalTraining
        Learning rate, optimiser, momentum, FedProx and loss. `epochs` must be 1, and the batch size is ignored, as
        `noisy` defines a step.
    noisy : NoisySteps
        Steps, sampling, clipping and noise.
    example : tuple of Tensor, optional
        x and y [N, ...] of the declared shape and type; their values are not used. With them the model is tried on
        made-up examples at once, else when the first client trains.

    Raises
    ------
    FieldError
        For a model without gradients of single examples (`fedveil.learning.mend` repairs most), or a failure on made-up
        examples.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        local: LocalTraining,
        noisy: NoisySteps,
        device: str = "cpu",
        *,
        example: Example | None = None,
    ) -> None:
        require_separable(model)
        if local.epochs != 1:
            accepted = "must be 1: the method's steps and rate say how a silo trains in a round"
            raise FieldError("epochs", local.epochs, accepted)
        require_within("clip", "clip", noisy.clip)
        if not noisy.grid:
            require_within("sigma", "deviation", noisy.deviation)
        if noisy.summed:
            _require_linear(layout, local, noisy)
        losses_of(local.loss)
        if local.unusual:
            accepted = "has no form with noise inside training: leave it out, and lr a number"
            raise FieldError(local.unusual, getattr(local, local.unusual), accepted)
        super().__init__(model, layout, local, device)
        self.noisy = replace(noisy, lr=local.rate()) if noisy.summed else noisy
        self._sums = PerExample(
            self._model, layout, local.loss, self._generator, local.class_weights
        )
        self._lots = Lots(self.noisy, self._sums, self._inputs, self._generator)
        self._unchecked = True
        self._busy = Lock()
        self._spare = deepcopy(
            model
        )  # for `idle`, as a training that ran out of time may still use the other
        if example is not None:
            require_unmixed(self._model, example[0], layout)
            self._unchecked = False
            self._rehearse(*example)

    def train_noisily(
        self,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
        sources: Sequence[Source],
    ) -> list[Trained | Exception]:
        """Train each client from its own start with its own source; see `SequentialTrainer.train`.

        Raises
        ------
        FieldError
            If another thread is using the trainer. Two rounds on one module would mix, and neither promise would hold.
        """
        check_request(self.layout, starts, clients, keys)
        with self._taken(starts, clients):
            results: list[Trained | Exception] = []
            for start, client, key, source in zip(starts, clients, keys, sources, strict=True):
                try:
                    results.append(self._noisy(start, client, key, source))
                except Exception as error:
                    results.append(error)
            return results

    @contextmanager
    def _taken(self, starts: Tensor, clients: Sequence[ClientData]) -> Iterator[None]:
        """Reserve the trainer for these clients, after a check of their sizes and examples."""
        self.check_sizes(clients, least=1)
        for client in clients if self.local.class_weights else ():
            if client.y.is_floating_point() or client.y.dim() != 1:
                accepted = (
                    "are of one class an example, and these labels are others: leave them out"
                )
                raise FieldError("class_weights", self.local.class_weights, accepted)
        self.require_fine(starts)
        if not self._busy.acquire(blocking=False):
            accepted = "is still training another round: give a longer deadline, or each thread a trainer of its own"
            raise FieldError("trainer", "busy", accepted)
        try:
            if self._unchecked:
                self._look_at(clients)
            yield
        finally:
            self._busy.release()

    @contextmanager
    def taken_for(
        self,
        start: Tensor,
        client: ClientData,
        key: Key,
        source: Source,
    ) -> Iterator[NoisyRound]:
        """Reserve the trainer for one client's round; the caller makes the steps, on `own_parameters`.

        Parameters
        ----------
        start : Tensor
            [d], parameters with which the model starts.
        client : ClientData
            Examples of the client.
        key : tuple of int
            Key, as in `SequentialTrainer.train`.
        source : Source
            Randomness of lots and noise.
        """
        check_request(self.layout, start[None], [client], [key])
        with self._taken(start[None], [client]):
            yield self._begin(start, client, key, source)

    @property
    def own_model(self) -> nn.Module:
        """Copy of the model that the trainer owns."""
        return self._model

    @property
    def own_parameters(self) -> list[nn.Parameter]:
        """Parameters of the trainer's copy that are shared with the server, in the layout's order."""
        return self._parameters

    def read(self) -> Tensor:
        """Return the shared parameters [d] of the trainer's copy, on the CPU."""
        return self._read()

    def rows_of(self, client: ClientData, chosen: Tensor) -> Tensor:
        """Return the row numbers of a client's chosen units [m]; for persons, at most their first images that are used."""
        units = self._lots.units_of(client)
        return units.rows[chosen][units.present[chosen]]

    def mean_gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean gradient [d] (float64) of made-up examples x and y [N, ...] twice, and return both.

        Nothing is clipped. The two differ if the model draws random numbers; the trainer's own stream is unchanged.
        """
        x, y = self._inputs(x), y.to(self._device)
        before = self._generator.get_state()
        first, again = (
            self._sums.clipped_sum(x, y, UNCLIPPED, alone=True)[0].cpu() / len(x) for _ in range(2)
        )
        self._generator.set_state(before)
        return first, again

    def _look_at(self, clients: Sequence[ClientData]) -> None:
        """Refuse a model that mixes examples, by a trial on made-up examples in the shape of the first client's."""
        for client in clients:
            if client.examples:
                require_unmixed(self._model, client.x, self.layout)
                self._unchecked = False
                return

    def _rehearse(self, x: Tensor, y: Tensor) -> None:
        """Refuse a model and loss without a gradient for a made-up example."""
        failure: Exception | None = None
        for probe, _ in probes(x, 1):
            try:
                inputs = self._inputs(probe)
                targets = labels(y, 1).to(self._device)
                self._sums.clipped_sum(inputs, targets, 1.0, alone=True)
                self._sums.warn_if_slow(inputs, targets)
                self._say_micro_batches()
            except Exception as error:  # model and loss are the user's code
                failure = failure or error
                continue
            if self.noisy.regions:
                self._rehearse_blank(inputs, targets)
            return
        raise not_trainable(self._model, x, y, failure) from failure

    def _say_micro_batches(self) -> None:
        """Log the micro-batches of a step of the planned number of units, which is public."""
        noisy = self.noisy
        each = noisy.images or 1
        planned = round(noisy.denominator / noisy.rate)
        formed = noisy.images > 0 or noisy.grid > 0 or noisy.regions
        self._sums.say_micro_batches(noisy.places(planned) * each, each, formed)

    def _rehearse_blank(self, x: Tensor, y: Tensor) -> None:
        """Refuse a blank value without a finite gradient: try it in every second coordinate of made-up x and y [1, ...]."""
        blank = self.noisy.blank
        require_blank(x, blank)
        half = x.clone(memory_format=torch.contiguous_format)
        half.view(-1)[::2] = blank
        try:
            total, _ = self._sums.clipped_sum(self._inputs(half), y, UNCLIPPED, alone=True)
        except Exception as error:  # model and loss are the user's code
            raise unusable_blank(blank, error) from error
        if not all_finite(total):
            raise unusable_blank(blank, "its gradient is not finite")

    def idle(self, start: Tensor, source: Source) -> Trained:
        """Train a silo without examples from a start [d]: the result is the noise of all steps, and nothing else."""
        none = torch.zeros(0, dtype=torch.int64)
        nobody = ClientData(torch.zeros(0, 1), none, person=none)
        own = PrivateTrainer(self._spare, self.layout, self.local, self.noisy, str(self._device))
        return own._noisy(start, nobody, (), source)

    def train(
        self,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
    ) -> list[Trained | Exception]:
        """Raise an error: this trainer needs sources of noise, so call `train_noisily`."""
        raise FieldError(
            "sources",
            None,
            "a private trainer draws noise: call train_noisily with one source a client",
        )

    def check_sizes(self, clients: Sequence[ClientData], least: int = 2) -> None:
        """Refuse silos with more units than promised. If sizes are public, also refuse fewer than `least` or than a lot."""
        for i, client in enumerate(clients):
            if self.noisy.regions and client.examples:
                self._require_marks(i, client)
            count = len(self._lots.units_of(client))
            self._check_size(f"{self.noisy.unit} of silo {i}", count, least)

    def _require_marks(self, i: int, client: ClientData) -> None:
        """Refuse silo i if its examples have no marks to blank."""
        try:
            self._lots.blanked_of(client)
        except FieldError as error:
            raise FieldError(f"{error.field} of silo {i}", error.value, error.accepted) from error

    def _check_size(self, field: str, n: int, least: int) -> None:
        noisy = self.noisy
        if noisy.most and n > noisy.most:
            accepted = (
                f"must be at most the {noisy.most} that are promised: raise most, or leave some out"
            )
            raise FieldError(field, n, accepted)
        if noisy.public_size and 0 < noisy.units < n:
            accepted = (
                f"must be at most units = {noisy.units}, beyond which sums overflow: raise it"
            )
            raise FieldError(field, n, accepted)
        held = noisy.most or n
        fine = noisy.deviation / (2 * self._coarsest * noisy.clip)
        if (
            noisy.summed and held > fine
        ):  # all gradients may be equal, and then their sum rounds like n C
            accepted = f"must be at most {fine:.0f} in a sum: beyond them rounding undoes its share of the noise; "
            raise FieldError(
                field, held, f"{accepted}train in float64, or use the method 'record' without a sum"
            )
        if not noisy.public_size:
            return
        if n < least:
            raise FieldError(
                field, n, f"must be at least {least}: join the silo with another, or run without it"
            )
        lot = noisy.denominator
        if noisy.rate < 1 and n < lot * (1 - 1e-9):
            accepted = f"must be at least the lot of {lot:g} that a step expects: lower rate or the number planned"
            raise FieldError(field, n, accepted)

    def require_fine(self, starts: Tensor) -> None:
        """Refuse weights so coarse that rounding hides a share's noise but not one record's step."""
        if not self.noisy.summed:
            return
        rate = self.noisy.lr
        moved = rate * self.noisy.deviation / self.noisy.denominator
        largest = float(starts.abs().max()) + rate * self.noisy.clip
        grid = self._coarsest * largest
        if moved < 2 * grid:
            accepted = f"moves weights by noise of {moved:.2g}, which rounding to {grid:.2g} would undo: raise it, or "
            raise FieldError("lr", rate, f"{accepted}train in float64, or use the method 'record'")

    @property
    def _coarsest(self) -> float:
        """Largest machine epsilon among the parameters' types."""
        return max(torch.finfo(block.dtype).eps for block in self.layout.blocks)

    def _noisy(
        self,
        start: Tensor,
        client: ClientData,
        key: Key,
        source: Source,
    ) -> Trained:
        """Train one client through all its steps."""
        own_round = self._begin(start, client, key, source)
        if self.noisy.grid:  # one step on the grid; the method adds the noise of a share
            total = own_round.clipped_sum(own_round.lot())
            return own_round.trained(self._read(), total)
        optimizer = Stepper(self._parameters, self.local)
        anchors = [p.detach().clone() for p in self._parameters] if self.local.prox else []
        for _ in range(self.noisy.steps):
            self._step(optimizer, own_round.gradient(own_round.lot()), anchors)
        return own_round.trained(self._read())

    def _begin(
        self,
        start: Tensor,
        client: ClientData,
        key: Key,
        source: Source,
    ) -> NoisyRound:
        """Set the model to its start [d], and begin a client's round."""
        self._reset(start)
        # a mask depends on an example's place in the batch, which under add/remove would reveal who else is there
        secret_key = (*key, int(source.child("dropout").bits(1)))
        stream(secret_key, "dropout", self._generator)
        return NoisyRound(self.noisy, self._lots, self.layout, client, source)

    def _step(
        self,
        optimizer: Stepper,
        gradient: Tensor,
        anchors: Sequence[Tensor],
    ) -> None:
        """Take one step of the optimiser along a noised gradient [d], with FedProx's term if `anchors` are given."""
        for parameter, block in zip(self._parameters, self.layout.blocks, strict=True):
            own = gradient[block.start : block.stop].view(block.shape)
            parameter.grad = own.to(parameter.device, parameter.dtype, copy=True)
        for parameter, anchor in zip(self._parameters, anchors, strict=False):
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach() - anchor, alpha=self.local.prox)
        optimizer.step(self.local.rate())


def _require_linear(layout: Layout, local: LocalTraining, noisy: NoisySteps) -> None:
    """Refuse a share of a sum over silos if its steps are not linear, or its numbers exceed exact computation."""
    rate = local.rate()
    require_within("learning rate of a sum", "lr", rate)
    for part in (noisy.clip, noisy.deviation):
        require_within("sigma", "lr * clip / examples", rate * part / noisy.denominator)
    if local.optimizer != "sgd":
        accepted = 'must be "sgd": a trusted sum promises nothing about the sum of steps that are not linear'
        raise FieldError("optimizer", local.optimizer, accepted)
    for block in layout.blocks:
        if block.dtype not in (torch.float32, torch.float64):
            accepted = "rounds a share's noise away, and no record's step: train a sum in float32, model.float()"
            raise FieldError(block.name, block.dtype, accepted)
