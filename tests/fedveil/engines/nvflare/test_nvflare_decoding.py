"""What a message makes of a site's process before any filter sees it: FLARE's own decoder, messages by hand."""

import os

import flare_needed  # noqa: F401
import nvflare.fuel.utils.fobs.fobs as decoder
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import lobs
from nvflare.private.aux_runner import AuxRunner
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from crafted_kit import KINDS, SHAREABLE, encoded, file_at, named, section, with_cookie
from fedveil.engines.nvflare.decoding import narrow_decoding
from fedveil.errors import FieldError
from fedveil.nvflare import GaussianFilter, JobGuard, PrivacyFilter, SiteGuard
from test_nvflare_site_guard import fired

pytestmark = pytest.mark.nvflare
SECRET = b"patient 4711"
WORKSPACE = "nvflare.apis.workspace.Workspace"


@pytest.fixture
def fresh(monkeypatch):
    """FLARE's own classes, as its process of a job has them before anything of FedVeil is there."""
    for package in (flare_decomposers, common_decomposers):
        monkeypatch.setattr(package.register, "registered", False)
    monkeypatch.setattr(decoder, "_decomposers", {})
    monkeypatch.setattr(decoder, "_dot_handlers", {})
    monkeypatch.setattr(decoder, "_decomposers_registered", False)
    for package in (flare_decomposers, common_decomposers):
        package.register()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ward.csv"
    path.write_bytes(SECRET)
    return path


def echoed(data):
    """What FLARE's runner of messages answers one that nobody handles."""
    reply = AuxRunner(None).dispatch("anything", fobs.loads(data), _Context())
    return reply, bytes(fobs.dumps(reply))


class _Context(dict):
    """What the runner asks of a context."""

    set_peer_context = get_prop = lambda self, *given: None
    get_peer_context = get_run_abort_signal = lambda self: None
    get_identity_name = get_job_id = get_engine = lambda self, *given: None


def bootstrapped(monkeypatch):
    listed = list(ClientRequestProcessors.request_processors)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", listed)
    fired(EventType.SYSTEM_BOOTSTRAP, None, [SiteGuard()])


PARTS = {
    "the site's guard": bootstrapped,
    "the job's guard": lambda monkeypatch: JobGuard(),
    "the filter": lambda monkeypatch: PrivacyFilter("flare_kit:Net", "sga-ldp", seed=1),
    "the other filter": lambda monkeypatch: GaussianFilter(epsilon=8.0, rounds=1, seed=1),
}


def test_flare_alone_answers_a_cookie_that_names_a_file_with_the_file(fresh, file):
    """So an empty answer below means something."""
    _, answer = echoed(encoded(with_cookie(file_at(file))))
    assert SECRET in answer


@pytest.mark.parametrize("part", PARTS)
def test_no_message_to_a_site_names_a_file(part, fresh, file, monkeypatch):
    PARTS[part](monkeypatch)
    for body in (
        with_cookie(file_at(file)),
        with_cookie([{"deep": file_at(file)}]),
        with_cookie(named("argparse.Namespace", {"data": {"x": file_at(file)}})),
        file_at(file),
    ):
        with pytest.raises(FieldError):
            fobs.loads(encoded(body))


def test_every_other_message_is_answered_as_before(fresh):
    narrow_decoding()
    reply, _ = echoed(encoded(with_cookie("of the server")))
    assert reply.get_cookie_jar() == {"cookie": "of the server"}
    assert type(fobs.loads(fobs.dumps(Shareable({"a": (1, 2)})))["a"]) is tuple


@pytest.mark.parametrize("narrowed", [False, True])
def test_a_message_makes_no_folder_at_a_site(narrowed, fresh, tmp_path, monkeypatch):
    """FLARE's workspace makes folders below each root that the environment names."""
    for name in ("root", "kit/startup", "kit/local"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("NVFL_RESULT_ROOT", str(tmp_path / "root"))
    if narrowed:
        narrow_decoding()
    given = [str(tmp_path / "kit"), str(tmp_path / "made"), "config"]
    whole = encoded(named(WORKSPACE, given, "nvflare.apis.utils.decomposers.WorkspaceDecomposer"))
    if narrowed:
        with pytest.raises(FieldError):
            fobs.loads(whole)
    else:
        fobs.loads(whole)
    assert (tmp_path / "made").exists() != narrowed


@pytest.mark.parametrize("narrowed", [False, True])
def test_a_message_leaves_its_senders_bytes_on_a_sites_disk(narrowed, fresh, tmp_path, monkeypatch):
    """As the page says: FLARE chooses the folder, and removes nothing from it."""
    monkeypatch.setattr(lobs, "get_datum_dir", lambda: str(tmp_path))
    if narrowed:
        narrow_decoding()
    whole = encoded(with_cookie("")) + section(lobs.MARKER_DATUM_FILE, b"x" * 1000)
    assert isinstance(fobs.loads(whole), Shareable)
    [left] = tmp_path.iterdir()
    assert left.stat().st_size == 1000


class Planted:
    """A class of the site that no message may make."""

    made = 0

    def __new__(cls, *given):
        cls.made += 1
        return super().__new__(cls)


@pytest.mark.parametrize("decomposer", ["DataClassDecomposer", "DictDecomposer", ""])
@pytest.mark.parametrize(
    "kind", [f"{__name__}.Planted", "subprocess.Popen", "os.system", "pathlib.Path"]
)
def test_flare_makes_no_class_that_is_not_on_its_own_list(kind, decomposer, fresh):
    """Its list is FLARE's from 2.7 to 2.9; FedVeil relies on it."""
    name = f"{KINDS}.{decomposer}" if decomposer else f"{__name__}.Planted"
    with pytest.raises(ValueError, match=r"not allowed|must be registered"):
        fobs.loads(encoded(named(kind, {"data": {}, "dict": {}}, name)))
    assert Planted.made == 0


def test_only_flares_own_classes_are_on_that_list(fresh):
    foreign = {
        name for name in decoder._type_name_whitelist if not name.startswith(("nvflare.", "numpy."))
    }
    assert foreign <= {"argparse.Namespace", "tenseal.CKKSVector", "xgboost.core.DataSplitMode"}


def test_a_process_without_flares_decoder_in_its_place_is_refused(monkeypatch):
    monkeypatch.delattr(decoder, "_decomposers")
    with pytest.raises(FieldError, match="fobs"):
        narrow_decoding()


def test_the_name_of_the_message_is_flares(fresh):
    """The messages above are read by the decoder as what they are meant to be."""
    assert isinstance(fobs.loads(encoded(with_cookie(os.sep))), Shareable)
    assert SHAREABLE in {*decoder._decomposers}
