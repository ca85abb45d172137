"""A FLARE job with FedVeil, run in FLARE's simulator: ``python job.py WORKSPACE``."""

import json
import os
import sys
from pathlib import Path

from cancer_task import SITES, accuracy
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner
from safetensors.torch import load_file

from fedveil.nvflare import FedVeilController, PrivacyFilter, ReleaseFilter

workspace = Path(sys.argv[1]).absolute()
os.chdir(Path(__file__).parent)  # FLARE takes the job's files from here
# a formal promise to each site about all of its data, if the server is trusted
promise = {"epsilon": 8.0, "delta": 1e-5, "rounds": 3, "clip": 0.5}
privacy = {"model": "cancer_task:network", "method": "global", "parameters": promise}
job = FedJob("fedveil", min_clients=len(SITES))
job.set_app_packages(
    ["fedveil"]
)  # it is installed at every site, and no copy of it travels with the job
job.to_server(FedVeilController(rounds=3, seed=0, **privacy))
job.to_server("cancer_task.py")
for site in SITES:
    job.to(ScriptRunner("client.py"), site)
    job.to("cancer_task.py", site)
    # in a simulation the job brings the filters; in a deployment the site's local/privacy.json names them
    job.to(PrivacyFilter(seed=0, **privacy), site, filter_type=FilterType.TASK_DATA)
    job.to(ReleaseFilter(), site, filter_type=FilterType.TASK_RESULT)
job.simulator_run(str(workspace), threads=len(SITES), log_config="concise")
folder = workspace / "server" / "simulate_job" / "fedveil"
summary = json.loads((folder / "summary.json").read_text())
print(f"accuracy {accuracy(load_file(folder / 'model.safetensors')):.2f}; {summary['guarantee']}")
