"""What has to hold for a conditional guarantee, in the words of every method, plan and reading."""

from collections.abc import Sequence

from fedveil.accounting.events import Relation
from fedveil.accounting.guarantee import Trust, Unit

# Of every proven local guarantee: a failure is answered with noise, a dead or slow process is not.
LIVENESS = "whether a client's process lives, and how long it takes, does not depend on its data"
NO_FAILURE = "whether a silo fails outside its noisy steps does not depend on one record or person"
KEYS_ARE_SECRET = (
    "the honest sites' keys stay secret for ever, and X25519, HKDF and ChaCha20 are what they are taken for "
    "(docs/secure-sum.md)"
)
SUM_IS_TRUSTED = "whoever receives single shares is trusted to hand on their sum alone"
FIXED_COHORT = "the planned cohort stays the same, and is not sampled, whoever belongs"
BEFORE_ROUNDING = "the server did what its code says: noise did not cover how a machine rounds then (SECURITY.md)"
BEFORE_ORDER = (
    "the records are no images, or the server did what its code says: noise did not cover how a machine rounds where "
    "the memory order of images follows one of them (SECURITY.md)"
)
DOUBTS = (BEFORE_ROUNDING, BEFORE_ORDER)  # of releases of earlier versions
AS_READ = "one {unit} moves what the noise is added to by at most the clip, and every release has noise of its own"


def whole_noise(silos: int, tolerated: int) -> str:
    """Of a trusted sum: how many silos may be missing from its noise."""
    return f"at most {tolerated} of {silos} silos drop out, lie about their noise or pool what they know"


def at_most(count: int, what: str) -> str:
    """Of a promise under add/remove, whose rows are public in number: "examples" or "people"."""
    return f"no silo has more than {count} {what}"


def few_silos(silos: int) -> str:
    """Of a promise for persons: at how many silos one may be."""
    return f"no person is at more than {silos} silo{'s' * (silos > 1)}"


def few_colluding(colluding: int, least: int) -> str:
    """Of a secure sum: how many sites may be dishonest."""
    return f"at most {colluding} of any {least} sites pool what they know with the server or leave out their noise"


def read_off(keys: Sequence[str]) -> tuple[str, ...]:
    """Of a configuration whose keys hold what was read off the private data."""
    same = "would be the same without the one who is protected, though read off the data"
    return (f"{', '.join(keys)} of the configuration {same}",) if keys else ()


def conditions_of(unit: Unit, trust: Trust, relation: Relation) -> tuple[str, ...]:
    """What has to hold wherever a unit is promised something under a trust model, whoever builds it."""
    conditions: tuple[str, ...] = (SUM_IS_TRUSTED,) if trust == "trusted sum" else ()
    if trust == "secure sum":
        conditions = (KEYS_ARE_SECRET,)
    if trust != "central":
        conditions += (LIVENESS,)
    elif relation == "add/remove" and unit == "client":
        conditions += (FIXED_COHORT,)
    return (*conditions, NO_FAILURE) if unit in ("record", "person") else conditions
