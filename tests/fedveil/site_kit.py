"""Sites as separate processes: each has a key file, a policy, a ledger and its head in folders of its own.

A site reads requests from its socket, one pickle each, and writes its answers. What its process holds is in no other;
the server's sees messages alone.
"""

import os
import pickle
import socket
import traceback
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedveil.accounting import Ledger
from fedveil.aggregation import FedAvgM
from fedveil.engines.flower.grid import InProcessGrid, message_identity
from fedveil.engines.flower.records import write_broadcast
from fedveil.engines.lifetime import begin_ledger, read_ledger
from fedveil.engines.messages import PUBLIC
from fedveil.engines.server import ServerParty
from fedveil.engines.site_keys import make_key, read_key
from fedveil.flower import privacy_mod, read_broadcast, training_source, write_trained
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.mechanisms import SecureSource
from fedveil.methods import build, sums
from fedveil.secure import shares

POLICY = """trust = ["secure sum"]
total = {{ record_mu = 5.0, person_mu = 5.0 }}
[sum]
peers = {peers}
least_sites = {least_sites}
colluding = 1
attempts = 3
"""


def silo(seed=0, n=6):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    return ClientData(x, y, person=torch.arange(n) // 2)


def network():
    torch.manual_seed(0)
    return nn.Linear(6, 3)


LAYOUT = Layout.from_module(network())


def method(**values):
    shared = {"examples": 6, "sum": "secure", "noise_multiplier": 2.0, "clip": 0.5, "rounds": 3}
    own = {"least_sites": 3, "lr": 0.5} if values.get("sum", "secure") == "secure" else {}
    return build("record", FedAvgM(momentum=0.5), **{**shared, **own, **values})


def client_app(trained=None, silos=silo, sources=None, **options):
    """A user's own training code behind the mod; `trained` collects the partitions that touched their data."""
    own = options.pop("method", None) or method()
    trainer = PrivateTrainer(network(), LAYOUT, LocalTraining(lr=0.5), own.noisy.noisy_steps)
    app = ClientApp(mods=[privacy_mod(LAYOUT, own, trainer=trainer, **options)])

    @app.train()
    def train(message, context):
        partition = context.node_config["partition-id"]
        if trained is not None:
            trained.append(partition)
        models, data = read_broadcast(message.content, LAYOUT).models, silos(partition)
        source = training_source()
        if sources is not None:
            sources.append(source)
        [found] = trainer.train_noisily(models, [data], [(0,)], [source])
        if found.total is None and "private" in context.node_config:
            note(context.node_config["private"], sent=found.model)
        return Message(write_trained(found, LAYOUT), reply_to=message)

    return app


def set_up(folder: Path, n: int, least_sites=3):
    """Make keys, policies and ledgers of n sites; returns each one's node configuration."""
    publics = [make_key(folder / f"site{i}" / "key").public.hex() for i in range(n)]
    configs = []
    for i in range(n):
        own = folder / f"site{i}"
        peers = [key for j, key in enumerate(publics) if j != i]
        (own / "policy.toml").write_text(POLICY.format(peers=peers, least_sites=least_sites))
        begin_ledger(own / "ledger", i, by="the test", head=own / "head")
        places = {
            "key": own / "key",
            "policy": own / "policy.toml",
            "ledger": own / "ledger",
            "head": own / "head",
        }
        configs.append(
            {"partition-id": i, **{f"privacy.{name}": str(path) for name, path in places.items()}}
        )
    return configs


def note(place, never=(), sent=None):
    """Write into a site's private file what must be in no other process, and what leaves."""
    with Path(place).open("ab") as file:
        pickle.dump(([v.numpy().tobytes() for v in never], sent.numpy().tobytes()), file)


def note_shares(place):
    """Have this process note every share of data: the sum, the sum with its noise, that under some masks, and all."""
    drawn, draw, make = [], shares._mask, sums.share

    def mask(values, key, *, add):
        drawn.append(torch.from_numpy(values.view("int64").copy()))
        draw(values, key, add=add)

    def share(total, *rest):
        drawn.clear()
        sent = make(total, *rest)
        if bool(total.any()):  # not a rehearsal
            note(place, [total, *drawn, total.double(), drawn[0].double()], sent)
        return sent

    shares._mask, sums.share = mask, share


class Nodes:
    """Sites with key files, policies and lifetime ledgers, and what the server sees of them."""

    def __init__(self, folder, n=4, silos=silo, **values):
        self.folder, self.trained, self.sources = folder, [], []
        self.method = method(**values)
        self.configs = set_up(folder, n)
        app = client_app(self.trained, silos, self.sources, method=self.method)
        self.app, self.contexts = app, {}
        self.keys = [read_key(folder / f"site{i}" / "key").public for i in range(n)]
        self.server = ServerParty(self.method, LAYOUT, Ledger("run", "server"), SecureSource())

    def ask(self, partition, broadcast, run=1, **lies):
        """The reply of one site: its content, or the error's code and reason; `lies` are facts as they are sent."""
        content = write_broadcast(broadcast, LAYOUT)
        content[PUBLIC] = ConfigRecord({**content[PUBLIC], **lies})
        with message_identity():
            message = Message(content, 7, MessageType.TRAIN)
            key = (partition, run)
            if key not in self.contexts:
                self.contexts[key] = Context(
                    run, 7, dict(self.configs[partition]), RecordDict(), {}
                )
            reply = self.app(message, self.contexts[key])
        return (reply.error.code, reply.error.reason) if reply.has_error() else reply.content

    def opened(self, roster=None, attempt=0, model=None, **changes):
        """A question; `changes` are to its public facts."""
        keys = self.keys if roster is None else roster
        model = LAYOUT.read(network()) if model is None else model
        broadcast = self.server.open(model[None], 1, 3, 4, keys, attempt)
        return (
            replace(broadcast, public=replace(broadcast.public, **changes))
            if changes
            else broadcast
        )


def spent(folder, i):
    return read_ledger(folder / f"site{i}" / "ledger" / f"{i}.jsonl")[0].all_entries


class ProcessGrid(InProcessGrid):
    """Hands each message to its site's process; `gone` says how many questions a site misses."""

    def __init__(self, configs, **values):
        super().__init__(ClientApp(), configs)
        self.gone, self.seen, self.sites, self._pids = {}, [], {}, []
        for config in configs:
            ours, theirs = socket.socketpair()
            if (pid := os.fork()) == 0:
                serve(theirs, config, values)
            theirs.close()
            self._pids.append(pid)
            self.sites[config["partition-id"]] = ours.makefile("rwb")

    def ask_node(self, message):
        partition = self._partitions[message.metadata.dst_node_id]
        if self.gone.get(partition) and "fedveil.hello" not in message.content:
            self.gone[partition] -= 1
            return Message(Error(5, "node unavailable"), reply_to=message)
        site = self.sites[partition]
        pickle.dump((message.content, message.metadata.message_type), site)
        site.flush()
        answer = pickle.load(site)
        self.seen.append(answer)
        if isinstance(answer, RecordDict):
            return Message(answer, reply_to=message)
        return Message(Error(*answer), reply_to=message)

    def close(self):
        for site in self.sites.values():
            pickle.dump(None, site)
            site.close()
        assert [os.waitpid(pid, 0)[1] for pid in self._pids] == [0] * len(self._pids)


def serve(connection, config, values):
    """Be a site until there is no more to answer; never returns."""
    status = 1
    try:
        torch.set_num_threads(1)
        if "private" in config:
            note_shares(config["private"])
        stream = connection.makefile("rwb")
        with message_identity():
            grid = InProcessGrid(client_app(method=method(**values)), [config])
            [node] = grid.get_node_ids()
            while (asked := pickle.load(stream)) is not None:
                content, kind = asked
                reply = InProcessGrid.ask_node(grid, Message(content, node, kind))
                answer = (
                    (reply.error.code, reply.error.reason) if reply.has_error() else reply.content
                )
                pickle.dump(answer, stream)
                stream.flush()
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)
