"""The tables of those who attack: ``[world]`` asks who takes part, ``[malicious]`` spoils the model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from fedveil.aggregation import Aggregator
from fedveil.engines import Behaviour
from fedveil.errors import FieldError, nearest, require_choice, require_count
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks.poisoning import BEHAVIOURS
from fedveil_lab.config.tables import OpenSection, Option, Section, fields_of, options_of

# The world without the target, and the neighbouring relation that it stands for.
WORLDS = {
    "replace": "replace-one",
    "twin": "replace-one",
    "remove": "add/remove",
    "empty": "zero-out",
    "itself": "no relation: both worlds are one",
}


def world_of(relation: str) -> str:
    """What to play for a neighbouring relation; the first of the worlds that stand for it."""
    return next(world for world, stands_for in WORLDS.items() if stands_for == relation)


DRAWN = ("replace", "twin")  # worlds whose stand-in is another client
IN_ITS_PLACE = {
    "replace": "another client of equal size, with everybody's mix of classes",
    "twin": "another client of equal size and with the same classes",
    "remove": "nobody, so that the number of clients changes, and with it the noise",
    "empty": "a client without examples",
    "itself": "the target itself: every attack has to fail, or the audit is wrong",
}
SHADOWS = {
    "clean": "a tenth of the target's training examples",
    "noisy": "the same, with Gaussian noise of a fifth of the largest pixel value",
    "partial": "the same number, from half of the target's classes alone",
    "public": "as many examples of others, with the target's mix of classes",
}
COLLUDING = 2  # clients that pool what they sent, where there are so many besides the target


class World(Section):
    """``[world]``: the same federation with and without one client.

    Against "replace" an attack may go by the kind of the target's data; against "twin" only by the examples themselves.
    "itself" checks the attacks.

    Attributes
    ----------
    target
        the client in question
    colluders
        clients that ask together whether it takes part, the first one for them all
    stand_in
        what takes the target's place where it does not take part
    shadow
        what the asking clients hold of its data
    inside
        whether the target takes part
    base
        seed of what all runs share: public and validation examples, natural clients, a first model of the server's
    anew
        deal the data out anew under each run's seed; false: all runs share the deal, too
    crafted
        the first colluder pulls the model back to its start instead of sending what it trained
    """

    target: int
    colluders: Annotated[tuple[int, ...], Field(strict=False)]
    stand_in: Literal["replace", "twin", "remove", "empty", "itself"] = "replace"
    shadow: Literal["clean", "noisy", "partial", "public"] = "clean"
    inside: bool = True
    base: int = 0
    anew: bool = True
    crafted: bool = False

    @property
    def attacker(self) -> int:
        """Who asks."""
        return self.colluders[0]

    def roles(self) -> dict[str, Any]:
        """Who attacks whom, with what, for reports."""
        who = {"target": self.target, "attacker": self.attacker, "colluders": self.colluders}
        return {**who, "world": self.stand_in, "shadow": self.shadow}

    @classmethod
    def of(
        cls,
        n: int,
        target: int | None = None,
        attacker: int | None = None,
        stand_in: str = "replace",
        shadow: str = "clean",
        colluding: int | None = None,
        base: int = 0,
    ) -> "World":
        """Check and fill in for n clients: by default the first attacks the last, and two collude if there are three.

        Raises
        ------
        FieldError
            If there are not two clients, one attacks itself, or more are to collude than there are.
        """
        if n < 2:
            raise FieldError("data.clients", n, "client inference needs at least two clients: an attacker and a target")
        for option, partition in (("--target", target), ("--attacker", attacker)):
            if partition is not None and require_count(option, partition, least=0) >= n:
                raise FieldError(option, partition, f"there are clients 0 to {n - 1}")
        target = n - 1 if target is None else target
        attacker = next(i for i in range(n) if i != target) if attacker is None else attacker
        if attacker == target:
            raise FieldError("--attacker", attacker, "is the target itself; give another client")
        for name, value, known in (("--shadow", shadow, SHADOWS), ("--out-world", stand_in, WORLDS)):
            require_choice(name, value, known)
        size = min(COLLUDING, n - 1) if colluding is None else require_count("--colluders", colluding)
        if size > n - 1:
            raise FieldError("--colluders", size, f"there are {n - 1} clients besides the target")
        others = [i for i in range(n) if i not in (target, attacker)]
        colluders = (attacker, *others[: size - 1])
        own = {"target": target, "colluders": colluders, "stand_in": stand_in, "shadow": shadow, "base": base}
        return cls.model_validate(own)


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
        return {k: Option(int | str, o.default) if k in CLASSES else o for k, o in options.items()}

    @property
    def takes(self) -> Mapping[str, Option]:
        """Everything that the behaviour takes."""
        return options_of(BEHAVIOURS[self.behaviour])

    def make(self, names: Sequence[str], known: Mapping[str, Any]) -> Behaviour:
        """The behaviour itself.

        Parameters
        ----------
        names : sequence of str
            Of the classes, or empty.
        known : mapping
            What the run knows, by the behaviour's parameter; those that it does not take are left out.
        """
        given = {key: self._class(key, value, names) for key, value in self.options.items()}
        filled = {key: value for key, value in known.items() if key in self.takes and value is not None}
        missing = [k for k in ("source", "target", "clip") if k in self.takes and k not in {**filled, **given}]
        if missing:
            raise FieldError(f"{self.section}.{missing[0]}", None, f"{self.behaviour!r} needs it")
        with fields_of(self.section):
            return BEHAVIOURS[self.behaviour](**{**filled, **given})

    def _class(self, key: str, value: Any, names: Sequence[str]) -> Any:
        if key not in CLASSES or not isinstance(value, str):
            return value
        if value not in names:
            accepted = nearest(value, names) if names else "the set's classes have no names: give a number"
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
        the behaviour that this one scales or hides, and its options, as a table
    knows_rule
        whether a behaviour that is fitted to the honest updates is fitted to the server's rule, too
    acting
        false: they are measured and behave like the others, for the clean rate
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
            raise FieldError("malicious.clients", self.clients, "give either the clients or their share")
        if self.share is not None and not 0 < self.share < 0.5:
            raise FieldError("malicious.share", self.share, "must be above 0 and below a half")
        if self.clients is not None and (not self.clients or len(set(self.clients)) < len(self.clients)):
            raise FieldError("malicious.clients", list(self.clients), "must name one client or more, each once")
        for key, given, parameter in (("of", self.of, "of"), ("knows_rule", self.knows_rule, "rule")):
            if given and parameter not in self.takes:
                raise FieldError(f"malicious.{key}", "given", f"{self.behaviour!r} has no use for it")
        if self.of is not None and BEHAVIOURS[self.of.behaviour].omniscient:
            accepted = "sees no honest updates inside another behaviour; let it stand alone"
            raise FieldError("malicious.of.behaviour", self.of.behaviour, accepted)
        return self

    def check_flower(self) -> None:
        """Refuse what a client behind Flower's messages cannot do.

        Raises
        ------
        FieldError
            Naming what does not work there.
        """
        if BEHAVIOURS[self.behaviour].omniscient or self.options.get("bypass"):
            why = "sees honest updates" if BEHAVIOURS[self.behaviour].omniscient else "goes around the method"
        elif self.behaviour == "scaling" and "factor" not in self.options:
            why = "counts its fellows (set malicious.factor)"
        elif self.behaviour == "free-rider" and self.options["disguise"] != "none":
            why = "remembers the last broadcast (set malicious.disguise to 'none')"
        else:
            return
        accepted = f"{why}, which needs engine = 'local'"
        raise FieldError("malicious.behaviour", self.behaviour, accepted)

    def who(self, n: int, seed: int) -> tuple[int, ...]:
        """The malicious ones among n clients, ascending.

        Raises
        ------
        FieldError
            If one does not exist, a share is nobody, or half or more would be malicious.
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
            accepted = f"makes {len(chosen)} of {n} clients malicious; at most {(n - 1) // 2} can be"
            raise FieldError(f"malicious.{key}", value, accepted)
        return tuple(sorted(chosen))

    def build(
        self, classes: int, names: Sequence[str], seed: int, rule: Aggregator | None, clip: float | None
    ) -> Behaviour:
        """The behaviour that all malicious clients share.

        Parameters
        ----------
        classes : int
            Of the set; 0 if it has none.
        names : sequence of str
            Theirs, or empty.
        seed : int
            Of the run.
        rule : Aggregator or None
            The server's.
        clip : float or None
            The method's, for a behaviour that needs one and is given none.

        Raises
        ------
        FieldError
            Naming the key that does not fit.
        """
        if not classes and "classes" in {**self.takes, **(self.of.takes if self.of else {})}:
            raise FieldError("malicious.behaviour", self.behaviour, "needs classes, and the set has none")
        if self.knows_rule and rule is None:
            raise FieldError("malicious.knows_rule", True, "the method has no rule to know")
        known = {"classes": classes, "seed": seed, "clip": clip}
        inner = None if self.of is None else self.of.make(names, known)
        return self.make(names, {**known, "of": inner, "rule": rule if self.knows_rule else None})
