"""Roles in a participation audit: attackers and target in the table ``[world]``, and configurations with this table."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fedveil.errors import FieldError, require_choice, require_count
from fedveil_lab.config.experiment import Config
from fedveil_lab.config.sections import Privacy
from fedveil_lab.config.tables import Section

# The world without the target, and the neighbouring relation that it stands for.
WORLDS = {
    "replace": "replace-one",
    "twin": "replace-one",
    "remove": "add/remove",
    "empty": "zero-out",
    "itself": "no relation: both worlds are one",
}


def world_of(relation: str) -> str:
    """Name the first world whose neighbouring relation is `relation`."""
    return next(world for world, stands_for in WORLDS.items() if stands_for == relation)


DRAWN = ("replace", "twin")  # worlds whose stand-in is another client
IN_ITS_PLACE = {
    "replace": "another client of equal size, with everybody's mix of classes",
    "twin": "another client of equal size and with the same classes",
    "remove": "nobody, which changes the number of clients and so the noise",
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

    In "replace" an attack may use the kind of the target's data; in "twin" only the examples themselves. "itself"
    checks the attacks.

    Attributes
    ----------
    target
        the client in question
    colluders
        clients that attack together; the first one asks for all
    stand_in
        replacement of the target if it does not take part
    shadow
        shadow data that the attackers hold of the target
    inside
        whether the target takes part
    base
        seed of everything that all runs share: public and validation examples, natural clients, a server's first model
    anew
        distribute the data again with each run's seed; false: all runs share one distribution
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
        """The first colluder, who attacks on behalf of all."""
        return self.colluders[0]

    def roles(self) -> dict[str, Any]:
        """Return roles and data of attackers and target as plain values, for reports."""
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
        """Make the roles among `n` clients. Default: the first attacks the last, and with three clients two collude.

        Raises
        ------
        FieldError
            If there are fewer than two clients, a client attacks itself, or there are too few colluders.
        """
        if n < 2:
            raise FieldError(
                "data.clients",
                n,
                "client inference needs at least two clients: an attacker and a target",
            )
        for option, partition in (("--target", target), ("--attacker", attacker)):
            if partition is not None and require_count(option, partition, least=0) >= n:
                raise FieldError(option, partition, f"there are clients 0 to {n - 1}")
        target = n - 1 if target is None else target
        attacker = next(i for i in range(n) if i != target) if attacker is None else attacker
        if attacker == target:
            raise FieldError("--attacker", attacker, "is the target itself; give another client")
        for name, value, known in (
            ("--shadow", shadow, SHADOWS),
            ("--out-world", stand_in, WORLDS),
        ):
            require_choice(name, value, known)
        if colluding is None:
            size = min(COLLUDING, n - 1)
        else:
            size = require_count("--colluders", colluding)
        if size > n - 1:
            raise FieldError("--colluders", size, f"there are {n - 1} clients besides the target")
        others = [i for i in range(n) if i not in (target, attacker)]
        colluders = (attacker, *others[: size - 1])
        own = {
            "target": target,
            "colluders": colluders,
            "stand_in": stand_in,
            "shadow": shadow,
            "base": base,
        }
        return cls.model_validate(own)


def _for_one_silo_less(privacy: Privacy) -> Privacy:
    """Return a method's table whose shares are sized for one silo less; a table without `silos` stays as it is."""
    silos = privacy.options.get("silos")
    if not silos:
        return privacy
    return privacy.model_copy(update={"options": {**privacy.options, "silos": silos - 1}})


class AuditedConfig(Config):
    """Configuration of one audited run: `Config` with the table ``[world]``.

    Attributes
    ----------
    world
        attackers, target, and what stands in its place
    """

    data_decide: ClassVar[bool] = False

    world: World

    @classmethod
    def of(cls, config: Config, world: World, **changes: Any) -> "AuditedConfig":
        """Combine a configuration, roles and other changes without checking them again.

        If the target is removed, shares of a trusted sum are sized for one silo less.
        """
        values = {name: getattr(config, name) for name in Config.model_fields}
        if world.stand_in == "remove" and not world.inside:
            values["privacy"] = _for_one_silo_less(config.privacy)
        given = config.model_fields_set | {"world", *changes}
        return cls.model_construct(_fields_set=given, **{**values, **changes, "world": world})

    @property
    def data_seed(self) -> int:
        return self.world.base

    def common(self) -> dict[str, Any]:
        values = super().common()
        values["world"].pop("inside", None)
        return values

    @model_validator(mode="after")
    def _check_world(self) -> "AuditedConfig":
        self.require_playable()
        planned = self.data.planned
        for partition in (self.world.target, *self.world.colluders):
            if planned is not None and not 0 <= partition < planned:
                raise FieldError("world", partition, f"there are clients 0 to {planned - 1}")
        return self

    def require_playable(self) -> None:
        """Refuse tables that cannot stand beside ``[world]``.

        Raises
        ------
        FieldError
            If there is such a table; the message names the first one.
        """
        beside = "does not go together with an audit's world"
        if self.stopping is not None:
            raise FieldError("stopping", "a table", beside)
        if self.malicious is not None:
            raise FieldError("malicious", "a table", beside)
        if self.model.options.get("cached"):
            raise FieldError("model.cached", True, f"{beside}: leave it out there")
