"""A hostile server's means, and two nodes whose data differ in one record.

Both nodes get the same messages and draw from the same stream of noise. Whatever the server sees of them, apart from
the protected vector itself, must be the same to the bit; so must what their ledgers were charged.
"""

import shutil
import tempfile

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import strategies as st
from torch import nn

from fedveil.accounting import OPEN, LeakageFilter, Ledger, Limits, ParticipationFilter, Policy
from fedveil.engines import Budgets, Execution, Federation, Shared
from fedveil.engines.flower.records import CONFIG, HELLO, Memory, write_broadcast
from fedveil.engines.lifetime import LifetimeLedger
from fedveil.engines.messages import PUBLIC
from fedveil.flower import (
    FACTS,
    begin_ledger,
    privacy_mod,
    read_broadcast,
    to_arrays,
    training_source,
    write_facts,
)
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer, Trained
from fedveil.learning.learner import Learned, Learner
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Broadcast, PublicFacts, build


class Two(nn.Module):
    """Two layers of three parameters."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(3, 1, bias=False) for _ in range(2))

    def forward(self, x):
        return self.a(x[:, :3]) + self.b(x[:, 3:])


def module():
    return Two()


LAYOUT = Layout.from_module(module())
D = LAYOUT.size
CLIP = 1.0

METHODS = {
    "group": build("group", noise_multiplier=3.0),
    "group, public radius": build("group", noise_multiplier=3.0, radius=1.0),
    "fedre": build("fedre", clip=CLIP),
    "fedre, public scores": build("fedre", scores="public", epsilon=2.0, clip=CLIP),
    "sga-ldp": build("sga-ldp", clip=CLIP),
    "sga-ldp, released": build("sga-ldp", similarity="released", clip=CLIP),
    "sga-ldp, static": build("sga-ldp", epsilon_min=1.0, epsilon_max=1.0, clip=CLIP),
    "record": build(
        "record", examples=2, noise_multiplier=2.0, rounds=6, relation="add/remove", clip=CLIP
    ),
    "record-sum": build(
        "record",
        sum="trusted",
        examples=2,
        noise_multiplier=2.0,
        relation="add/remove",
        clip=CLIP,
        silos=2,
    ),
    "person": build(
        "record",
        unit="person",
        people=2,
        records_per_person=5,
        noise_multiplier=2.0,
        rounds=6,
        relation="add/remove",
        clip=CLIP,
    ),
}
# proven, with a sensitivity: of two clipped updates, of all layers together, of one record or person in a step at .1
FARTHEST = {
    "fedre, public scores": 2 * CLIP * 2**0.5,
    "sga-ldp, released": 2 * CLIP,
    "sga-ldp, static": 2 * CLIP,
    "record": 0.1 * CLIP / 2,
    "record-sum": 0.1 * CLIP / 2,
    "person": 0.1 * CLIP / 2,
}
BUDGETS = {
    "none": {},
    "participations": {"budget": lambda p: ParticipationFilter(3)},
    "leakage": {"budget": lambda p: LeakageFilter(5.0)},
    "policy": {
        "policy": Policy(
            trust=("local", "trusted sum"),
            release=Limits(mu=2.0),
            total=Limits(mu=3.0, record_mu=1.0, person_mu=1.0, leakage=40.0, participations=4),
            distance=1.0,
            hypotheses_apart=10.0,
        )
    },
}

# a budget that charges by earlier releases refuses by them too, and these differ between the nodes
ADAPTIVE = {"sga-ldp, released": ["none", "participations"]}

COMMON = torch.tensor([[1.0, 0.5, -1.0, 0.2, 0.3, 0.0], [0.1, -0.4, 0.7, 1.0, -1.0, 0.0]])
RECORD = torch.tensor(
    [[0.3, 0.2, 0.1, -0.2, 0.5, 40.0]]
)  # the last coordinate is that of the one record alone
NEIGHBOURS = (COMMON, torch.cat([COMMON, RECORD]))


class Deployed(ReproducibleSource):
    """The stream of a deployment, held fixed."""

    kind, deployable = "secure", True

    def child(self, *key):
        return Deployed(self._seed, _key=(*self._key, *key))


def trainer_of(method):
    """What trains with the noise inside, if the method wants that."""
    noisy = METHODS[method].noisy
    local = LocalTraining(lr=0.1, loss="mse")
    return None if noisy is None else PrivateTrainer(module(), LAYOUT, local, noisy.noisy_steps)


def fit_noisily(trainer, models, x, source, key):
    """What `fit` does, with the noise inside; code outside the trainer has run before.

    A row is a person's, who has one image, or where she is in one of two nodes alone four.
    """
    person = torch.arange(len(x))
    if trainer.noisy.images:
        more = len(COMMON) + torch.zeros(3 * (len(x) > len(COMMON)), dtype=torch.int64)
        person = torch.cat([person, more])
        x = torch.cat([x, x[more] * torch.tensor([[-1.0], [1e3], [1e-3]])[: len(more)]])
    [found] = trainer.train_noisily(
        models, [ClientData(x, torch.ones(len(x), 1), person=person)], [key], [source]
    )
    return found


class Died(BaseException):
    """The node's process ends: nothing catches it."""


def fit(models, x, raises, dies=False):
    """Choose a hypothesis and take one step of least squares on it; overflows and raises where data and models say so.

    Returns
    -------
    tuple
        Model [d], chosen index, loss, layer scores.
    """
    if dies:
        raise Died
    y = torch.ones(len(x))
    losses = [((x @ w - y) ** 2).mean() for w in models]
    known = [j for j, v in enumerate(losses) if v == v]
    if not known:
        raise ValueError(f"no loss on {x.tolist()}")
    chosen = min(known, key=lambda j: losses[j])
    start = models[chosen]
    gradient = 2 * (x.T @ (x @ start - y)) / len(x)
    if raises and not torch.isfinite(gradient).all():
        raise FloatingPointError(f"the gradient of {x.tolist()} is {gradient.tolist()}")
    scores = {"a": float(gradient[:3].abs().sum()), "b": float(gradient[3:].abs().sum())}
    return start - 0.1 * gradient, chosen, float(losses[chosen]), scores


# ---- what the server may send

SPECIAL = [
    0.0,
    1.0,
    -1.0,
    0.25,
    7.0,
    1e3,
    1e12,
    1e19,
    -1e19,
    1e30,
    3e38,
    -3e38,
    1e-45,
    float("nan"),
    float("inf"),
]
weights = st.lists(st.sampled_from(SPECIAL) | st.floats(-2, 2, width=32), min_size=D, max_size=D)
tame = st.lists(st.floats(-2, 2, width=32), min_size=D, max_size=D)
# on this edge, training overflows if the one record is there, and only then
edge = st.tuples(tame, st.sampled_from([1e37, 3e38, -3e38, 1e19, -1e30])).map(
    lambda t: [*t[0][:-1], t[1]]
)
kinds = (
    (tame, 1),
    (edge, 1),
    (edge, 1),
    (weights, 1),
    (st.one_of(edge, tame), 2),
    (weights, 2),
    (tame, 3),
)
several = st.one_of(*(st.lists(w, min_size=n, max_size=n) for w, n in kinds))
rounds = st.integers(1, 6)
planned = st.sampled_from([6, 6, 6, 7, 3, 1000])
scores = st.sampled_from(
    [*([(1.0, 3.0)] * 6), (0.0, 0.0), (1e300, 1e-300), (float("nan"), 1.0), (1.0,), None]
)
lies = st.sampled_from(
    [*([{}] * 12), {"dimension": 1}, {"dimension": 10**9}, {"hypotheses": 0}, {"hypotheses": 9}, {"cohort": 0},
     {"round": -1}, {"round": 10**12}, {"rounds": "many"}, {"made up": 1}, {"layer_scores": ["x"]}]
)  # fmt: skip
KEYS = (
    "method",
    "seed",
    "noise-multiplier",
    "epsilon-min",
    "clip",
    "ledger",
    "policy",
    "participations",
    "rounds",
)
proposals = st.dictionaries(
    st.sampled_from(["lr", *(f"privacy.{key}" for key in KEYS)]),
    st.sampled_from(["vanilla", "group", 1, 1e-9, 1e9, "/nowhere"]),
    max_size=2,
)


def request(kind, models, round_, rounds_, scores_, lie):
    """A message of the server's, not necessarily one that FedVeil's own server would send."""
    stack = torch.tensor(models, dtype=torch.float32)
    public = PublicFacts(round=max(round_, 1), rounds=max(rounds_, 1), cohort=2, dimension=D)
    content = write_broadcast(Broadcast(models=stack, public=public), LAYOUT)
    told = {} if scores_ is None else {"layer_scores": list(scores_)}
    content[PUBLIC] = ConfigRecord({**content[PUBLIC], **told, **lie})
    return Message(content, 99, kind)


# ---- a node under Flower


class FlowerNode:
    """One data set behind the privacy mod, over runs, restarts and deaths."""

    def __init__(self, x, method, budget, lifetime):
        self.x, self.name, self.trained, self.raises, self.dies = x, method, [], False, False
        self.folder = tempfile.mkdtemp() if lifetime else None
        if lifetime:
            begin_ledger(self.folder, 2, by="the harness", head=f"{self.folder}/head")
        self.mod = privacy_mod(
            LAYOUT,
            METHODS[method],
            source=Deployed(0),
            ledger=self.folder or "run",
            head=self.folder and f"{self.folder}/head",
            trainer=trainer_of(method),
            tell=self._tell,
            **BUDGETS[budget],
        )
        self.run, self.config, self.contexts = 1, {}, {}

    @property
    def keeps_its_ledger(self):
        return self.folder is not None

    def _tell(self, partition, round_, error):
        self.failed = True

    @property
    def context(self):
        if self.run not in self.contexts:
            self.contexts[self.run] = Context(self.run, 99, {"partition-id": 2}, RecordDict(), {})
        found = self.contexts[self.run]
        found.run_config.clear()
        found.run_config.update(self.config)
        return found

    def forget(self):
        """The node restarts, and what Flower kept for it is gone; without a lifetime ledger its budgets are too."""
        if self.folder is not None:
            self.contexts.clear()

    def ask(self, message):
        """What the server sees of the answer, the vector apart, and the vector."""
        self.failed = False
        try:
            reply = self.mod(message, self.context, self._train)
        except Died:
            return "died", None
        if reply.has_error():
            return ("error", reply.error.code, reply.error.reason), None
        shown, vector = {}, None
        for name, record in reply.content.items():
            if isinstance(record, ArrayRecord):
                shown[name] = [
                    (n, a.dtype, tuple(a.shape), a.stype, len(a.data)) for n, a in record.items()
                ]
                vector = torch.cat(
                    [torch.from_numpy(a.numpy()).reshape(-1) for a in record.values()]
                )
            else:
                shown[name] = sorted(record.items())
        return sorted(shown.items()), vector

    def _train(self, message, context):
        self.trained.append((self.run, int(message.content[CONFIG]["server-round"])))
        if message.metadata.message_type != "train":
            return Message(
                RecordDict({"metrics": MetricRecord({"loss": float(self.x.sum())})}),
                reply_to=message,
            )
        models = read_broadcast(message.content, LAYOUT).models
        model, chosen, loss, scored = fit(models, self.x, self.raises, self.dies)
        noised, private = None, trainer_of(self.name)
        if private is not None:
            found = fit_noisily(private, models, self.x, training_source(), (0,))
            model, noised = found.model, found.noised
        content = RecordDict(
            {"arrays": to_arrays(LAYOUT, model), FACTS: write_facts(chosen, scored, noised)}
        )
        content["metrics"] = MetricRecord({"num-examples": len(self.x), "train_loss": loss})
        return Message(content, reply_to=message)

    def spent(self):
        """Everything in the ledger that may not depend on the one record."""
        return list(map(_charged, self.entries()))

    def entries(self):
        if self.folder is not None:
            with LifetimeLedger(self.folder, 2, str(self.run), head=f"{self.folder}/head") as found:
                return list(found.ledger.all_entries)
        runs = sorted(self.contexts.items())
        return [e for run, c in runs for e in Memory(c).ledger(str(run), 2).entries]

    def close(self):
        if self.folder is not None:
            shutil.rmtree(self.folder)


def _charged(entry):
    spend = entry.spend
    # a heuristic's scale follows private values; an adaptive charge follows earlier releases, which the server has seen
    public = spend.guarantee.status != "heuristic" and spend.charge is None
    cost = (
        spend.guarantee,
        spend.mechanism,
        spend.sensitivity,
        spend.leakage,
        spend.scale if public else (),
    )
    return entry.key, entry.attempt, entry.digest == OPEN, entry.source, entry.rounds, cost


# ---- a client of the embedded engine


class _Learner(Learner):
    """Trains on the node's data, whatever the engine hands it."""

    def __init__(self, node):
        super().__init__(module(), LAYOUT, LocalTraining(), trainer=trainer_of(node.name))
        self.node = node

    def learn(self, models, clients, keys, needs=frozenset(), sources=()):
        return [
            self._one(models, key, source)
            for key, source in zip(keys, sources or (None,), strict=True)
        ]

    def _one(self, models, key, source):
        node = self.node
        node.trained.append((node.run, key[1]))
        try:
            model, chosen, loss, scored = fit(models, node.x, node.raises, node.dies)
        except Exception as error:
            return error
        if self.private_trainer is not None:
            return Learned(fit_noisily(self.private_trainer, models, node.x, source, key))
        return Learned(Trained(model, len(node.x), loss), chosen, scored)


class EmbeddedNode:
    """The same data set in a federation, whose models and rounds the adversary sets."""

    def __init__(self, x, method, budget, lifetime):
        self.x, self.name, self.trained, self.raises, self.dies = x, method, [], False, False
        self.run, self.lines, self.budget = 1, [], BUDGETS[budget]
        self.config, self.folder = {}, ""
        self.federation = self._begin({})

    keeps_its_ledger = True

    def _begin(self, states):
        def ledgers(party):
            if party == "server":
                return Ledger("run", party), lambda line: None
            return Ledger.parse("run", party, list(self.lines)), self.lines.append

        zero = torch.zeros(1, dtype=torch.int64)
        nothing = ClientData(torch.zeros(1, 1), zero, person=zero)
        federation = Federation(
            model=module,
            clients=[nothing]
            * (2 if self.name == "record-sum" else 1),  # a sum is sized for its silos; one is asked
            method=METHODS[self.name],
            execution=Execution(learner=_Learner(self), ledgers=ledgers, run_id="run"),
            shared=Shared(public_data=nothing),
            source=Deployed(0),
            budgets=Budgets(clients=self.budget.get("budget"), policy=self.budget.get("policy")),
        )
        federation.parties.resume(states)
        return federation

    def forget(self):
        """The process restarts: the ledger stays, what left last is lost."""
        self.federation = self._begin(self.federation.client_states())

    def ask(self, message):
        try:
            broadcast = read_broadcast(message.content, LAYOUT)
        except Exception as error:
            return ("unreadable", type(error).__name__, str(error)), None
        if message.metadata.message_type != "train" or HELLO in message.content:
            return "nothing but training is asked for in this engine", None
        try:
            courier = self.federation.embedded
            courier.ask(broadcast, [0])
            if courier.asked.refused:
                return ("refused", courier.asked.refused[0]), None
            answers = courier.collect()
        except Died:
            self.forget()
            return "died", None
        except Exception as error:
            return ("error", type(error).__name__, str(error)), None
        if 0 not in answers.replies:
            return ("failed", answers.failed[0]), None
        self.failed = bool(answers.zeroed)
        released = answers.replies[0]
        return [(r.kind, r.name, r.value.dtype, tuple(r.value.shape)) for r in released], released[
            0
        ].value

    def spent(self):
        return list(map(_charged, self.entries()))

    def entries(self):
        return self.federation.party(0).ledger.entries

    def close(self):
        pass
