"""The table ``[malicious]``: which clients attack the model, and how."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator

from fedveil.aggregation import Aggregator
from fedveil.engines import Behaviour
from fedveil.errors import FieldError, nearest, require_choice
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks.poisoning import BEHAVIOURS
from fedveil_lab.config.tables import OpenSection, Option, fields_of, options_of

KNOWN = ("classes", "seed", "rule", "of")  # what a run knows, or the section has a key for
CLASSES = ("source", "target")  # by number or by name


class Behaving(OpenSection):
    """A behaviour of `fedveil_lab.attacks.poisoning` with its own options; classes by number or name.

    Attributes
    ----------
    behaviour
        a behaviour of the list below
    """

    section: ClassVar[str] = "malicious.of"
    chooser: ClassVar[str] = "behaviour"

    behaviour: str

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        require_choice(f"{cls.section}.behaviour", name, BEHAVIOURS)
        options = options_of(BEHAVIOURS[name], without=KNOWN)
        for key in CLASSES:
            if key in options:
                options[key] = Option(int | str, options[key].default)
        return options

    @property
    def takes(self) -> Mapping[str, Option]:
        """Parameters that the behaviour takes."""
        return options_of(BEHAVIOURS[self.behaviour])

    def make(self, names: Sequence[str], known: Mapping[str, Any]) -> Behaviour:
        """Make the behaviour with its options.

        Parameters
        ----------
        names : sequence of str
            Names of the classes, or empty.
        known : mapping
            Values of the run by parameter name; the behaviour's own parameters are picked from them.
        """
        values = {
            key: value for key, value in known.items() if key in self.takes and value is not None
        }
        for key, value in self.options.items():
            values[key] = self._class(key, value, names)
        for key in ("source", "target", "clip"):
            if key in self.takes and key not in values:
                raise FieldError(f"{self.section}.{key}", None, f"{self.behaviour!r} needs it")
        with fields_of(self.section):
            return BEHAVIOURS[self.behaviour](**values)

    def _class(self, key: str, value: Any, names: Sequence[str]) -> Any:
        if key not in CLASSES or not isinstance(value, str):
            return value
        if value not in names:
            if names:
                accepted = nearest(value, names)
            else:
                accepted = "the set's classes have no names: give a number"
            raise FieldError(f"{self.section}.{key}", value, accepted)
        return list(names).index(value)


class Malicious(Behaving):
    """``[malicious]``: what malicious clients do, with that behaviour's own options, and who they are.

    Attributes
    ----------
    clients
        the malicious clients, by partition; fewer than half
    share
        share of the clients that are malicious, drawn by the seed, instead of `clients`
    of
        behaviour that `behaviour` scales or hides, with its options, as a table
    knows_rule
        whether a behaviour that can use the server's rule (alie, ipm) knows it
    acting
        false: the malicious clients behave like the others, so that the summary has the clean rate
    """

    section: ClassVar[str] = "malicious"

    clients: Annotated[tuple[int, ...], Field(strict=False)] | None = None
    share: float | None = None
    of: Behaving | None = None
    knows_rule: bool = False
    acting: bool = True

    @model_validator(mode="after")
    def _check(self) -> "Malicious":
        if (self.clients is None) == (self.share is None):
            raise FieldError(
                "malicious.clients", self.clients, "give either the clients or their share"
            )
        if self.share is not None and not 0 < self.share < 0.5:
            raise FieldError("malicious.share", self.share, "must be above 0 and below a half")
        if self.clients is not None and (
            not self.clients or len(set(self.clients)) < len(self.clients)
        ):
            raise FieldError(
                "malicious.clients", list(self.clients), "must name one client or more, each once"
            )
        for key, given, parameter in (
            ("of", self.of, "of"),
            ("knows_rule", self.knows_rule, "rule"),
        ):
            if given and parameter not in self.takes:
                raise FieldError(
                    f"malicious.{key}", "given", f"{self.behaviour!r} has no use for it"
                )
        if self.of is not None and BEHAVIOURS[self.of.behaviour].omniscient:
            accepted = "sees no honest updates inside another behaviour; let it stand alone"
            raise FieldError("malicious.of.behaviour", self.of.behaviour, accepted)
        return self

    def who(self, n: int, seed: int) -> tuple[int, ...]:
        """Choose the malicious clients among `n` clients; return their numbers in ascending order.

        Raises
        ------
        FieldError
            If a client does not exist, a share gives no client, or half or more would be malicious.
        """
        if self.clients is not None:
            key, value, chosen = "clients", list(self.clients), self.clients
            wrong = [p for p in chosen if not 0 <= p < n]
            if wrong:
                raise FieldError("malicious.clients", wrong[0], f"there are clients 0 to {n - 1}")
        else:
            assert self.share is not None
            key, value = "share", self.share  # type: ignore[assignment]
            generator = torch.Generator().manual_seed(keyed_seed("malicious clients", seed))
            chosen = tuple(torch.randperm(n, generator=generator)[: round(self.share * n)].tolist())
            if not chosen:
                raise FieldError("malicious.share", value, f"is nobody among {n} clients")
        if 2 * len(chosen) >= n:
            accepted = (
                f"makes {len(chosen)} of {n} clients malicious; at most {(n - 1) // 2} can be"
            )
            raise FieldError(f"malicious.{key}", value, accepted)
        return tuple(sorted(chosen))

    def build(
        self,
        classes: int,
        names: Sequence[str],
        seed: int,
        rule: Aggregator | None,
        clip: float | None,
    ) -> Behaviour:
        """Make the behaviour that all malicious clients share.

        Parameters
        ----------
        classes : int
            Number of classes; 0 for regression.
        names : sequence of str
            Names of the classes, or empty.
        seed : int
            The run's seed.
        rule : Aggregator or None
            The server's rule.
        clip : float or None
            The method's clip, used if the behaviour needs a clip and has none.

        Raises
        ------
        FieldError
            If a key does not fit; the message names it.
        """
        takes = set(self.takes)
        if self.of is not None:
            takes |= set(self.of.takes)
        if not classes and "classes" in takes:
            raise FieldError(
                "malicious.behaviour", self.behaviour, "needs classes, and the set has none"
            )
        if self.knows_rule and rule is None:
            raise FieldError("malicious.knows_rule", True, "the method has no rule to know")
        known = {"classes": classes, "seed": seed, "clip": clip}
        if self.of is None:
            inner = None
        else:
            inner = self.of.make(names, known)
        return self.make(names, {**known, "of": inner, "rule": rule if self.knows_rule else None})
