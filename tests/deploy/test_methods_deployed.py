"""Each method on a SuperLink and three SuperNodes: the models of the embedded engine, to the bit."""

import sys
from pathlib import Path

import pytest
import torch
from cells import CASES, ROUNDS, SITES, TRAINERS, federation
from chain import Chain, write_app

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
CLIENT = "from cells import client_app\n\napp = client_app({case!r})\n"
SERVER = "from cells import server_app\n\napp = server_app({case!r})\n"


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
        with Chain(tmp_path_factory.mktemp("chain")) as running:
            for partition in range(SITES):
                running.supernode(partition, of=SITES, more="study='cells'")
            yield running


@pytest.mark.parametrize("case", CASES)
def test_a_method_on_three_supernodes_ends_in_the_embedded_bits(case, chain, tmp_path):
    name = f"cell{list(CASES).index(case)}"
    texts = CLIENT.format(case=case), SERVER.format(case=case)
    app = write_app(tmp_path / name, name, *texts)
    found = chain.run(app, tmp_path / f"{name}.json", 900)
    assert found == {"rounds": ROUNDS}
    models = torch.load(tmp_path / f"{name}.json.models")
    expected = federation(case).run(ROUNDS)
    assert torch.equal(models, expected.models)
    if case in TRAINERS:  # the best model by the noised loss of the site that validates
        best = torch.load(tmp_path / f"{name}.json.best")
        assert torch.equal(best, expected.best.models)
