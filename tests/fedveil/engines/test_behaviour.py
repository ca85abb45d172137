"""Malicious clients: on their data, on their update, before or around their method's protection."""

from dataclasses import dataclass, replace

import pytest
import torch

from engine_kit import OPTIONS, federation, images, tiny
from fedveil.engines import Behaviour, Execution, Federation, Lockstep, Turn
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import LocalTraining, SequentialTrainer
from fedveil.learning.learner import Learner
from fedveil.methods import build


class Flip(Behaviour):
    def data(self, data, partition, round_):
        return replace(data, y=1 - data.y)


@dataclass
class Crafted(Behaviour):
    """Sends the start plus a fixed vector, and keeps what it was shown."""

    value: float = 1.0
    bypass: bool = False
    omniscient = True

    def __post_init__(self):
        self.turns: list[Turn] = []

    def model(self, turn):
        self.turns.append(turn)
        return turn.start + self.value


class Spy(Crafted):
    """As above, without being shown the others."""

    omniscient = False


def round_of(made, rounds=1):
    """Who was asked in one round, what came back, and its record."""
    courier, kept = made.embedded, []
    collect = courier.collect
    courier.collect = lambda: kept.append(collect()) or kept[-1]
    made.begin(rounds)
    record = made.end()
    return courier.asked, kept[0], record


def sent(collected, partition):
    return collected.replies[partition][0].value


def test_a_flip_of_labels_is_trained_on_and_not_measured_on():
    _, honest, fair = round_of(federation("vanilla", clients=[held(p) for p in range(3)]))
    made = federation("vanilla", clients=[held(p) for p in range(3)], behaviours={1: Flip()})
    _, foul, record = round_of(made)
    same = [torch.equal(sent(honest, p), sent(foul, p)) for p in range(3)]
    assert same == [True, False, True]
    flipped = federation(
        "vanilla",
        clients=[replace(held(p), y=1 - held(p).y) if p == 1 else held(p) for p in range(3)],
    )
    assert torch.equal(sent(round_of(flipped)[1], 1), sent(foul, 1))
    assert torch.equal(made.clients[1].y, held(1).y)
    assert (
        [m["examples"] for m in record.client_metrics]
        == [m["examples"] for m in fair.client_metrics]
        == [6, 6, 6]
    )


def held(partition):
    data = images(partition)
    return replace(data, test_x=data.x, test_y=data.y)


def test_a_crafted_update_is_protected_by_the_clients_method():
    attack = Crafted(100.0)
    asked, collected, _ = round_of(federation("sga-ldp", behaviours={2: attack}))
    start = asked.broadcast.models[0]
    update = sent(collected, 2) - start
    clip, sigma = OPTIONS["sga-ldp"]["clip"], collected.scales[2][0]
    assert sigma > 0
    assert not torch.equal(sent(collected, 2), start + 100.0)
    assert update.norm() < clip + 2 * sigma * len(start) ** 0.5  # 100 a coordinate would be 768
    assert len(collected.scales) == 4


def test_around_the_method_the_vector_arrives_as_it_is_and_no_ledger_speaks_of_it():
    made = federation("sga-ldp", behaviours={2: Crafted(100.0, bypass=True)})
    asked, collected, record = round_of(made)
    assert torch.equal(sent(collected, 2), asked.broadcast.models[0] + 100.0)
    assert [r.kind for r in collected.replies[2]] == ["model"]
    assert sorted(collected.scales) == [0, 1, 3]
    assert record.round.used == (0, 1, 2, 3)
    assert sorted(made.history([record]).guarantees) == ["0", "1", "3"]


def test_who_knows_everything_is_shown_the_honest_updates_before_and_after_protection():
    attack, blind = Crafted(), Spy()
    made = federation("sga-ldp", behaviours={0: attack, 2: blind})
    asked, collected, _ = round_of(made)
    plain = round_of(federation("vanilla"))[1]
    start = asked.broadcast.models[0]
    [turn], [other] = attack.turns, blind.turns
    assert torch.equal(turn.honest, torch.stack([sent(plain, p) - start for p in (1, 3)]))
    assert torch.equal(turn.released, torch.stack([sent(collected, p) - start for p in (1, 3)]))
    assert turn.fellows == (0, 2)
    assert turn.broadcast.public.round == 1
    assert torch.equal(turn.trained, sent(plain, 0))
    assert other.honest.shape == other.released.shape == (0, 59)


def test_without_an_honest_client_there_is_nothing_to_show():
    attack = Crafted()
    round_of(federation("vanilla", n=1, behaviours={0: attack}))
    assert attack.turns[0].honest.shape == (0, 59)


def test_a_behaviour_that_fails_is_a_failed_client():
    class Broken(Behaviour):
        def model(self, turn):
            return turn.trained[:-1]

    _, collected, record = round_of(federation("vanilla", behaviours={1: Broken()}))
    assert "Broken.model" in collected.failed[1]
    assert record.round.used == (0, 2, 3)


def test_an_unknown_partition_is_refused():
    with pytest.raises(FieldError, match="behaviours"):
        federation("vanilla", behaviours={4: Flip()})


def test_in_lockstep_every_federation_has_its_own_malicious_clients():
    layout, local = Layout.from_module(tiny()), LocalTraining()
    module = tiny()
    learner = Learner(module, layout, local, trainer=SequentialTrainer(module, layout, local))

    def made(seed, **options):
        values = {
            "clients": [images(p) for p in range(3)],
            "method": build("vanilla"),
            "execution": Execution(learner=learner),
        }
        return Federation(model=tiny, seed=seed, **values, **options)

    together = [made(0, behaviours={1: Flip()}), made(1)]
    list(Lockstep(together).rounds(2))
    assert torch.equal(together[0].models, made(0, behaviours={1: Flip()}).run(2).models)
    assert torch.equal(together[1].models, made(1).run(2).models)
    assert not torch.equal(together[0].models, made(0).run(2).models)
