"""The speed of FedVeil, measured beside its peers: ``python -m benchmarks`` (or ``make bench``)."""

import os

for _name, _value in {  # the peers read these when they are imported
    "PFL_PYTORCH_DEVICE": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}.items():
    os.environ.setdefault(_name, _value)
