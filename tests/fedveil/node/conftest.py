import logging
import os

import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

pytest.importorskip("flwr")


@pytest.fixture(autouse=True)
def quiet():
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.fixture
def runtime():
    """Lets a test make messages by hand."""
    from fedveil.engines.flower.grid import message_identity

    with message_identity():
        yield


@pytest.fixture
def why(caplog):
    """Of a reply that tells a server nothing: what the node's own log says."""
    from fedveil.engines.flower.mod import CLIENT_FAILED
    from fedveil.engines.flower.records import FAILED

    caplog.set_level(logging.ERROR, "flwr")

    def of(reply):
        assert (reply.error.code, reply.error.reason) == (FAILED, CLIENT_FAILED)
        return str(caplog.records[-1].exc_info[1])

    return of
