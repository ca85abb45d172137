"""Where people wait: commands from their start, in processes of their own, and shadow models."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.compare import environment
from benchmarks.memory import ROOT

PRESETS = ("digits-compare", "digits-record", "digits-person")
COMMANDS = {
    "audit on digits: every attack, with and without noise": ("audit", "digits-cia"),
    "the demo: five settings, three seeds": ("compare", "--seeds", "3"),
}
AUDIT, DEMO = COMMANDS
SHADOWS = 64
_TICKS = os.sysconf("SC_CLK_TCK")


def waits(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds until a run's first round beyond PyTorch's import, of whole commands, and of LiRA's shadow models."""
    repeats = 1 if quick else 7
    torch = [_whole([sys.executable, "-c", "import torch"])["cpu_s"] for _ in range(repeats)]
    starts = {}
    for preset in PRESETS:
        found = [_first_round(preset) - median(torch) for _ in range(repeats)]
        starts[preset] = {"minimum_s": round(min(found), 3), "median_s": round(median(found), 3)}
        say(f"  {preset}: first round {starts[preset]['median_s']:.2f} s after PyTorch")
    commands = {}
    for title, arguments in COMMANDS.items():
        commands[title] = {"command": " ".join(("fedveil", *arguments)), **_in_folder(arguments)}
        say(
            f"  {title}: {commands[title]['wall_s']:.1f} s, {commands[title]['cpu_s']:.1f} s of CPU"
        )
    shadows = [_shadows() for _ in range(1 if quick else 3)]
    say(f"  {SHADOWS} shadow models: {min(shadows):.1f} s of CPU")
    return {
        "torch_cpu_s": round(median(torch), 3),
        "starts": starts,
        "commands": commands,
        "lira": {
            "shadows": SHADOWS,
            "minimum_s": round(min(shadows), 3),
            "median_s": round(median(shadows), 3),
        },
    }


def _first_round(preset: str) -> float:
    """CPU seconds that ``fedveil run`` has used when its first round stands in metrics.jsonl; then it is stopped."""
    with TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        command = [sys.executable, "-m", "fedveil.cli", "run", preset, "--out", str(metrics.parent)]
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            while not (metrics.exists() and metrics.stat().st_size):
                if child.poll() is not None:
                    raise RuntimeError(
                        f"{preset} ended before its first round: {child.stderr.read().decode()[-500:]}"
                    )
                time.sleep(0.002)
            fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS  # user and system
        finally:
            child.kill()
            child.communicate()


def _in_folder(arguments: Sequence[str]) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        return _whole(
            [sys.executable, "-m", "fedveil.cli", *arguments, "--out", str(Path(folder) / "out")]
        )


def _whole(command: Sequence[str]) -> dict[str, float]:
    """Seconds by the clock, and of the processor in the process and those that it started."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 3), "cpu_s": round(cpu, 3)}


def _shadows() -> float:
    """CPU seconds of LiRA's shadow models on digits: half of 1,400 records each, 60 epochs."""
    import torch
    from sklearn.datasets import load_digits

    from fedveil.layout import Layout
    from fedveil.learning import ClientData, LocalTraining, build_model
    from fedveil_lab.attacks.membership import balanced, train_shadows

    x, y = load_digits(return_X_y=True)
    data = ClientData(torch.tensor(x[:1400] / 16, dtype=torch.float32), torch.tensor(y[:1400]))
    model = build_model("mlp", input_shape=(64,), outputs=10, seed=0, hidden=(64,))
    layout, local = Layout.from_module(model), LocalTraining(epochs=60, batch_size=20, lr=0.1)
    inside, began = balanced(SHADOWS, len(x[:1400]), seed=0), time.process_time()
    train_shadows(model, layout, local, layout.read(model), data, inside)
    return time.process_time() - began
