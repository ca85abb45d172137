"""One line for a FLARE recipe: what it changes, what it keeps, and what it refuses by name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import recipes_needed  # noqa: F401

import fedveil as fv
from fedveil.errors import FieldError

HERE = Path(__file__).parent
CLIENT = str(HERE / "hello_client.py")
PROMISE = {"epsilon": 8.0, "delta": 1e-5, "rounds": 2, "clip": 0.5}
RECORD = {"examples": 100, "noise_multiplier": 1.0, "clip": 0.5}
MODEL = "hello_kit:SimpleNetwork"

from nvflare.app_common.widgets.streaming import AnalyticsReceiver  # noqa: E402
from nvflare.app_opt.pt.recipes.cyclic import CyclicRecipe  # noqa: E402
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe  # noqa: E402
from nvflare.app_opt.pt.recipes.fedopt import FedOptRecipe  # noqa: E402
from nvflare.app_opt.pt.recipes.scaffold import ScaffoldRecipe  # noqa: E402
from nvflare.recipe import SimEnv  # noqa: E402
from nvflare.recipe.utils import add_cross_site_evaluation  # noqa: E402

from fedveil.nvflare import protect  # noqa: E402
from hello_kit import SITES, SimpleNetwork, Wide  # noqa: E402

pytestmark = pytest.mark.nvflare


def hello(kind=FedAvgRecipe, **changes):
    given = {
        "name": "hello-pt",
        "min_clients": 3,
        "num_rounds": 2,
        "model": SimpleNetwork(),
        "train_script": CLIENT,
    }
    return kind(**{**given, **changes})


def site(method="record", parameters=RECORD, **arguments):
    asks = {"path": "fedveil.nvflare.PrivacyFilter", "direction": "in"}
    asks["args"] = {"model": MODEL, "method": method, "parameters": parameters, **arguments}
    sends = {"path": "fedveil.nvflare.ReleaseFilter", "direction": "out"}
    scope = {"name": "fedveil", "task_data_filters": [asks], "task_result_filters": [sends]}
    return {"scopes": [scope], "default_scope": "fedveil"}


TRAINED = {"training": {"data": "hello_kit:dataset", "local": {"lr": 0.1}}}


def exported(recipe, folder, env=None):
    """The configurations of the job: the server's, and that of all sites."""
    recipe.export(str(folder), env=env)
    [server] = folder.rglob("config_fed_server.json")
    [client] = folder.rglob("config_fed_client.json")
    return json.loads(server.read_text()), json.loads(client.read_text())


def paths(parts):
    return [part["path"].rpartition(".")[2] for part in parts]


def test_the_workflow_is_fedveils_and_the_simulation_brings_the_filters(tmp_path):
    said = []
    recipe = protect(hello(), "global", parameters=PROMISE, seed=1, say=said.append)
    server, client = exported(recipe, tmp_path, SimEnv(num_clients=3))
    assert paths(server["workflows"]) == ["FedVeilController"]
    assert server["workflows"][0]["args"]["model"] == MODEL
    assert server["workflows"][0]["args"]["rounds"] == 2
    assert [paths(one["filters"]) for one in client["task_data_filters"]] == [["PrivacyFilter"]]
    assert [paths(one["filters"]) for one in client["task_result_filters"]] == [["ReleaseFilter"]]
    assert {"PTFileModelPersistor", "IntimeModelSelector"}.isdisjoint(paths(server["components"]))
    assert "hello_client.py" in json.dumps(client)
    assert list(tmp_path.rglob("custom/hello_kit.py"))
    assert not list(tmp_path.rglob("fedveil/engines"))
    assert said


def test_in_production_the_job_brings_no_filter(tmp_path):
    recipe = protect(hello(), "global", parameters=PROMISE, say=lambda text: None)
    server, client = exported(recipe, tmp_path)
    assert paths(server["workflows"]) == ["FedVeilController"]
    assert client.get("task_data_filters", []) == client.get("task_result_filters", []) == []


def test_at_record_level_the_script_is_not_run_and_that_is_said(tmp_path):
    said = []
    recipe = protect(hello(), site=site(**TRAINED), seed=1, say=said.append)
    server, client = exported(recipe, tmp_path, SimEnv(num_clients=3))
    assert [one["executor"]["path"].rpartition(".")[2] for one in client["executors"]] == [
        "FedVeilExecutor"
    ]
    assert not list(tmp_path.rglob("hello_client.py"))
    assert any("hello_client.py" in line for line in said)
    assert server["workflows"][0]["args"]["site_training"] is True


class Tracker(AnalyticsReceiver):
    """What `add_experiment_tracking` adds, without a tracking server's package."""

    def initialize(self, fl_ctx):
        pass

    def save(self, fl_ctx, shareable, record_origin):
        pass

    def finalize(self, fl_ctx):
        pass


def tracked(side):
    recipe = hello()
    if side == "server":
        recipe._job.to_server(Tracker(), id="receiver")
    else:
        recipe._add_to_client_apps(Tracker(), id="receiver")
    return recipe


@pytest.mark.parametrize(
    ("recipe", "method", "stays"),
    [
        (lambda: tracked("server"), "global", False),
        (hello, "global", True),
        (hello, "sga-ldp", True),
    ],
)
def test_logged_metrics_stay_at_the_sites_unless_a_trusted_server_tracks_them(
    recipe, method, stays, tmp_path
):
    given = {"parameters": PROMISE} if method == "global" else {}
    made = protect(recipe(), method, **given, seed=1, say=lambda text: None)
    parts = paths(exported(made, tmp_path)[1].get("components", []))
    assert ("ConvertToFedEvent" not in parts) == stays


def test_in_production_no_module_of_a_sites_own_travels(tmp_path):
    recipe = protect(hello(), site=site(**TRAINED), seed=1, say=lambda text: None)
    exported(recipe, tmp_path)
    assert not list(tmp_path.rglob("hello_*.py"))


@pytest.mark.parametrize("side", ["server", "client"])
def test_tracking_is_kept_under_central_trust_and_said_and_refused_under_local_trust(side):
    said = []
    protect(tracked(side), "global", parameters=PROMISE, seed=1, say=said.append)
    assert any("Tracker" in line for line in said)
    with pytest.raises(FieldError) as refused:
        protect(tracked(side), "sga-ldp", seed=1)
    assert refused.value.field == "tracking"


@pytest.mark.parametrize(
    ("recipe", "field"),
    [
        (lambda: hello(CyclicRecipe), "recipe"),
        (lambda: hello(ScaffoldRecipe), "recipe"),
        (lambda: hello(FedOptRecipe), "recipe"),
        (lambda: hello(aggregation_weights={"site-1": 2.0}), "recipe.aggregation_weights"),
        (lambda: hello(stop_cond="accuracy >= 0.9"), "recipe.stop_cond"),
        (lambda: hello(exclude_vars="out"), "recipe.exclude_vars"),
        (lambda: hello(model=Wide(8)), "model"),
        (lambda: hello(train_script="not_there.py"), "train_script"),
        (lambda: object(), "recipe"),
    ],
)
def test_what_no_method_covers_is_refused_by_name(recipe, field):
    with pytest.raises(FieldError) as refused:
        protect(recipe(), "global", parameters=PROMISE, seed=1)
    assert refused.value.field == field


def test_cross_site_evaluation_is_refused_by_name():
    recipe = hello()
    add_cross_site_evaluation(recipe)
    with pytest.raises(FieldError) as refused:
        protect(recipe, "global", parameters=PROMISE, seed=1)
    assert (refused.value.field, refused.value.value) == ("recipe", "CrossSiteModelEval")


@pytest.mark.parametrize(
    ("method", "given", "field"),
    [
        ("", {}, "method"),
        ("metrik", {}, "method"),
        ("record", {"parameters": RECORD}, "method"),
        ("global", {"site": site(**TRAINED)}, "method"),
        ("", {"site": site(**TRAINED), "parameters": {**RECORD, "clip": 2.0}}, "parameters"),
        ("", {"site": site() | {"default_scope": "other"}}, "default_scope"),
        ("", {"site": "/nowhere/privacy.json"}, "site"),
        ("", {"site": {"scopes": 3}}, "scopes"),
    ],
)
def test_what_a_site_and_a_caller_do_not_both_say_is_refused(method, given, field):
    with pytest.raises(FieldError) as refused:
        protect(hello(), method, seed=1, **given)
    assert refused.value.field == field


def test_a_simulator_with_fewer_threads_than_sites_is_refused(tmp_path):
    recipe = protect(hello(), "global", parameters=PROMISE, seed=1, say=lambda text: None)
    with pytest.raises(FieldError) as refused:
        recipe.export(str(tmp_path), env=SimEnv(num_clients=3, num_threads=1))
    assert refused.value.field == "num_threads"


def test_a_model_of_arguments_is_carried_by_its_class_path(tmp_path):
    model = {"class_path": "hello_kit.Wide", "args": {"width": 8}}
    recipe = protect(
        hello(model=model), "global", parameters=PROMISE, seed=1, say=lambda text: None
    )
    server, client = exported(recipe, tmp_path, SimEnv(num_clients=3))
    [asks] = client["task_data_filters"]
    for args in (server["workflows"][0]["args"], asks["filters"][0]["args"]):
        assert (args["model"], args["model_options"]) == ("hello_kit:Wide", {"width": 8})


@pytest.mark.slow
@pytest.mark.parametrize("level", ["site", "record"])
def test_three_lines_run_in_flares_simulator(level, tmp_path, monkeypatch):
    source = str(Path(fv.__file__).parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([source, str(HERE), os.environ.get("PYTHONPATH", "")])
    )
    recipe = hello()
    if level == "site":
        protect(recipe, "global", parameters=PROMISE, seed=1)
    else:
        (tmp_path / "privacy.json").write_text(json.dumps(site(**TRAINED)))
        protect(recipe, site=tmp_path / "privacy.json", seed=1)
    recipe.execute(SimEnv(clients=SITES, workspace_root=str(tmp_path / "work")))
    [summary] = (tmp_path / "work").rglob("fedveil/summary.json")
    values = json.loads(summary.read_text())
    assert (values["rounds"], values["clients"], values["stopped"]) == (2, 3, "")
    assert ("formal eps=8 " if level == "site" else "eps=6.573 ") in values["guarantee"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "hopeless", "least"), [("site", True, 0.0), ("image", False, 0.7)]
)
def test_flares_first_example_says_that_it_cannot_learn_and_learns_for_each_image(
    level, hopeless, least, tmp_path
):
    example = Path(__file__).resolve().parents[4] / "examples" / "nvflare-hello" / "job.py"
    command = [sys.executable, str(example), level, str(tmp_path / "work")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    options = {"capture_output": True, "text": True, "check": True, "env": environment}
    done = subprocess.run(command, **options, timeout=1200)
    printed = done.stdout + done.stderr
    assert ("106 times as long" in printed) == hopeless
    assert float(printed.split("accuracy ")[-1].split()[0]) >= least


@pytest.mark.deploy
def test_three_lines_run_in_flares_proof_of_concept(tmp_path, monkeypatch):
    """A server and three sites, each in processes of its own; it takes FLARE's port 8002."""
    from nvflare.recipe import PocEnv

    source = str(Path(fv.__file__).parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([source, str(HERE), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    recipe, env = hello(), PocEnv(num_clients=3, extra={"login_timeout": 60})
    protect(recipe, "global", parameters=PROMISE, seed=1)
    try:
        result = recipe.execute(env).get_result(timeout=400.0, clean_up=False)
        [summary] = Path(result).rglob("fedveil/summary.json")
        values = json.loads(summary.read_text())
    finally:
        env.stop(clean_up=True)
    assert (values["rounds"], values["clients"], values["stopped"]) == (2, 3, "")
    assert "formal eps=8 " in values["guarantee"]
