"""Flower apps as they are, on neighbouring data: everything that left is judged; what cannot run gets no verdict."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil_lab.verify import PrivacyClaim
from fedveil_lab.verify.apps import AppTable, app_worlds, components, epsilons_in, verify_app
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.isolation import NoVerdict
from fedveil_lab.verify.judged import COMPOSITION, WORLD
from fedveil_lab.verify.neighbours import canary_data, rows_of
from fedveil_lab.verify.sections import VerifySection, section_beside
from verify_kit import EXAMPLES

APP = EXAMPLES / "flower-app"
CLAIM = "eps=0.5 delta=1e-5 zero-out client total central"


@pytest.fixture
def folder(tmp_path):
    """A copy of the example's app."""
    return shutil.copytree(APP, tmp_path / "app")


def section(**app):
    """What the example says, with other values for the app."""
    own = section_beside(APP)
    return replace(own, app={**own.app, "canaries": ["outlier"], **app})


def test_an_app_without_enough_noise_is_caught_by_what_left(folder):
    heard = []
    quiet = section(config={"rounds": 1, "noise-multiplier": 0.001})
    judged = verify_app(folder, CLAIM, quiet, effort=Effort(runs=80), say=heard.append)
    assert [(one.by, one.refutes) for one in judged.caught] == [(WORLD, True)]
    assert judged.printed == "2.00"
    assert "runs in 1 worlds" in heard[1]  # the budget comes before the first world
    loud = section(config={"rounds": 1, "noise-multiplier": 100.0})
    assert not verify_app(folder, CLAIM, loud, effort=Effort(runs=80)).refuted


@pytest.mark.slow
def test_records_and_replies_are_played_too(folder):
    quiet = section(config={"rounds": 1, "noise-multiplier": 0.001})
    for claim in (
        "eps=0.5 delta=0 add/remove record total central",
        "eps=0.5 delta=0 replace-one client total local",
    ):
        assert verify_app(folder, claim, quiet, effort=Effort(runs=80)).refuted


@pytest.mark.slow
def test_few_runs_with_a_canary_at_each_client_catch_it_too(folder):
    claim = "eps=0.5 delta=1e-5 replace-one client total local"
    quiet = section(clients=12, config={"rounds": 1, "noise-multiplier": 1.0})
    judged = verify_app(folder, claim, quiet, effort=Effort(), canaries=24)
    assert judged.caught[0].by == WORLD
    assert judged.effort["runs"] == 4
    assert judged.measured.rows == "canaries"
    assert judged.printed == "2.00"


@pytest.mark.slow
def test_a_sum_in_the_log_is_a_release(folder):
    server = folder / "rounds" / "server.py"
    server.write_text(
        server.read_text().replace(
            "        noise = rng", "        print('total', total[0])\n        noise = rng"
        )
    )
    loud = section(config={"rounds": 1, "noise-multiplier": 1000.0})
    assert verify_app(folder, CLAIM, loud, effort=Effort(runs=80)).refuted


def test_the_example_s_section_composes_its_thirty_rounds():
    own = section_beside(APP)
    from fedveil_lab.verify import MechanismSteps
    from fedveil_lab.verify.judged import described_alone

    steps, claim = MechanismSteps.of(own.steps), PrivacyClaim.parse(own.values["claim"])
    judged = described_alone("app", claim, steps)
    assert [one.by for one in judged.caught] == [COMPOSITION]
    assert judged.proven.epsilon == pytest.approx(14.89, abs=0.01)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("import socket; socket.create_connection(('example.org', 80))", "asks for the network"),
        ("raise ValueError('no such file')", "no such file"),
        pytest.param("import time; time.sleep(60)", "hangs", marks=pytest.mark.slow),
    ],
)
def test_an_app_that_does_not_run_gets_no_verdict(folder, line, why):
    task = folder / "rounds" / "task.py"
    task.write_text(task.read_text().replace("    rng = ", f"    {line}\n    rng = "))
    with pytest.raises(NoVerdict, match=why):
        verify_app(folder, CLAIM, section(), effort=Effort(runs=32, timeout=15))


def test_an_app_that_loads_its_data_before_anybody_asks_gets_no_verdict(folder):
    client = folder / "rounds" / "client.py"
    text = client.read_text().replace(
        'task.load_data(context.node_config["partition-id"])',
        'DATA[context.node_config["partition-id"]]',
    )
    client.write_text(text + "\n\nDATA = [task.load_data(client) for client in range(12)]\n")
    with pytest.raises(NoVerdict, match=r"rounds\.task:load_data"):
        verify_app(folder, CLAIM, section(), effort=Effort(runs=32))
    many = section(clients=12, config={"rounds": 1})
    claim = "eps=0.5 delta=1e-5 replace-one client total local"
    with pytest.raises(NoVerdict, match=r"rounds\.task:load_data"):
        verify_app(folder, claim, many, effort=Effort(), canaries=24)


def test_a_folder_that_is_no_flower_app_is_refused(tmp_path):
    with pytest.raises(FieldError, match="no Flower app"):
        components(tmp_path)
    (tmp_path / "job.py").write_text("")
    with pytest.raises(FieldError, match="export the job"):
        components(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(FieldError, match="components"):
        components(tmp_path)


@pytest.mark.parametrize(
    "claim",
    [
        "add/remove client total central",
        "zero-out record total central",
        "zero-out client total local",
    ],
)
def test_relations_that_an_unchanged_app_cannot_be_shown_are_refused(claim):
    own = PrivacyClaim.parse(f"eps=1 delta=0 {claim}")
    table = AppTable(data="task:load", config={})
    with pytest.raises(FieldError):
        app_worlds({}, own, table)
    [world] = app_worlds({}, own, replace(table, neighbours="task:both"))
    assert world.inside["inside"] is True
    assert world.outside["inside"] is False


@pytest.mark.parametrize(
    "values",
    [
        {"clients": 0},
        {"data": "load"},
        {"canaries": ["ghost"]},
        {"target": 5},
        {"node": 1},
        {"neighbours": 3},
    ],
)
def test_a_table_that_says_what_is_not_is_refused(values):
    with pytest.raises(FieldError):
        AppTable.of(values)


@pytest.mark.parametrize(
    "text",
    [
        "[verify]\nclaims = 'x'\n",
        "[verify]\nsteps = 3\n",
        "[verify",
        "[verify.app]\n[verify.other]\n",
    ],
)
def test_a_section_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "verify.toml").write_text(text)
    with pytest.raises(FieldError):
        section_beside(tmp_path)


def test_a_section_stands_in_either_file(tmp_path):
    assert section_beside(tmp_path) == VerifySection()
    (tmp_path / "pyproject.toml").write_text("[tool.fedveil.verify]\nclaim = 'x'\n")
    assert section_beside(tmp_path).values == {"claim": "x"}
    (tmp_path / "verify.toml").write_text("[verify]\nclaim = 'y'\n")
    assert section_beside(tmp_path).values == {"claim": "y"}


def kinds_of_data():
    """The same four rows in every kind that is known."""
    x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])
    named = [{"img": row, "label": int(label)} for row, label in zip(x, y, strict=True)]
    test = DataLoader(TensorDataset(x, y))
    return [
        (x.numpy(), y.numpy()),
        (x, y, "more"),
        ClientData(x, y),
        DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True),
        (DataLoader(named, batch_size=3), test),
    ]


@pytest.mark.parametrize("data", kinds_of_data())
def test_one_record_differs_and_the_kind_stays(data):
    for relation, fewer in (("add/remove", 1), ("replace-one", 0)):
        inside, outside = (
            canary_data(data, "record", relation, "outlier", one) for one in (True, False)
        )
        assert type(inside) is type(outside) is type(data)
        first, second = rows_of(inside)[0], rows_of(outside)[0]
        assert (len(first), len(second)) == (4, 4 - fewer)
        differ = [not np.array_equal(a[0], b[0]) for a, b in zip(first, second, strict=False)]
        assert differ.count(True) == 1 - fewer
        assert np.abs(np.asarray(first[-1][0])).max() == 70  # ten times the largest
    labels = [
        int(one[1])
        for one in rows_of(canary_data(data, "record", "add/remove", "mislabelled", True))[0]
    ]
    assert labels == [0, 1, 0, 1]  # the last one bears the next label of the first


def test_a_person_of_one_row_is_no_test_of_persons():
    own = PrivacyClaim.parse("eps=1 delta=0 add/remove person total central")
    table = AppTable(data="task:load", config={}, canaries=("outlier",))
    with pytest.raises(FieldError, match="tested as a record") as refused:
        app_worlds({}, own, table)
    assert refused.value.field == "[verify.app] rows"
    [world] = app_worlds({}, own, replace(table, rows=3))
    assert world.inside["rows"] == 3


def test_a_person_has_several_rows():
    data = np.ones((5, 2)), np.zeros(5)
    inside, outside = (
        canary_data(data, "person", "add/remove", "outlier", one, rows=3) for one in (True, False)
    )
    assert (len(inside[0]), len(outside[0])) == (5, 2)
    assert np.abs(inside[0][2:]).min() == 10
    with pytest.raises(FieldError, match="5"):
        canary_data(data, "person", "add/remove", "outlier", True, rows=6)


def test_data_of_another_kind_need_a_function_of_the_author():
    for data in ("text", 3, [1, 2], {}, DataLoader([{"a": 1, "b": 2}])):
        with pytest.raises(FieldError):
            rows_of(data)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Epsilon value for delta=1e-05 is 1.12", ["1.12"]),
        ("round 3: epsilon = 2.00, eps: 3e-1", ["2.00", "3e-1"]),
        ("(ε = 1.3, δ = 1e-5)", ["1.3"]),
        ("eps 1, delta: 1e-5: none", []),
        ("steps 12", []),
    ],
)
def test_printed_epsilons_are_found(text, found):
    assert epsilons_in(text) == found
