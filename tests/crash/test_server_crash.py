"""What a deployed server promises across crashes of server and sites together: `server_kit` does the killing.

The ordinary tests try some of the steps; ``make crash`` tries every step.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]

KIT = Path(__file__).with_name("server_kit.py")
CASES = [("central", "secure"), ("central", "reproducible"), ("sites", "secure"), ("sum", "secure")]


def crash(home, *plans):
    """Carry out plans; their figures."""
    path = os.pathsep.join([str(KIT.parent), str(KIT.parent.parent), *sys.path])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": path,
    }
    command = [
        sys.executable,
        str(KIT),
        str(home),
        *(json.dumps({"rounds": 2, **plan}) for plan in plans),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as kit:
        try:
            out, errors = kit.communicate(timeout=3600)
        finally:
            if kit.poll() is None:
                os.killpg(kit.pid, signal.SIGKILL)
    assert kit.returncode == 0, f"status {kit.returncode}: {errors[-3000:]}"
    return [json.loads(line) for line in out.splitlines()]


def assert_nothing_failed(figures):
    for found in figures:
        assert not found["failures"], "\n".join(
            [f"{found['failed']} of {found['cases']} cases", *found["failures"]]
        )
        assert found["kills"] > 0


@pytest.mark.slow
def test_at_some_steps(tmp_path):
    kill = {"deaths": ["kill"]}
    figures = crash(
        tmp_path,
        {**kill, "method": "central", "source": "secure", "stride": 31},
        {**kill, "method": "sites", "source": "secure", "stride": 61},
        {**kill, "method": "sum", "source": "secure", "stride": 83},
    )
    assert_nothing_failed(figures)
    assert all(found["steps"] > 90 for found in figures)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "source"), CASES)
def test_killed_at_every_step_and_again_while_going_on(tmp_path, capsys, method, source):
    figures = crash(tmp_path, {"method": method, "source": source, "deaths": ["kill", "kill"]})
    with capsys.disabled():
        print(
            f"\nserver killed at every step, {method}, {source}: {figures[0]['cases']} cases",
            end="",
        )
    assert_nothing_failed(figures)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["secure", "reproducible"])
def test_the_power_is_cut_at_every_step(tmp_path, source):
    assert_nothing_failed(
        crash(tmp_path, {"method": "central", "source": source, "deaths": ["power cut"]})
    )
