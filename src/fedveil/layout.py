"""Layout: conversion between a model's named arrays and one flat vector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedveil.adapters import saved_names
from fedveil.buffers import buffers_refused, persistent, statistics
from fedveil.errors import FieldError, kind_of, nearest, require_a, require_choice
from fedveil.wrapped import require_unwrapped

Grouping = Literal["array", "module"]
Buffers = Literal["refuse", "keep"]

_SHARED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Block:
    """One parameter array, and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    dtype: torch.dtype = torch.float32

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """Index after the last coordinate."""
        return self.start + self.size

    @property
    def module(self) -> str:
        """Module that owns the array: the array's name up to the last dot."""
        return self.name.rpartition(".")[0] or self.name


@dataclass(frozen=True)
class Layout:
    """Order, names, shapes and types of the arrays that clients and server share.

    A vector is [d], a stack of vectors [n, d]. Its type is float64 if any block is float64, else float32. Blocks of
    narrower types are converted without loss, and back again.

    Attributes
    ----------
    blocks : tuple of Block
        Parameter arrays in order; together they cover [0, d) without gaps.
    kept : tuple of str
        Entries of the module's state that are never sent: frozen parameters, and running statistics if each party keeps
        its own.
    constants : tuple of str
        Buffers that training never changes (tables of positions, masks); every party has them with the model.
    saved : tuple of str
        Name of each array when an adapter (PEFT) is saved and sent, in the order of the blocks; empty if it is the name
        in the model.

    Examples
    --------
    >>> layout = fv.Layout.from_module(model)
    >>> layout.size, layout.names
    (10, ('weight', 'bias'))
    >>> flat = layout.read(model)
    >>> sorted(layout.unflatten(flat)) == sorted(model.state_dict())
    True
    """

    blocks: tuple[Block, ...]
    kept: tuple[str, ...] = field(default=())
    constants: tuple[str, ...] = field(default=())
    saved: tuple[str, ...] = field(default=())

    @classmethod
    def from_shapes(
        cls, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype = torch.float32
    ) -> "Layout":
        """Make a layout from names and shapes, in the mapping's order.

        Parameters
        ----------
        shapes : mapping of str to sequence of int
            Shape of each array; ``()`` is a 0-d array with one coordinate.
        dtype : torch.dtype
            Type of all arrays.

        Raises
        ------
        FieldError
            If there is nothing to share, a size is not positive, or the type is not a floating-point type.
        """
        require_a(
            "shapes", shapes, Mapping, "must be a table of names and shapes: {'weight': (2, 5)}"
        )
        for name, shape in shapes.items():
            require_a(
                f"shapes[{name!r}]", shape, Sequence, "must be a sequence of whole numbers: (2, 5)"
            )
        entries = [(name, tuple(map(int, shape)), dtype) for name, shape in shapes.items()]
        return cls._build(entries, ())

    @classmethod
    def from_module(cls, module: nn.Module, buffers: Buffers = "refuse") -> "Layout":
        """Make a layout of a module's trainable parameters.

        Parameters
        ----------
        module : torch.nn.Module
            Module whose trainable parameters are shared, in the order of ``named_parameters`` (tied ones once). Frozen
            parameters never change, so they are not sent. The arrays of a PEFT model are sent by the names of
            ``get_peft_model_state_dict``.
        buffers : {"refuse", "keep"}
            Treatment of buffers that training may write (running means, counters): refuse the model, or keep each
            party's own. They are never noised and never sent. Constants are accepted in both cases.

        Raises
        ------
        FieldError
            If there is such a buffer under ``"refuse"``, or a parameter has a type that cannot be noised. Also if the
            module wraps another one (``DataParallel``, ``torch.jit.script``, ``torch.compile``).
        """
        require_a("module", module, nn.Module, "must be a torch.nn.Module that was built: Net()")
        require_choice("buffers", buffers, ("refuse", "keep"))
        parameters = dict(module.named_parameters())
        lazy = [name for name in parameters if isinstance(parameters[name], UninitializedParameter)]
        if lazy:
            accepted = f"has layers without a size: {', '.join(lazy)}. Name their inputs, or call it once: model(x[:1])"
            raise FieldError("module", kind_of(module), accepted)
        require_unwrapped(module)
        own = statistics(module) if buffers == "refuse" else persistent(module)
        if own and buffers == "refuse":
            raise FieldError("module", kind_of(module), buffers_refused(module, own))
        entries, frozen = [], []
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                entries.append((name, tuple(parameter.shape), parameter.dtype))
            else:
                frozen.append(name)
        constants = tuple(name for name in persistent(module) if name not in own)
        built = cls._build(entries, tuple(frozen + own), constants)
        names = saved_names(module)
        if not names:
            return built
        return replace(built, saved=tuple(names.get(name, name) for name in built.names))

    @classmethod
    def _build(
        cls,
        entries: list[tuple[str, tuple[int, ...], torch.dtype]],
        kept: tuple[str, ...],
        constants: tuple[str, ...] = (),
    ) -> "Layout":
        blocks, start = [], 0
        for name, shape, dtype in entries:
            if dtype not in _SHARED:
                raise FieldError(
                    name,
                    dtype,
                    "only floating-point arrays can be shared; keep integers as buffers",
                )
            block = Block(name, shape, start, dtype)
            if block.size < 1:
                raise FieldError(name, shape, "every size must be at least 1")
            blocks.append(block)
            start = block.stop
        if not blocks:
            raise FieldError(
                "layout", [], "has nothing to share: at least one trainable parameter is needed"
            )
        return cls(tuple(blocks), kept, constants)

    @property
    def size(self) -> int:
        """Number of coordinates d."""
        return self.blocks[-1].stop

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in order."""
        return tuple(block.name for block in self.blocks)

    @property
    def sent(self) -> dict[str, str]:
        """Name of each array as it is sent, by its name in the model, in order."""
        return dict(zip(self.names, self.saved or self.names, strict=True))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each array, in order."""
        return {block.name: block.shape for block in self.blocks}

    @property
    def dtype(self) -> torch.dtype:
        """Type of the flat vector."""
        kinds = {block.dtype for block in self.blocks}
        return torch.float64 if torch.float64 in kinds else torch.float32

    def state_dict(self, module: nn.Module, vector: Tensor) -> dict[str, Tensor]:
        """Convert a vector [d] to named parameters of a module, with its frozen and tied ones and its constants."""
        own = self.unflatten(vector)
        first_names = {id(parameter): name for name, parameter in module.named_parameters()}
        state: dict[str, Tensor] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            state[name] = own.get(first_names[id(parameter)], parameter.detach())
        for name, buffer in module.named_buffers(remove_duplicate=False):
            if name in self.constants:
                state[name] = buffer.detach()
        return state

    def groups(self, grouping: Grouping = "array") -> dict[str, list[slice]]:
        """Return the slices of the flat vector that belong to each layer.

        Parameters
        ----------
        grouping : {"array", "module"}
            ``"array"``: each parameter array is a layer (weight and bias apart); ``"module"``: the arrays of one
            module are one layer.

        Returns
        -------
        dict of str to list of slice
            In layout order; adjacent arrays of one module are merged into one slice.
        """
        require_choice("grouping", grouping, ("array", "module"))
        result: dict[str, list[slice]] = {}
        for b in self.blocks:
            layer = b.name if grouping == "array" else b.module
            slices = result.setdefault(layer, [])
            if slices and slices[-1].stop == b.start:
                slices[-1] = slice(slices[-1].start, b.stop)
            else:
                slices.append(slice(b.start, b.stop))
        return result

    def sizes(self, grouping: Grouping = "array") -> dict[str, int]:
        """Count the coordinates of each layer, in layout order.

        Parameters
        ----------
        grouping : {"array", "module"}
            What counts as a layer, see `groups`.
        """
        sizes: dict[str, int] = {}
        for name, slices in self.groups(grouping).items():
            sizes[name] = sum(part.stop - part.start for part in slices)
        return sizes

    def grouping_of(self, field_name: str, keys: Mapping[str, object]) -> Grouping:
        """Return whether the keys of a mapping by layer are arrays or modules.

        Raises
        ------
        FieldError
            If the keys are not exactly the layers of one grouping.
        """
        for grouping in ("module", "array"):
            known = self.groups(grouping)
            if set(keys) == set(known):
                return grouping
        known = self.groups("module")
        for name in keys:
            if name not in known and name not in self.shapes:
                raise FieldError(field_name, name, "is no layer; " + nearest(name, known))
        missing = [name for name in known if name not in keys]
        raise FieldError(
            field_name, sorted(keys), f"needs one entry a layer; missing: {', '.join(missing)}"
        )

    def flatten(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """Concatenate named arrays into one vector.

        Parameters
        ----------
        arrays : mapping of str to Tensor
            Arrays by name: every block of the layout; other entries must be in ``kept`` or ``constants``.

        Returns
        -------
        Tensor
            [d], a fresh tensor.

        Raises
        ------
        FieldError
            For a missing, unknown or wrongly shaped array.
        """
        self._refuse_unknown(arrays)
        parts = []
        for b in self.blocks:
            if b.name not in arrays:
                raise FieldError(b.name, None, f"the layout needs it, with shape {b.shape}")
            value = arrays[b.name]
            if tuple(value.shape) != b.shape or not value.is_floating_point():
                raise FieldError(
                    b.name,
                    (tuple(value.shape), value.dtype),
                    f"must be a float array of shape {b.shape}",
                )
            parts.append(value.detach().reshape(-1).to(self.dtype))
        return torch.cat(parts)

    def _refuse_unknown(self, arrays: Mapping[str, Tensor]) -> None:
        """Refuse arrays that the layout does not declare; a second name of a tied parameter is accepted."""
        known = {*self.shapes, *self.kept, *self.constants}
        memory = {arrays[name].data_ptr() for name in self.shapes if name in arrays}
        for name, array in arrays.items():
            if name not in known and array.data_ptr() not in memory:
                raise FieldError(
                    name, tuple(array.shape), "is not part of the layout: declare it or remove it"
                )

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Split a vector into named arrays (new tensors of the blocks' own types).

        Parameters
        ----------
        vector : Tensor
            [d], parameters.

        Returns
        -------
        dict of str to Tensor
            Arrays for ``module.load_state_dict(..., strict=False)``.
        """
        self.check(vector, "vector")
        if vector.dim() != 1:
            raise FieldError("vector", tuple(vector.shape), f"must be [d] = [{self.size}]")
        arrays = {}
        for b in self.blocks:
            array = vector[b.start : b.stop].reshape(b.shape)
            arrays[b.name] = array.to(b.dtype, copy=True)
        return arrays

    def load(self, module: nn.Module, vector: Tensor) -> None:
        """Write a vector [d] into a module's parameters in place."""
        self.check(vector, "vector")
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for b in self.blocks:
                parameters[b.name].copy_(vector[b.start : b.stop].view(b.shape))

    def read(self, module: nn.Module) -> Tensor:
        """Read a module's shared parameters as one vector [d]."""
        parameters = dict(module.named_parameters())
        return self.flatten({name: parameters[name] for name in self.names if name in parameters})

    def views(self, updates: Tensor) -> dict[str, Tensor]:
        """Return a view of each array by name: [*shape] for a vector [d], [n, *shape] for [n, d]."""
        self.check(updates, "updates")
        lead = updates.shape[:-1]
        views = {}
        for b in self.blocks:
            part = updates[..., b.start : b.stop]
            views[b.name] = part.view((*lead, *b.shape))
        return views

    def norms(self, updates: Tensor, grouping: Grouping = "array") -> Tensor:
        """Compute the Euclidean norm of each layer, summed in float64.

        Parameters
        ----------
        updates : Tensor
            [d] or [n, d].
        grouping : {"array", "module"}
            What counts as a layer, see `groups`.

        Returns
        -------
        Tensor
            [L] or [n, L], float64.
        """
        self.check(updates, "updates")
        columns = []
        for slices in self.groups(grouping).values():
            squares = []
            for part in slices:
                squares.append(updates[..., part].to(torch.float64).square().sum(-1))
            columns.append(torch.stack(squares).sum(0).sqrt())
        return torch.stack(columns, dim=-1)

    def check(self, value: Tensor, name: str) -> None:
        """Refuse a tensor that is not [d] or [n, d] in float32 or float64."""
        if value.dtype not in (torch.float32, torch.float64):
            raise FieldError(name, value.dtype, "must be float32 or float64")
        if value.dim() not in (1, 2) or value.shape[-1] != self.size:
            raise FieldError(
                name, tuple(value.shape), f"must be [d] or [n, d] with d = {self.size}"
            )
