"""Several silos of a trusted sum, and a server that asks rounds again, of some of them, in any order.

The silos' examples have no gradient, so that shares are noise: whatever two sums have in common shows in the deviation
of their difference. Shares that were stored and handed out again would leave one silo's own noise, z C / sqrt(n - t).
"""

import math

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from scipy import stats
from torch import nn

from fedveil.engines.flower.grid import message_identity
from fedveil.engines.flower.records import Memory, read_releases, write_broadcast
from fedveil.flower import privacy_mod, read_broadcast, training_source, write_trained
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.mechanisms import SecureSource
from fedveil.methods import Broadcast, PublicFacts, build
from hostile_kit import _charged

pytestmark = pytest.mark.flower
N, D = 8, 400
SHARED = {"examples": 4, "noise_multiplier": 1.0, "clip": 0.5}
MODEL = nn.Linear(D, 1, bias=False)
LAYOUT = Layout.from_module(MODEL)


class Silos:
    """Nodes with secure noise behind the mod, and every share that they handed out."""

    def __init__(self, n=N, target=0.0, rate=1.0):
        self.method = build("record", sum="trusted", silos=n, rate=rate, **SHARED)
        local = LocalTraining(lr=1.0, loss="mse")
        self.trainer = PrivateTrainer(MODEL, LAYOUT, local, self.method.noisy.noisy_steps)
        x = torch.zeros(4, D)
        x[0, 0] = 1e3  # the one record's gradient is C long, if its target is no 0
        self.data = [
            ClientData(x, torch.full((4, 1), target if silo == 0 else 0.0)) for silo in range(n)
        ]
        self.contexts, self.shares = [self.context(silo) for silo in range(n)], []
        options = {"source": SecureSource(), "ledger": "run", "trainer": self.trainer}
        self.app = ClientApp(mods=[privacy_mod(LAYOUT, self.method, **options)])

        @self.app.train()
        def train(message, context):
            start, data = (
                read_broadcast(message.content, LAYOUT).models,
                self.data[context.node_config["partition-id"]],
            )
            [found] = self.trainer.train_noisily(start, [data], [(0,)], [training_source()])
            return Message(write_trained(found, LAYOUT), reply_to=message)

    def context(self, silo):
        return Context(1, 7, {"partition-id": silo}, RecordDict(), {})

    def sum(self, silos, round_=1):
        """The shares of these silos, added up; [D] in units of the noise that one share has."""
        models = torch.zeros(1, D)
        facts = PublicFacts(round=round_, rounds=9, cohort=len(self.data), dimension=D)
        total = torch.zeros(D, dtype=torch.float64)
        for silo in silos:
            with message_identity():
                asked = Message(
                    write_broadcast(Broadcast(models=models, public=facts), LAYOUT), 7, "train"
                )
                reply = self.app(asked, self.contexts[silo])
            assert not reply.has_error()
            share = read_releases(reply.content, LAYOUT)[0].value
            assert not any(share.equal(other) for other in self.shares), (
                "a share was handed out twice"
            )
            self.shares.append(share)
            total += share.double()
        noisy = self.method.noisy.noisy_steps
        return total / (noisy.deviation / noisy.denominator)

    def paid(self):
        entries = [Memory(c).ledger("1", silo).entries for silo, c in enumerate(self.contexts)]
        return sum(not _charged(entry)[2] for own in entries for entry in own)


def two_sided(values, deviation):
    statistic = float((values / deviation).square().sum())
    return 2 * min(stats.chi2.cdf(statistic, len(values)), stats.chi2.sf(statistic, len(values)))


ALL = range(N)


@pytest.mark.few(3)
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize(
    "second", [ALL, [s for s in ALL if s != 3], [0], [1, 2], [s for s in ALL if s > 1]]
)
def test_two_sums_of_a_round_differ_by_the_noise_of_both(second, rate):
    silos = Silos(rate=rate)
    first, later = silos.sum(ALL), silos.sum(second)
    assert two_sided(first - later, math.sqrt(N + len(second))) > 1e-6
    if len(second) > 5:
        assert (
            two_sided(first - later, math.sqrt(N - len(second) + 1)) < 1e-6
        )  # of stored shares, at most
    assert silos.paid() == N + len(second)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_asks_whom_it_likes_gets_fresh_noise_and_everything_is_paid_for(seed):
    silos, draw, sums = Silos(), torch.Generator().manual_seed(seed), []
    for _ in range(10):
        some = (torch.rand(N, generator=draw) < 0.7).nonzero()[:, 0].tolist() or [0]
        round_ = int(torch.randint(1, 4, (), generator=draw))
        sums.append((silos.sum(some, round_), len(some)))
    assert silos.paid() == len(silos.shares)
    for i, (one, n) in enumerate(sums):
        for other, m in sums[:i]:
            assert two_sided(one - other, math.sqrt(n + m)) > 1e-7
            assert two_sided(one + other, math.sqrt(n + m)) > 1e-7


@pytest.mark.slow
def test_a_record_is_not_told_by_two_sums_beyond_what_they_cost():
    """Of stored shares the difference would be one silo's: it would be right in 295 games, where 228 are promised."""
    right, games, n = 0, 300, 20
    for game in range(games):
        silos = Silos(n, target=1e9 * (game % 2))
        first, second = silos.sum(range(n)), silos.sum(range(1, n))
        moved = SHARED["clip"] / silos.method.noisy.noisy_steps.deviation
        right += (float((first - second)[0]) > moved / 2) == bool(game % 2)
    promised = stats.norm.cdf(math.sqrt(2) / SHARED["noise_multiplier"] / 2)
    print(f"trusted sum asked twice: right {right} of {games}, {games * promised:.0f} are promised")
    assert stats.binom.sf(right - 1, games, promised) > 1e-6
    assert right > 150  # it plays for the record's side: the sign is the gradient's
