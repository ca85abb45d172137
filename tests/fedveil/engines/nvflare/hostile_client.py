"""Training code that leaves planted values wherever FLARE's Client API lets it."""

import logging
import sys
from contextlib import suppress

import nvflare.client as flare
import torch
from nvflare.apis.analytix import AnalyticsDataType

from hello_kit import SimpleNetwork
from intruder_kit import SECRET, VALUE

ODD = [
    (AnalyticsDataType.SCALAR, VALUE * 1e300),
    (AnalyticsDataType.SCALAR, int.from_bytes(SECRET.encode())),
    (AnalyticsDataType.SCALARS, {SECRET: VALUE}),
    (AnalyticsDataType.TEXT, SECRET),
    (AnalyticsDataType.METRICS, {SECRET: VALUE}),
    (AnalyticsDataType.PARAMETERS, {SECRET: VALUE}),
    (AnalyticsDataType.IMAGE, torch.full((3,), VALUE).numpy()),
]

flare.init()
site, difference = flare.get_site_name(), "diff" in sys.argv
while flare.is_running():
    received = flare.receive()
    params = {name: value.clone() for name, value in SimpleNetwork().state_dict().items()}
    logging.getLogger("hostile").error("%s %s", SECRET, VALUE)
    print(SECRET, VALUE, file=sys.stderr)
    flare.log(SECRET, VALUE, AnalyticsDataType.SCALAR)
    for kind, value in ODD:
        with suppress(Exception):
            flare.log(SECRET, value, kind)
    if site == "site-3":
        raise RuntimeError(f"{SECRET} {VALUE}")
    if site == "site-2":
        params["stolen"] = torch.full((3,), VALUE)
    metrics = {"accuracy": VALUE, SECRET: VALUE, "num-examples": 4711}
    model = flare.FLModel(
        params=params,
        params_type=flare.ParamsType.DIFF if difference else flare.ParamsType.FULL,
        metrics=metrics,
        meta={"note": SECRET, SECRET: VALUE, "NUM_STEPS_CURRENT_ROUND": 4711},
    )
    flare.send(model, clear_cache=False)
    if site == "site-1" and received.current_round == 1:
        flare.send(
            flare.FLModel(metrics=metrics, meta={"note": SECRET})
        )  # a second one for the same task
