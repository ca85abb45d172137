"""Gives Flower's processes more time than 30 seconds to begin a task, on a machine that is busy with other things.

`chain.environment` puts this folder on the path where ``CHAIN_PATIENCE`` says how many seconds. A node that died is then
noticed later as well.
"""

import os

if os.environ.get("CHAIN_PATIENCE"):
    from flwr.common import constant

    constant.HEARTBEAT_DEFAULT_INTERVAL = int(os.environ["CHAIN_PATIENCE"])
