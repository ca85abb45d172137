"""A node in a folder, messages of a server, and app bundles in memory."""

import hashlib
import os
import textwrap
import zipfile
from io import BytesIO

import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.run import Run

from fedveil.engines.flower.records import from_arrays, write_broadcast
from fedveil.layout import Layout
from fedveil.methods import Broadcast, PublicFacts
from fedveil.node.site import begin_site

LAYOUT = Layout.from_shapes({"weight": (3, 2), "bias": (3,)})
GROUP = {"privacy.method": "group"}
SECRET = "patient-4711"
HEAD = """
import os, sys
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
"""
PLAIN = """
app = ClientApp()

def raw(message, value=42.0):
    arrays = {n: torch.full(tuple(a.shape), value) for n, a in message.content["arrays"].items()}
    metrics = MetricRecord({"num-examples": 7, "loss": value})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

@app.train()
def train(message, context):
    return raw(message)

@app.evaluate()
def evaluate(message, context):
    return raw(message)

@app.query()
def query(message, context):
    return raw(message)
"""


def bundle(client=PLAIN, publisher="tests", name="study", **files):
    """A bundle's bytes."""
    pyproject = f"""
    [project]
    name = "{name}"
    version = "1"
    [tool.flwr.app]
    publisher = "{publisher}"
    [tool.flwr.app.components]
    serverapp = "server:app"
    clientapp = "its_client:app"
    """
    held = BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        held_files = {
            "pyproject.toml": textwrap.dedent(pyproject),
            "its_client.py": HEAD + textwrap.dedent(client),
        }
        for path, text in (held_files | files).items():
            archive.writestr(
                zipfile.ZipInfo(path), text
            )  # of one date, so that its hash is always the same
    return held.getvalue()


def hash_of(content):
    return hashlib.sha256(content).hexdigest()


def site(folder, admission, total="participations = 9", top="hypotheses_apart = 10.0"):
    """A node's policy file."""
    head = folder.with_name(f"{folder.name}-head")
    policy = begin_site(folder, head, "ward", "the tests")
    places = f'ledger = "ledgers"\nhead = "{head}"\ndataset = "ward"'
    policy.write_text(f"{top}\n[total]\n{total}\n[node]\n{places}\n{admission}\n")
    return policy


def request(kind="train", round_=1, models=1):
    public = PublicFacts(round=round_, rounds=5, cohort=3, dimension=LAYOUT.size)
    start = torch.linspace(-1, 1, LAYOUT.size).expand(models, -1)
    return Message(write_broadcast(Broadcast(models=start, public=public), LAYOUT), 1, kind)


def context(run_config=None, state=None, **own):
    return Context(
        1, 99, {"partition-id": 2, **(own or GROUP)}, state or RecordDict(), dict(run_config or {})
    )


def run(federation="@here/study", account="roe", number=1):
    found = Run.create_empty(number)
    found.federation_id, found.account_name = federation, account
    return found


def moved(reply):
    """How far the released model is from where 42 everywhere would be."""
    return from_arrays(LAYOUT, reply.content["arrays"]) - 42


def lines(policy):
    return (policy.parent / "ledgers" / "ward.jsonl").read_text().count("\n") - 1


def can_isolate(tmp):
    from fedveil.errors import FedVeilError
    from fedveil.node.isolation import require_isolation

    try:
        require_isolation(tmp)
    except FedVeilError:
        return False
    return os.name == "posix"
