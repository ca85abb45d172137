"""Invert client answers that a server stored, and measure how well the images behind them are recovered."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedveil.accounting import Spend
from fedveil.errors import FieldError
from fedveil.methods import Broadcast, PublicFacts
from fedveil_lab.attacks import Received
from fedveil_lab.attacks.inversion import INVERSIONS, Inverted, compare_inversion
from fedveil_lab.attacks.inversion.knowledge import Captured, ServerKnowledge, defence_of
from fedveil_lab.games.inversion import ONE, SEVERAL
from fedveil_lab.games.recorded.stored import Stored

RECORDED = "recorded"
MOST = 8  # examples behind an answer that is attacked: of larger batches little is left, and attacks take hours
UNDEFENDED = "whether the attack would succeed without the noise is not known from one run; fedveil audit plays it"


def inverted(stored: Stored, releases: int, names: Sequence[str] = ()) -> Inverted:
    """Attack the stored answers of the clients with the fewest examples.

    Parameters
    ----------
    stored : Stored
        The recorded run.
    releases : int
        Largest number of attacked answers.
    names : sequence of str
        Names from `INVERSIONS`. Default: those that suit the number of examples.

    Raises
    ------
    FieldError
        If no answers are stored, or the examples are not images.
    """
    if not stored.received:
        accepted = 'are not stored, and a global model alone is no update of one site: ServerFolder(..., keep=["updates"])'
        raise FieldError("updates", 0, accepted)
    shape = stored.setup.dealt.dataset.input_shape
    if len(shape) != 3:
        raise FieldError("data.name", stored.setup.config.data.name, "inversion is of images")
    clients = stored.setup.clients

    def size(one: Received) -> tuple[int, int]:
        return clients[one.partition].examples, one.round

    order = sorted(stored.received, key=size)
    chosen = [one for one in order if clients[one.partition].examples <= MOST][:releases]
    if not chosen:
        fewest = clients[order[0].partition].examples
        accepted = f"stand behind every stored answer, and attacks are of at most {MOST}: that they fail there says nothing"
        raise FieldError("examples", fewest, accepted)
    captured = [_captured(stored, one) for one in chosen]
    if not names:
        names = ONE
        if {one.known.examples for one in captured} != {1}:
            names = SEVERAL
    attacks = [INVERSIONS[name]() for name in names]
    found = compare_inversion({RECORDED: captured}, attacks, undefended=RECORDED)
    judged = []
    for verdict in found.verdicts:
        notes = [*verdict.notes, UNDEFENDED]
        judged.append(replace(verdict, without_defence=None, valid=None, notes=notes))
    return replace(found, verdicts=tuple(judged))


def _captured(stored: Stored, received: Received) -> Captured:
    """Combine an answer with what the server knows, and with the true images to judge by."""
    setup = stored.setup
    data = setup.clients[received.partition]
    pixels = 0.0, 1.0
    if float(setup.dealt.dataset.x.min()) < 0:
        pixels = -1.0, 1.0
    known = ServerKnowledge(
        model=setup.learner.model,
        layout=setup.learner.layout,
        shape=tuple(data.x.shape[1:]),
        examples=data.examples,
        pixels=pixels,
        reference=_reference(stored, received.partition),
        **defence_of(setup.made(), received.partition, _spent(stored, received)),
    )
    return Captured(received, known, data)


def _spent(stored: Stored, received: Received) -> Spend | None:
    """Return the privacy cost of a client's round by its public quote; None without a quote."""
    setup = stored.setup
    public = PublicFacts(
        round=received.round,
        rounds=setup.config.rounds,
        cohort=setup.cohort,
        dimension=setup.learner.layout.size,
    )
    side = setup.method.client
    quoted = side.quote(Broadcast(models=received.starts, public=public), side.init())
    if isinstance(quoted, Spend):
        return quoted
    return None


def _reference(stored: Stored, partition: int) -> Tensor | None:
    """Return the held-out images of another client; None if there are none."""
    for other, client in enumerate(stored.setup.clients):
        if other != partition and client.test_x is not None and len(client.test_x):
            return client.test_x
    return None
