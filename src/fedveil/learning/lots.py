"""Lots (random batches) of private steps: their units, the places of the units' rows in a batch, and clipped sums."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning.clients import ClientData, OnDemand
from fedveil.learning.gradients import Bases, all_finite, squared_norms
from fedveil.learning.inputs import Inputs
from fedveil.learning.per_example import PerExample
from fedveil.learning.regions import blanked, unusable_blank, warn_of_followed_content
from fedveil.learning.streams import drawing
from fedveil.learning.training import batch_of
from fedveil.logs import logger
from fedveil.mechanisms import Source
from fedveil.mechanisms.source import keyed_seed
from fedveil.methods.facts import NoisySteps

_LOG = logger(__name__)
UNCLIPPED = 1e30  # a clip so large that it cuts no gradient
KEPT = 1 << 26  # numbers of factors that are kept from round to round


@dataclass(frozen=True, eq=False)
class Units:
    """Row numbers of a client's protected units, the same number of places for each unit.

    So the number of one person's images does not shift another person's place in a batch.

    Attributes
    ----------
    rows : Tensor
        [n, each] int64: row numbers of a unit's examples, in order; 0 for an empty place.
    present : Tensor
        [n, each] bool: whether the place holds an example.
    """

    rows: Tensor
    present: Tensor

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.rows)

    @property
    def each(self) -> int:
        """Number of places of a unit."""
        return self.rows.shape[1]

    @classmethod
    def of(cls, client: ClientData, images: int) -> "Units":
        """Return the units of a client: examples if `images` is 0, else persons, each with at most her first `images` rows.

        Which of a person's images are left out depends only on her own images.

        Raises
        ------
        FieldError
            If persons are requested, and the client's data do not name the person of each example.
        """
        if not images:
            rows = torch.arange(client.examples)[:, None]
            return cls(rows, torch.ones_like(rows, dtype=torch.bool))
        if client.person is None:
            how = "data.person = 'patient' in TOML, or ClientData(x, y, person=numbers)"
            raise FieldError(
                "person",
                None,
                f"it is needed to protect persons: say whose each example is, by {how}",
            )
        owner = client.person
        if client.examples:
            _, owner = torch.unique(client.person, return_inverse=True)
        order = owner.argsort(stable=True)
        count = torch.bincount(owner)
        first = count.cumsum(0) - count
        place = torch.arange(len(order)) - first[owner[order]]
        kept = place < images
        rows = torch.zeros(len(count), images, dtype=torch.int64)
        present = torch.zeros(len(count), images, dtype=torch.bool)
        where = owner[order][kept], place[kept]
        rows[where] = order[kept]
        present[where] = True
        return cls(rows, present)

    def at(
        self,
        chosen: Tensor,
        places: Tensor | None,
        count: int,
    ) -> tuple[Tensor, Tensor]:
        """Lay the chosen units out in a batch: row numbers and presence, [count * each], with dummies in the other places.

        Parameters
        ----------
        chosen : Tensor
            [m], chosen units.
        places : Tensor or None
            [m], different places below `count`; None: in order.
        count : int
            Number of places.
        """
        where = torch.arange(len(chosen)) if places is None else places
        rows = torch.zeros(count, self.each, dtype=torch.int64)
        present = torch.zeros(count, self.each, dtype=torch.bool)
        rows[where] = self.rows[chosen]
        present[where] = self.present[chosen]
        return rows.view(-1), present.view(-1)


class Lots:
    """Clipped sums over lots (random batches) of clients' units, with cached batches and norms.

    Parameters
    ----------
    noisy : NoisySteps
        Sampling and size of lots.
    sums : PerExample
        Sums of clipped gradients over a lot.
    inputs : Inputs
        Conversion of examples for the model.
    generator : torch.Generator
        Randomness for random transforms of examples that are read at each use.

    Attributes
    ----------
    whole : mapping of ClientData to dict
        Cached full batch of a client, for one client at a time.
    """

    def __init__(
        self,
        noisy: NoisySteps,
        sums: PerExample,
        inputs: Inputs,
        generator: torch.Generator,
    ) -> None:
        self._noisy = noisy
        self._sums = sums
        self._inputs = inputs
        self._generator = generator
        self.whole: WeakKeyDictionary[ClientData, dict[str, Any]] = WeakKeyDictionary()
        self._units: WeakKeyDictionary[ClientData, Units] = WeakKeyDictionary()
        self._lengths: WeakKeyDictionary[ClientData, Tensor] = WeakKeyDictionary()
        self._bases: WeakKeyDictionary[ClientData, Bases] = WeakKeyDictionary()
        self._blanked: WeakKeyDictionary[ClientData, ClientData] = WeakKeyDictionary()
        self._versions: WeakKeyDictionary[ClientData, tuple[int, ...]] = WeakKeyDictionary()
        self._threads = (
            torch.get_num_threads()
        )  # number of threads for which the bases were computed

    def units_of(self, client: ClientData) -> Units:
        """Return the units of a client, computed once."""
        self._forget_what_was_edited(client)
        if client not in self._units:
            self._units[client] = Units.of(client, self._noisy.images)
        return self._units[client]

    def _forget_what_was_edited(self, client: ClientData) -> None:
        """Clear a client's cache if its tensors were changed in place, as an old norm would clip wrongly."""
        versions = tuple(
            _version(part) for part in (client.x, client.y, client.person, client.masks)
        )
        if self._versions.setdefault(client, versions) == versions:
            return
        _LOG.warning("the examples of a client were edited in place: they are looked at again")
        for known in (self.whole, self._units, self._lengths, self._bases, self._blanked):
            known.pop(client, None)
        self._versions[client] = versions

    def clipped_sum(
        self,
        client: ClientData,
        chosen: Tensor,
        source: Source,
    ) -> tuple[Tensor, Tensor]:
        """Compute the clipped sum [d] over a lot, and the losses of its rows. A unit's place depends on no other unit.

        A full batch of examples keeps their order, as its size is public. A full batch of persons has a random order,
        drawn when it is assembled, as their own order would follow their first images. Otherwise units are spread at
        random over a public number of places, with dummies between them. A lot with more units than places counts as
        zero.
        """
        noisy = self._noisy
        units = self.units_of(client)
        count = noisy.places(len(units))
        is_full = noisy.rate == 1 and (noisy.public_size or not count)
        if is_full:
            batch = self._full_batch(client, chosen, source)
        elif not count:
            batch = self._placed(client, chosen, None, len(chosen))
        elif len(chosen) > count:
            raise FieldError("rate", noisy.rate, f"drew a lot of more than {count} {noisy.unit}")
        else:
            places = source.uniform(count).argsort()[: len(chosen)]
            batch = self._placed(client, chosen, places, count)
        return self._sums.clipped_sum(
            **batch,
            clip=noisy.clip,
            each=units.each,
            alone=not count,
            grid=noisy.grid,
        )

    def blanked_sum(self, client: ClientData) -> Tensor:
        """Compute the sum [d] of the gradients of all blanked examples (or of persons' means), without clip and noise.

        Blanked examples have their marked coordinates replaced. The sum is over all units, not over a lot, and does not
        depend on marked content (`fedveil.learning.regions`).

        Raises
        ------
        FieldError
            If the model has no finite gradients of blanked examples. Model and blanked examples are public.
        """
        noisy = self._noisy
        own = self.blanked_of(client)
        units = self.units_of(client)
        rows, present = units.at(torch.arange(len(units)), None, len(units))
        x, y = batch_of(own, rows, self._inputs)
        try:
            total, _ = self._sums.clipped_sum(
                x, y, UNCLIPPED, present.to(x.device), each=units.each
            )
        except Exception as error:  # model and loss are the user's code
            raise unusable_blank(noisy.blank, error) from error
        if not all_finite(total):
            raise unusable_blank(noisy.blank, "gradients are not finite")
        return total

    def blanked_of(self, client: ClientData) -> ClientData:
        """Return a client's examples with their marked coordinates blanked, computed once."""
        self._forget_what_was_edited(client)
        if client not in self._blanked:
            warn_of_followed_content(client)
            self._blanked[client] = blanked(client, self._noisy.blank)
        return self._blanked[client]

    def _full_batch(
        self,
        client: ClientData,
        chosen: Tensor,
        source: Source,
    ) -> dict[str, Any]:
        """Return a client's full batch, assembled once."""
        if client not in self.whole:
            self.whole.clear()
            order = source.uniform(len(chosen)).argsort() if self._noisy.images else None
            self.whole[client] = self._placed(client, chosen, order, len(chosen))
        return self.whole[client]

    def _placed(
        self,
        client: ClientData,
        chosen: Tensor,
        places: Tensor | None,
        count: int,
    ) -> dict[str, Any]:
        """Return the arguments of `PerExample.clipped_sum` for a lot.

        Examples and labels are [count * each, ...], with 0 in empty places; norms and factors are given if they are
        known.
        """
        units = self.units_of(client)
        rows, present = units.at(chosen, places, count)
        device = self._inputs.like.device
        is_read_anew = isinstance(client.x, OnDemand)
        if is_read_anew:
            x, y = self._read_anew(client, rows, present)
        else:
            x, y = batch_of(client, rows, self._inputs)
        here = present.to(device)
        batch: dict[str, Any] = {"x": x, "y": y}
        other: tuple[Tensor, ...] = ()
        if self._noisy.regions:
            other = batch_of(self.blanked_of(client), rows, self._inputs)
        if (
            self._sums.reads_examples and not is_read_anew
        ):  # reading an example again may give another length
            batch["lengths"] = self._lengths_of(client).index_select(0, rows).to(device)
        gone = (~here).nonzero()[:, 0]
        if len(gone):
            for values in (*batch.values(), *other):
                values.index_fill_(0, gone, 0)
        batch["present"] = here
        if other:
            return batch | {"blanked": other}
        most = (
            len(units) if self._noisy.public_size else self._noisy.most
        )  # one more person must not change the path of computation for others
        takes_bases = self._sums.reads_examples and not self._noisy.grid
        if not takes_bases or not self._sums.takes_bases(most, units.each):
            return batch
        if is_read_anew:  # whether examples fit into memory is private, so bases are used all the same, and computed each time
            bases = self._bases_anew(x, here, places, len(chosen), units.each)
            chosen = torch.arange(len(chosen))
        else:
            bases = self._bases_of(client, most)
        batch["bases"] = bases.at(chosen, places, count)
        return batch

    def _read_anew(
        self,
        client: ClientData,
        rows: Tensor,
        present: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Read a batch one example at a time, as random transforms may raise errors and draw random numbers.

        An example that raises an error is removed from `present`. Random draws depend on an example's place, not on
        other examples.
        """
        x = torch.zeros((len(rows), *client.x.shape[1:]), dtype=client.x.dtype)
        seed = int(torch.randint(1 << 62, (), generator=self._generator))
        for place in present.nonzero()[:, 0].tolist():
            with drawing(keyed_seed("read", seed, place)):
                try:
                    x[place] = client.x[rows[place : place + 1]][0]
                except Exception:
                    present[place] = False
                    _LOG.error("an example cannot be read, and counts as zero", exc_info=True)
        return self._inputs(x), client.y[rows].to(self._inputs.like.device)

    def _lengths_of(self, client: ClientData) -> Tensor:
        """Return the squared norms [N] of a client's examples, computed once."""
        if client not in self._lengths:
            lengths: list[Tensor] = []
            for rows in torch.split(torch.arange(client.examples), 1 << 12):
                x, _ = batch_of(client, rows, self._inputs)
                lengths.append(squared_norms(x).cpu())
            self._lengths[client] = torch.cat(lengths)
        return self._lengths[client]

    def _bases_anew(
        self,
        x: Tensor,
        here: Tensor,
        places: Tensor | None,
        units: int,
        each: int,
    ) -> Bases:
        """Factorise the persons' inputs in a batch that was just read, at their places."""
        where = torch.arange(units) if places is None else places
        where = where.to(x.device)
        inputs = x.reshape(-1, each, *x.shape[1:])[where]
        present = here.reshape(-1, each)[where]
        return self._sums.bases(inputs.flatten(0, 1), present)

    def _bases_of(self, client: ClientData, most: int) -> Bases:
        """Return the factors of a client's inputs by person, cached until the number of threads (and so rounding) changes.

        The cache changes only the run time, not the result. A silo without persons has no cache, and the number of
        persons is private.
        """
        units = self.units_of(client)
        if self._threads != torch.get_num_threads():
            self._bases.clear()
            self._threads = torch.get_num_threads()
        if client not in self._bases:
            numbers = most * units.each * client.x.shape[1:].numel()  # numbers of one client
            if len(self._bases) * numbers > KEPT:
                self._bases.clear()
            rows, present = units.at(torch.arange(len(units)), None, len(units))
            x, _ = batch_of(client, rows, self._inputs)
            self._bases[client] = self._sums.bases(x, present.view(-1, units.each))
        return self._bases[client]


def _version(part: Any) -> int:
    """Return the number of in-place changes of a tensor; 0 if the tensor does not count them."""
    if not isinstance(part, Tensor) or part.is_inference():
        return 0
    return part._version
