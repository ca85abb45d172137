"""A FLARE site's startup kit: what a check says of each field."""

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("nvflare.apis", reason="needs the `nvflare` extra")

from fedveil.cli import app
from fedveil.node.kit import check_kit, is_kit
from fedveil.nvflare import begin_ledger

pytestmark = pytest.mark.nvflare


class Kit:
    def __init__(self, folder):
        self.folder = folder
        (folder / "startup").mkdir(parents=True)
        (folder / "local").mkdir()
        begin_ledger(folder / "ledgers", "site-1", by="the tests", head=folder / "heads")
        arguments = {
            "model": "torch.nn:Linear",
            "method": "sga-ldp",
            "rounds": 3,
            "dataset": "site-1",
        }
        arguments |= {"ledger": str(folder / "ledgers"), "head": str(folder / "heads")}
        asks = {"path": "fedveil.nvflare.PrivacyFilter", "direction": "in", "args": arguments}
        sends = {"path": "fedveil.nvflare.ReleaseFilter", "direction": "out"}
        scope = {"name": "fedveil", "task_data_filters": [asks], "task_result_filters": [sends]}
        guard = {"id": "fedveil_guard", "path": "fedveil.nvflare.JobGuard", "args": {}}
        self.privacy = {"scopes": [scope], "default_scope": "fedveil", "components": [guard]}
        launcher = (
            "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"
        )
        listed = ["hospital.train", "fedveil.engines.nvflare.executor.FedVeilExecutor"]
        self.resources = {"allow_log_streaming": False, "class_allow_list": listed}
        own = {"id": "fedveil_site_guard", "path": "fedveil.nvflare.SiteGuard"}
        self.resources |= {"components": [{"id": "process_launcher", "path": launcher}, own]}
        self.rights = {
            "permissions": {
                "lead": {"byoc": "none", "submit_job": "any"},
                "member": {"view": "any"},
            }
        }

    @property
    def arguments(self):
        return self.privacy["scopes"][0]["task_data_filters"][0]["args"]

    def written(self):
        local = self.folder / "local"
        (local / "privacy.json").write_text(json.dumps(self.privacy))
        (local / "resources.json").write_text(json.dumps(self.resources))
        (local / "authorization.json").write_text(json.dumps(self.rights))
        return self.folder


@pytest.fixture
def kit(tmp_path):
    return Kit(tmp_path / "kit")


def found(kit, binds="no"):
    return [one.what for one in check_kit(kit.written()) if one.binds == binds and one.needed]


def test_a_kit_as_the_page_has_it_binds(kit):
    assert is_kit(kit.folder)
    assert found(kit) == []
    done = CliRunner().invoke(app, ["node", "check", str(kit.folder)])
    assert (done.exit_code, "privacy.json" in done.output) == (0, True)


CHANGES = {
    "privacy.json default_scope": lambda kit: kit.privacy.update(default_scope="other"),
    "privacy.json scope open": lambda kit: kit.privacy["scopes"].append({"name": "open"}),
    "privacy.json components: JobGuard": lambda kit: kit.privacy.update(components=[]),
    "privacy.json PrivacyFilter": lambda kit: kit.arguments.update(method="metrik"),
    "privacy.json PrivacyFilter seed": lambda kit: kit.arguments.update(seed=3),
    "privacy.json PrivacyFilter ledger": lambda kit: kit.arguments.update(dataset="site-9"),
    "privacy.json JobGuard swarm": lambda kit: kit.privacy["components"][0].update(
        args={"swarm": True}
    ),
    "resources.json allow_log_streaming": lambda kit: kit.resources.update(
        allow_log_streaming=True
    ),
    "resources.json components hospital.Sender": lambda kit: kit.resources["components"].append(
        {"id": "sender", "path": "hospital.Sender"}
    ),
    "resources.json class_allow_list": lambda kit: kit.resources.update(class_allow_list=["*"]),
    "resources.json class_list_enforcement_mode": lambda kit: kit.resources.update(
        class_list_enforcement_mode="warn"
    ),
    "authorization.json lead byoc": lambda kit: kit.rights["permissions"]["lead"].update(
        byoc="any"
    ),
    "resources.json components: SiteGuard": lambda kit: kit.resources["components"].pop(),
    "authorization.json project_admin byoc": lambda kit: kit.rights["permissions"].update(
        project_admin="any"
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_field_that_does_not_bind_is_named(what, kit):
    CHANGES[what](kit)
    assert what in found(kit)
    assert CliRunner().invoke(app, ["node", "check", str(kit.folder)]).exit_code == 2


@pytest.mark.parametrize("rights", ["any", {"shell_commands": "o:site"}, {"cat": "any"}])
def test_who_may_read_files_by_flares_commands_is_named(rights, kit):
    kit.rights["permissions"]["org"] = rights
    said = {one.what: one.binds for one in check_kit(kit.written())}
    assert said["authorization.json org shell_commands"] == "no"
    assert said["authorization.json lead shell_commands"] == "yes"


def test_a_flare_that_reads_no_list_of_classes_is_named(kit, monkeypatch):
    monkeypatch.setattr("fedveil.node.kit.AUTHORIZER", "nvflare.apis.of_no_version")
    assert "resources.json class_allow_list" in found(kit)


def test_filters_in_another_order_protect_nothing(kit):
    scope = kit.privacy["scopes"][0]
    scope["task_result_filters"].append(
        {"path": "nvflare.app_common.filters.exclude_vars.ExcludeVars"}
    )
    assert "privacy.json scope fedveil" in found(kit)


@pytest.mark.parametrize("name", ["privacy.json", "resources.json", "authorization.json"])
@pytest.mark.parametrize(
    "content", [None, "no JSON", "[]", '{"scopes": 3, "components": 3, "permissions": 3}']
)
def test_files_that_cannot_be_read_are_findings(name, content, kit):
    file = kit.written() / "local" / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert [one for one in check_kit(kit.folder) if one.binds == "no" and one.needed]


def test_a_default_file_is_read_where_flare_reads_it(kit):
    local = kit.written() / "local"
    (local / "resources.json").rename(local / "resources.json.default")
    assert "resources.json" not in {one.what for one in check_kit(kit.folder)}


def test_a_rehearsal_is_for_nodes(kit):
    assert (
        CliRunner().invoke(app, ["node", "check", str(kit.written()), "--rehearse"]).exit_code == 2
    )


@pytest.mark.parametrize("field", ["data", "trainer"])
def test_a_module_of_the_site_is_looked_for_and_not_run(field, kit, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_the_ward.py").write_text("raise SystemExit('the module ran')")
    what = f"privacy.json PrivacyFilter training.{field}"

    def seen(module):
        kit.arguments["training"] = {"data": "of_the_ward:data", field: f"{module}:make"}
        return {one.what: one for one in check_kit(kit.written())}[what]

    assert seen("of_the_ward").binds == "yes"
    absent = seen("of_no_ward")
    assert (absent.binds, absent.needed) == ("no", False)
    assert "of_no_ward" in absent.why
