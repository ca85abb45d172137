"""A server that searches for the weights under which one record moves the sum most, in both engines.

It begins where an output, or a first layer, is rounding alone (null spaces by SVD, scaled up), while one record is
missing, overflows, raises or has no label; it climbs the gradient of the sum's change, and then whatever raises what
really came out. The same search breaks code that packs a batch without the law, or it would prove nothing.
"""

import json
import os
import subprocess
import sys
from copy import deepcopy
from itertools import product
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fedveil.engines.flower.grid import message_identity
from fedveil.engines.flower.records import write_broadcast
from fedveil.flower import privacy_mod, read_broadcast, training_source, write_trained
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.learning.chains import ByChain
from fedveil.learning.layerwise import ByLayers
from fedveil.learning.per_example import PerExample
from fedveil.learning.traced import ByOperators
from fedveil.methods import Broadcast, PublicFacts, build
from test_rounding import BOUND, CLIP, SETS, Attends, Lots, Own, pictures

pytestmark = pytest.mark.flower
WIDE, HIDDEN, CLASSES = 16, 24, 3
HUGE, BEYOND = (
    1e38,
    1e300,
)  # what one record alone has in its last place; the second is not finite in float32
PLAIN = PerExample.clipped_sum


def dense():
    return nn.Sequential(nn.Linear(WIDE, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, CLASSES))


def normed():
    return nn.Sequential(
        nn.Linear(WIDE, HIDDEN), nn.LayerNorm(HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, CLASSES)
    )


def images():
    """Takes pictures as they are: their memory order is the batch's."""
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES)
    return nn.Sequential(nn.Conv2d(1, 16, 2), nn.Softplus(), nn.Conv2d(16, 3, 2), *pooled)


def head():
    """Persons' means are factored."""
    return nn.Sequential(nn.Linear(WIDE, CLASSES))


class Raises(Own):
    """Raises for one record: one example a call."""

    def __init__(self):
        super().__init__(dense())

    def forward(self, x):
        if x.dtype == torch.float32 and bool((x >= HUGE).any()):
            raise ValueError("out of range")
        return self.layers(x)


NETWORKS = {
    "dense": dense, "normed": normed, "pictures": pictures, "own code": lambda: Own(dense()), "attention": Attends,
    "raising": Raises, "images": images, "head": head,
}  # fmt: skip
SHAPES = {"images": (1, 4, 4)}  # of a record; others are rows
SHARED = {"noise_multiplier": 1.0, "clip": CLIP}
REPLACED = {"relation": "replace-one", **SHARED}
METHODS = {
    "add/remove": lambda n: build("record", examples=n, relation="add/remove", **SHARED),
    "lots": lambda n: build("record", examples=n, relation="add/remove", rate=0.5, **SHARED),
    "replace-one": lambda n: build("record", examples=n, **REPLACED),
    "secure sum": lambda n: build("record", examples=n, sum="secure", least_sites=3, **REPLACED),
    "persons": lambda n: build("record", unit="person", people=n, records_per_person=2, **REPLACED),
}


class Fixed(Lots):
    """A deployment's stream, held fixed; draws are the same for an example, however many there are."""

    kind, deployable = "secure", True

    def child(self, *key):
        return Fixed(self._seed, _key=(*self._key, *key))


# ---- nodes: what they add up, and the rows that it is made of


def lawful(sums, x, y, here, clip, more):
    rows = []

    def listening(way):
        plain = way.__call__

        def computed(*given):
            found = plain(*given)
            rows[:] = found[0].parts()
            return found

        return computed

    with pytest.MonkeyPatch.context() as patch:
        for way in (ByChain, ByLayers, ByOperators):  # one by one nobody is beside anybody
            patch.setattr(way, "__call__", listening(way))
        total, _ = PLAIN(sums, x, y, clip, here, **more)
    return total * (more["grid"] or 1.0), rows


def packed(sums, x, y, here, clip, more):
    """Without the law: the examples that are there, one after another in a batch of their number."""
    return PLAIN(sums, x[here], y[here], clip, **{**more, "lengths": None, "bases": None})[0], []


def rows_of(model, named, x, y):
    def loss(named, one, label):
        return cross_entropy(functional_call(model, named, (one[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(named, x, y)
    return torch.cat([found[name].reshape(len(x), -1) for name in named], 1)


def clipped(rows):
    rows = rows[rows.isfinite().all(1)]
    return ((CLIP / rows.norm(dim=1)).clamp(max=1)[:, None] * rows).sum(0)


class Node:
    """One data set behind a trainer, embedded or behind the mod of a client app, and what its steps computed."""

    def __init__(self, model, method, data, engine, seed):
        self.data, self.source, self.engine = data, Fixed(seed), engine
        self.layout, self.method, self.code = Layout.from_module(model), method, lawful
        self.trainer = PrivateTrainer(
            deepcopy(model), self.layout, LocalTraining(lr=1.0), method.noisy.noisy_steps
        )

    def step(self, weights):
        weights = weights.nan_to_num(0, 3e38, -3e38)  # others are refused, whatever the data
        steps, nothing = [], torch.zeros(len(weights), dtype=torch.float64)

        def watched(sums, x, y, clip, present=None, **more):
            here = torch.ones(len(x), dtype=torch.bool) if present is None else present
            steps.append((nothing, x, y, here, []))  # all of them may raise
            total, rows = self.code(sums, x, y, here, clip, more)
            steps[-1] = (total, x, y, here, [r.contiguous().view(torch.int32) for r in rows])
            return torch.zeros(len(weights), dtype=torch.int64), torch.zeros(1)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PerExample, "clipped_sum", watched)
            getattr(self, self.engine)(weights[None])
        assert len(steps) == 1
        return steps[0]

    def train(self, models, source):
        [found] = self.trainer.train_noisily(models, [self.data], [(0,)], [source])
        assert not isinstance(found, Exception), found
        return found

    def embedded(self, models):
        self.train(models, Fixed(self.source._seed))

    def flower(self, models):
        source = Fixed(self.source._seed)
        app = ClientApp(
            mods=[
                privacy_mod(
                    self.layout, self.method, source=source, ledger="run", trainer=self.trainer
                )
            ]
        )

        @app.train()
        def train(message, context):
            found = self.train(
                read_broadcast(message.content, self.layout).models, training_source()
            )
            return Message(write_trained(found, self.layout), reply_to=message)

        facts = PublicFacts(round=1, rounds=1, cohort=2, dimension=self.layout.size)
        with message_identity():
            asked = Message(
                write_broadcast(Broadcast(models=models, public=facts), self.layout), 7, "train"
            )
            assert not app(asked, Context(1, 7, {"partition-id": 0}, RecordDict(), {})).has_error()


class Game:
    """Two nodes whose data differ in the last record (person): it is missing, overflows, or has another label.

    Of a person one image is missing; what overflows does so in a layer, or when it is read.
    """

    def __init__(self, name, how, n, engine="embedded", changed="missing", seed=0):
        self.draw = torch.Generator().manual_seed(seed)
        self.model, method = NETWORKS[name](), METHODS[how](n)
        gone = changed == "missing" and "add" in method.client.relation
        nothing = (
            changed in ("label", "beyond") and how != "persons"
        )  # such a record counts zero; she has another
        self.within = BOUND * (1 if gone or nothing else 2)
        rows = 2 * n if how == "persons" else n
        x, y = (
            torch.randn(rows, WIDE, generator=self.draw),
            torch.randint(0, 3, (rows,), generator=self.draw),
        )
        x[:, -1] = 0
        person = torch.arange(rows) // 2 if how == "persons" else None
        x2, y2, person2 = x.double(), y.clone(), person
        if gone or (changed == "missing" and how == "persons"):
            x2, y2, person2 = x2[:-1], y2[:-1], person if person is None else person[:-1]
        elif changed == "label":
            y2[-1] = 9
        else:
            x2[-1] *= -3
            x2[-1, -1] = BEYOND if changed == "beyond" else HUGE
        shape = SHAPES.get(name, (WIDE,))
        one, other = (
            ClientData(x.unflatten(1, shape), y, person=person),
            ClientData(x2.unflatten(1, shape), y2, person=person2),
        )
        weights = Layout.from_module(self.model).read(self.model)
        for turn in range(40):  # until a lot has it
            self.nodes = [Node(self.model, method, data, engine, turn) for data in (one, other)]
            first, second = (node.step(weights) for node in self.nodes)
            if not (torch.equal(first[1], second[1]) and torch.equal(first[2], second[2])):
                break

    def moved(self, weights):
        """How far apart the sums are, in C; rows of examples that both have keep their bits."""
        (one, x, y, here, rows), (other, x2, y2, here2, rows2) = (
            node.step(weights) for node in self.nodes
        )
        assert x.shape == x2.shape
        same = (here == here2) & (y == y2) & (x.flatten(1) == x2.flatten(1)).all(1)
        assert 0 < int((~same).sum()) <= 2
        if rows and rows2:  # none where no example has a gradient; then the sum is zero
            assert all(torch.equal(a[same], b[same]) for a, b in zip(rows, rows2, strict=True))
        return float((one - other).norm()) / CLIP

    # ---- the search

    def beginnings(self, draws):
        """Weights that leave rounding alone of the first layer, the last, or both, scaled up."""
        for gain in (1.0, 2.0**12, 2.0**24, 2.0**60):
            for where in ("first", "last", "both", *["products"] * draws):
                yield self.rounding(where, gain)

    def rounding(self, where, gain):
        """SVD finds what is at right angles to all records; two products that cancel leave what a kernel rounds off."""
        model, x, seen = deepcopy(self.model), self.nodes[0].data.x, []
        first, last = (
            next(model.parameters()),
            [m for m in model.modules() if isinstance(m, nn.Linear)][-1],
        )
        last.register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs[0].detach().flatten(0, -2))
        )
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=self.draw))
            if where == "products":
                first.zero_()
            elif where != "last" and first.dim() == 2 and first.shape[1] == WIDE:
                first.copy_(gain * self.null(x, len(first)))
            model(x)
            if where != "first":
                last.bias.zero_()
                last.weight.copy_(gain * self.null(seen[0], CLASSES))
            if where == "products":
                last.weight.zero_()
                for row in last.weight:
                    a, b = torch.randperm(last.in_features, generator=self.draw)[:2]
                    row[a], row[b] = gain * seen[0][0, b], -gain * seen[0][0, a]
        return self.nodes[0].layout.read(model)

    def null(self, rows, count):
        """Weights [count, d] at right angles to rows [n, d], or as nearly as there are any."""
        basis = torch.linalg.svd(rows.double())[2][min(len(rows), rows.shape[1] - 1) :]
        return (
            torch.randn(count, len(basis), generator=self.draw, dtype=torch.float64) @ basis
        ).float()

    def climbed(self, weights, steps=2):
        """Up the gradient of how far the exact sums are apart."""
        layout, worlds = self.nodes[0].layout, [node.data for node in self.nodes]

        def apart(flat):
            named = {b.name: flat[b.start : b.stop].view(b.shape) for b in layout.blocks}
            one, other = (
                clipped(rows_of(self.model, named, w.x.double(), w.y.clamp(max=2))) for w in worlds
            )
            return (one - other).square().sum()

        for _ in range(steps):
            up = grad(apart)(weights.double()).nan_to_num(0, 0, 0)
            weights = weights + (0.3 * weights.norm() * up / up.norm().clamp(min=1e-30)).float()
        return weights

    def search(self, draws=6, tries=20):
        """The most that the server moves the sum by."""
        found = sorted(
            ((self.moved(w), i, w) for i, w in enumerate(self.beginnings(draws))), reverse=True
        )
        found += [(self.moved(w), 99, w) for w in (self.climbed(w) for _, _, w in found[:2])]
        most, _, best = max(found, key=lambda entry: entry[0])
        for _ in range(tries):
            size = 2.0 ** -int(torch.randint(0, 24, (), generator=self.draw))
            other = best * (1 + size * torch.randn(len(best), generator=self.draw))
            now = self.moved(other)
            most, best = (now, other) if now > most else (most, best)
        return most


CHANGES = ("missing", "value", "label", "beyond")


def searched(sizes, draws, tries, names=NETWORKS, methods=METHODS, first=0):
    """(network, method, size) -> the most of what was promised that a server moves the sum by, in turns of engines."""
    found = {}
    for turn, (name, how, n) in enumerate(product(names, methods, sizes), first):
        engine = (
            "embedded" if turn % 2 or how == "secure sum" else "flower"
        )  # whose sites have keys under Flower
        game = Game(name, how, n, engine, CHANGES[turn // 2 % len(CHANGES)], seed=n)
        found[name, how, n] = game.search(draws, tries) / game.within
    return found


THREADS = [*((1, name) for name in NETWORKS), *((2, name) for name in ("dense", "attention"))]


@pytest.mark.few(2)
@pytest.mark.parametrize(("threads", "name"), THREADS)
def test_no_weights_that_a_server_finds_move_the_sum_beyond_the_promise(name, threads):
    """With two threads, a dense network and one of attention; all of them on any instruction set below."""
    turn, before = list(NETWORKS).index(name), torch.get_num_threads()
    how = list(METHODS)[(turn + 3 * threads) % len(METHODS)]
    torch.set_num_threads(threads)
    try:
        found = searched([16], 1, 4, [name], [how], turn + threads)
    finally:
        torch.set_num_threads(before)
    assert 0.3 < max(found.values()) <= 1


BLANKED = [
    ("persons", "missing"),
    ("persons", "beyond"),
    ("replace-one", "beyond"),
    ("secure sum", "beyond"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("how", "changed"), BLANKED)
def test_no_weights_do_where_an_image_is_blanked(how, changed):
    """The rows of all others had other bits: what was blanked came back in another order of memory."""
    game = Game("images", how, 16, changed=changed)
    assert game.search(1, 4) <= game.within


@pytest.mark.parametrize("changed", CHANGES)
def test_no_weights_do_where_means_are_factored(changed):
    game = Game("head", "persons", 16, changed=changed)
    assert 0.3 < game.search(2, 10) / game.within <= 1


@pytest.mark.few(0)
def test_the_same_search_breaks_a_batch_without_the_law():
    def broken(name):
        game = Game(name, "lots", 16)
        for node in game.nodes:
            node.code = packed
        return (
            game.search() > 1.2
        )  # of the promise; above 3 on AVX-512, 1.4 on AMD's AVX2: it rounds by place less

    assert any(map(broken, ("normed", "own code", "attention", "dense")))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("instructions", SETS)
def test_no_weights_do_on_any_instruction_set(instructions, threads):
    sizes = (2, 15, 33, 70) if threads == 1 else (15, 33)
    program = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); import test_optimised as t;"
        f"torch.set_num_threads({threads});"
        f"found = t.searched({sizes}, 2, 8);"
        "print(json.dumps([torch.backends.cpu.get_cpu_capability(), len(found), max(found.values())]))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    environment = {**os.environ, **SETS[instructions], "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kind, games, most = json.loads(done.stdout.splitlines()[-1])
    print(
        f"\n{instructions} ({kind}), threads {threads}: {games} searches, at most {most:.9f} of what is promised"
    )
    assert most <= 1
