"""An operator's rehearsal: the site's own training runs once on its own data, and nothing is released."""

import sys

import pytest

from fedveil.node.site import check_site, rehearsed
from node_kit import HEAD, PLAIN, lines, site

pytestmark = pytest.mark.flower
MOD = """
from fedveil.flower import privacy_mod
from fedveil.layout import Layout
from fedveil.methods import build
L = Layout.from_shapes({'weight': (3, 2), 'bias': (3,)})
app = ClientApp(mods=[privacy_mod(L, build('group', noise_multiplier=0.01))])
"""
TRAINED = PLAIN.replace("app = ClientApp()", MOD)


@pytest.fixture
def played(tmp_path, monkeypatch):
    """The client's text, and configurations -> what the rehearsal finds."""

    def play(text, node="partition-id=0", told="", admission='client = "own_client:app"'):
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "own_client.py").write_text(HEAD + text)
        monkeypatch.syspath_prepend(str(tmp_path / "code"))
        monkeypatch.delitem(sys.modules, "own_client", raising=False)
        policy = site(tmp_path / "node", admission)
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        found = rehearsed(policy.parent, node, told)
        after = {
            p: p.read_bytes()
            for p in tmp_path.rglob("*")
            if p.is_file() and "__pycache__" not in p.parts
        }
        assert after == before
        assert lines(policy) == 0
        return found

    return play


def test_training_that_works_is_said_to(played):
    assert played(TRAINED).binds == "yes"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "def raw(message, value=42.0):\n",
            "def raw(message, value=42.0):\n    raise OSError('no ward.csv')\n",
            "ward.csv",
        ),
        ("tuple(a.shape), value)", "tuple(a.shape), float('nan'))", "finite"),
        ("tuple(a.shape), value)", "(7,), value)", "weight"),
        ("torch.full(tuple(a.shape), value)", "a", "learned nothing"),
        ('"arrays": ArrayRecord(arrays), ', "", "without a model"),
    ],
)
def test_a_bug_that_a_server_could_not_tell_is_told_to_the_operator(played, old, new, why):
    text = TRAINED.replace(old, new)
    assert text != TRAINED
    found = played(text)
    assert found.binds == "no"
    assert why in found.why


def test_what_a_server_tells_can_be_given(played):
    text = TRAINED.replace(
        "return raw(message)", "return raw(message, value=message.content['config']['lr'])"
    )
    assert played(text, told="lr=0.5").binds == "yes"


def test_configurations_are_refused_by_their_place(played):
    found = played(TRAINED, node="partition-id=zero")
    assert found.binds == "no"
    assert "--node-config" in found.why


@pytest.mark.parametrize(
    ("text", "admission", "why"),
    [(TRAINED, "apps = []", "client"), (PLAIN, 'client = "own_client:app"', "privacy_mod")],
)
def test_code_that_is_not_the_operators_or_shares_nothing_known_is_not_rehearsed(
    played, text, admission, why
):
    found = played(text, admission=admission)
    assert found.binds == "no"
    assert why in found.why


def test_a_check_without_it_runs_no_training(tmp_path, monkeypatch):
    (tmp_path / "own_client.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = site(tmp_path / "node", 'client = "own_client:app"')
    assert "rehearsal" not in {one.what for one in check_site(policy.parent)}


BUFFERED = """
from torch import nn
from fedveil.flower import privacy_mod
from fedveil.layout import Layout
from fedveil.methods import build


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    net[2].bias.requires_grad_(False)
    return net


L = Layout.from_module(network(), buffers="keep")
app = ClientApp(mods=[privacy_mod(L, build('group', noise_multiplier=0.01))])


@app.train()
def train(message, context):
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    assert net[1].running_var.eq(1).all()
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, net.parameters()), lr=0.5)
    (net(torch.eye(2)) - torch.ones(2, 1)).square().mean().backward()
    optimizer.step()
    metrics = MetricRecord({"num-examples": 2})
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
"""


def test_what_a_node_keeps_begins_as_the_clients_own_model_has_it_and_is_listed(played):
    found = played(BUFFERED)
    assert found.binds == "yes", found.why
    assert "4 entries" in found.why  # three of BatchNorm, and the frozen bias
    assert "changed 3 (1.running_mean, 1.running_var, 1.num_batches_tracked)" in found.why


def test_an_entry_that_is_neither_shared_nor_kept_is_still_missing(played):
    found = played(BUFFERED.replace("net = network()", "net = nn.Sequential(network())"))
    assert found.binds == "no"
    assert "Missing key" in found.why


LOOPED = """
from torch import nn
from fedveil.flower import app_loop, privacy_mod
from fedveil.layout import Layout
from fedveil.learning import LocalTraining, PrivateTrainer
from fedveil.methods import build

X, Y = torch.randn(20, 2), torch.arange(20) % 3
METHOD = build('record', loop='app', noise_multiplier=1.0, clip=1.0, examples=20, rounds=1, steps=2)
L = Layout.from_module(nn.Linear(2, 3))
TRAINER = PrivateTrainer(nn.Linear(2, 3), L, LocalTraining(lr=0.1), METHOD.noisy.noisy_steps)
app = ClientApp(mods=[privacy_mod(L, METHOD, trainer=TRAINER)])

@app.train()
def train(message, context):
    net = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in app_loop(net, optimizer, (X, Y)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return Message(RecordDict(), reply_to=message)
"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("        optimizer.zero_grad()", "        optimizer.zero_grad()", ""),
        ("optimizer.step()\n", "optimizer.step(); len(x) > 2 and int('ward')\n", "ward"),
        ("in app_loop(net, optimizer, (X, Y)):", "in [(X, Y)]:", "model"),
    ],
    ids=["works", "fails over the data", "without it"],
)
def test_a_loop_of_the_apps_own_is_played(played, old, new, why):
    """In a run its noised steps would leave all the same, and nobody would learn of the error."""
    assert old in LOOPED
    found = played(LOOPED.replace(old, new))
    assert found.binds == ("no" if why else "yes"), found.why
    assert why in found.why
