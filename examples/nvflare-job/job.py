"""A FLARE job with FedVeil, run in FLARE's simulator: ``python job.py WORKSPACE``."""

import os
import sys
from pathlib import Path

from digits_task import SITES, accuracy
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner
from safetensors.torch import load_file

from fedveil.nvflare import FedVeilController, PrivacyFilter, ReleaseFilter

workspace = Path(sys.argv[1]).absolute()
os.chdir(Path(__file__).parent)  # FLARE takes the job's files from here
privacy = {"model": "digits_task:network", "method": "metric", "parameters": {"noise_multiplier": 0.01, "clip": 2.0}}
job = FedJob("fedveil", min_clients=len(SITES))
job.set_app_packages(["fedveil"])  # it is installed at every site, and no copy of it travels with the job
job.to_server(FedVeilController(rounds=5, seed=0, **privacy))
job.to_server("digits_task.py")
for site in SITES:
    job.to(ScriptRunner("client.py"), site)
    job.to("digits_task.py", site)
    # in a simulation the job brings the filters; in a deployment the site's local/privacy.json names them
    job.to(PrivacyFilter(seed=0, **privacy), site, filter_type=FilterType.TASK_DATA)
    job.to(ReleaseFilter(), site, filter_type=FilterType.TASK_RESULT)
job.simulator_run(str(workspace), threads=len(SITES), log_config="concise")
model = load_file(workspace / "server" / "simulate_job" / "fedveil" / "model.safetensors")
print(f"accuracy {accuracy(model):.3f}")
