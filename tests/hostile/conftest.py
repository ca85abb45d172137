import logging
import os

import pytest

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

pytest.importorskip("flwr")


@pytest.fixture(autouse=True)
def _quiet_messages():
    """Messages can be made by hand, and failures that are meant are not logged."""
    from fedveil.engines.flower.grid import message_identity

    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with message_identity():
        yield
    logger.setLevel(level)
