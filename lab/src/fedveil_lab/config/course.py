"""Tables that set the course of a run (pretraining, early stopping, noise source), and ``[compare]``."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedveil.checks import Count
from fedveil.engines import EarlyStopping
from fedveil.errors import FieldError
from fedveil.mechanisms import ReproducibleSource, SecureSource, Source
from fedveil.methods import Validation, formerly
from fedveil_lab.config.tables import Section, fields_of


class Pretraining(Section):
    """``[pretraining]``: the server trains the first model on its validation examples, with the settings of ``[local]``.

    Attributes
    ----------
    epochs
        passes over the validation examples, at least 1
    """

    section: ClassVar[str] = "pretraining"

    epochs: Count


class Stopping(Section):
    """``[stopping]``: a share of the clients never trains; the run ends when their loss no longer falls.

    Attributes
    ----------
    clients
        share of the clients that never train, between 0 and 1
    patience
        validations without a better loss after which the run ends; at least 1
    every
        rounds between two validations; at least 1
    sample
        validation clients asked at a time; left out: all
    min_delta
        least fall of the loss that counts as better, in units of the loss (nothing to do with the promise's delta)
    losses
        noised, at a cost, or in the clear, without a promise to those clients
    noise_multiplier
        z: deviation of a loss's noise over its range; above 0
    loss_range
        declared largest loss, in units of the loss: losses are cut to it; never read off private losses
    releases
        losses that one client releases at most; at least 1
    """

    clients: float
    patience: int = 5
    every: int = 1
    sample: int | None = None
    min_delta: float = 0.0
    losses: Literal["noised", "public"] = "noised"
    noise_multiplier: float = 5.0
    loss_range: float = 3.0
    releases: int = 20

    @model_validator(mode="after")
    def _check(self) -> "Stopping":
        if not 0 < self.clients < 1:
            raise FieldError(
                "stopping.clients",
                self.clients,
                "must be a share of the clients above 0 and below 1",
            )
        self.build()
        return self

    def build(self) -> EarlyStopping:
        """Make the early-stopping rule."""
        with fields_of("stopping"):
            values = self.model_dump(exclude={"clients"})
            how = {
                key: values.pop(key)
                for key in ("losses", "noise_multiplier", "loss_range", "releases")
            }
            # each example is dealt out once, so equal rows are different records
            return EarlyStopping(**values, validation=Validation(**how), allow_equal_rows=True)


class Randomness(Section):
    """``[source]``: reproducible noise for experiments, or secure noise to deploy.

    Attributes
    ----------
    kind
        reproducible noise for experiments (whoever knows the seed knows the noise), or secure noise
    seed
        seed of the noise alone, for other noise in the same training; default: the run's seed
    """

    kind: Literal["reproducible", "secure"] = "reproducible"
    seed: int | None = None

    @model_validator(mode="after")
    def _check(self) -> "Randomness":
        if self.kind == "secure" and self.seed is not None:
            raise FieldError("source.seed", self.seed, "secure noise has no seed; leave it out")
        return self

    def build(self, seed: int) -> Source:
        """Make the noise source of a run with this seed."""
        if self.seed is None:
            own = seed
        else:
            own = self.seed
        if self.kind == "reproducible":
            return ReproducibleSource(own)
        return SecureSource()


class Setting(BaseModel):
    """One entry of ``[compare] settings``: a label, and the keys that differ from ``[privacy]`` and ``[local]``.

    Parameters of ``[privacy]`` are kept if the method is the same, or if both methods trust the server.

    Attributes
    ----------
    label
        names the setting
    match_sigma_of
        label of an earlier setting whose average sigma is taken: the noise multiplier follows from it
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    label: str = ""
    match_sigma_of: str = ""

    @property
    def overrides(self) -> dict[str, Any]:
        """Return this setting's keys for ``[privacy]``."""
        return {key: value for key, value in (self.model_extra or {}).items() if key != "local"}

    @property
    def local(self) -> Any:
        """Return this setting's keys for ``[local]``; training with noisy steps needs its own learning rate."""
        return (self.model_extra or {}).get("local", {})


class Comparison(Section):
    """``[compare]``: the settings that `fedveil compare` runs side by side.

    Attributes
    ----------
    settings
        settings: a label, keys of [privacy] that differ, and a table `local` of [local]'s
    equal_sigma
        add global DP at the average sigma of metric privacy
    sweep
        lists of values by parameter of [privacy]; a setting runs at each combination of its method's parameters
    """

    settings: Annotated[tuple[Setting, ...], Field(strict=False)] = ()
    equal_sigma: bool = False
    sweep: dict[str, Annotated[tuple[Any, ...], Field(strict=False)]] = Field(default_factory=dict)

    def differing(self) -> dict[str, Any]:
        values = super().differing()
        return {
            **values,
            **(
                {"settings": [formerly(one) for one in values["settings"]]}
                if "settings" in values
                else {}
            ),
        }
