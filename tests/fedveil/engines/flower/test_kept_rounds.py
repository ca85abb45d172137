"""A deployed server keeps the rounds that it was asked to keep, and no answer on which a promise rests."""

import pytest
import torch

from fedveil.engines.sealed import PLAIN
from fedveil.errors import FieldError
from fedveil.evidence import kept_rounds
from fedveil.flower import FedVeilStrategy, ServerFolder, privacy_mod
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import build
from test_flower_strategy import LAYOUT, VANILLA, app, run

pytestmark = pytest.mark.flower
LOCAL = build("sga-ldp", epsilon_min=5.0, epsilon_max=8.0, similarity="released")


def trained(folder, method, keep):
    strategy = FedVeilStrategy(
        method,
        LAYOUT,
        rounds=2,
        seed=1,
        evaluate=False,
        folder=ServerFolder(folder, keep=keep),
    )
    run(strategy, app(mods=[privacy_mod(LAYOUT, method, ledger="run")], method=method))
    return strategy


@pytest.mark.parametrize("method", [VANILLA, LOCAL])
def test_models_and_answers_of_each_round_are_kept(tmp_path, method):
    strategy = trained(tmp_path / "run", method, ("models", "updates"))
    first, second = kept_rounds(tmp_path / "run")
    assert (first.number, second.number) == (1, 2)
    assert torch.equal(first.starts, torch.zeros(1, 6))
    assert torch.equal(first.models, second.starts)
    assert torch.equal(second.models, strategy.models)
    assert first.replied == second.replied == (0, 1, 2)
    answers = torch.stack([second.received[partition] for partition in range(3)])
    assert torch.allclose(answers.mean(0), second.models[0], atol=1e-5)
    if method is VANILLA:  # each client adds 1 + its partition
        assert torch.equal(first.received[2], torch.full((6,), 3.0))


def test_without_updates_no_answer_is_kept_and_without_keep_no_round(tmp_path):
    trained(tmp_path / "models", VANILLA, ("models",))
    assert [one.received for one in kept_rounds(tmp_path / "models")] == [{}, {}]
    trained(tmp_path / "none", VANILLA, ())
    assert kept_rounds(tmp_path / "none") == []


def test_answers_that_a_promise_leaves_to_a_trusted_server_are_not_kept(tmp_path):
    central = build("global", epsilon=8.0, rounds=2, clip=1.0)
    with pytest.raises(FieldError, match="central trust"):
        trained(tmp_path / "run", central, ("updates",))
    summed = build("record", sum="trusted", epsilon=8.0, rounds=2, clip=1.0, examples=10, silos=3)
    for what in ("updates", "shares"):
        folder = ServerFolder(tmp_path / "sum", keep=(what,))
        with pytest.raises(FieldError, match="trusted sum trust"):
            folder.open(summed, LAYOUT, 2, ReproducibleSource(0), "flower")
    with pytest.raises(FieldError, match="central trust"):
        trained(tmp_path / "run", VANILLA, ("shares",))
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "sum").exists()
    for wrong in ("models", ("modells",)):
        with pytest.raises(FieldError, match="keep"):
            ServerFolder(tmp_path / "other", keep=wrong)


def test_a_damaged_round_is_refused(tmp_path):
    trained(tmp_path / "run", VANILLA, ("models",))
    file = tmp_path / "run" / "rounds" / "round-0002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert PLAIN.encode() in content
    with pytest.raises(FieldError, match=r"round-0002"):
        kept_rounds(tmp_path / "run")
