"""Registries: what a configuration or a command line may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from fedveil.errors import FieldError, nearest

T = TypeVar("T")


class Registry(dict[str, T]):
    """Named things of one kind.

    A class or function of yours joins by its decorator, before the configuration that names it is read::

        @fv.aggregation.AGGREGATORS.register("mine")
        @dataclass(frozen=True)
        class Mine(Aggregator): ...

    Parameters
    ----------
    field : str
        The key or option that names one, for refusals.
    known : mapping of str
        Those that FedVeil brings.
    """

    def __init__(self, field: str, known: Mapping[str, T]) -> None:
        super().__init__(known)
        self.field = field

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that adds what it is put on.

        Raises
        ------
        FieldError
            If the name is taken.
        """

        def add(thing: T) -> T:
            if name in self:
                raise FieldError(self.field, name, "is taken by another; give it a name of its own")
            self[name] = thing
            return thing

        return add

    def choose(self, name: str) -> T:
        """What has this name.

        Raises
        ------
        FieldError
            With the nearest known names, if nothing has.
        """
        if name not in self:
            raise FieldError(self.field, name, nearest(name, self))
        return self[name]
