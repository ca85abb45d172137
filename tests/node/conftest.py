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
    from fedveil.engines.flower.grid import _identity

    with _identity():
        yield
