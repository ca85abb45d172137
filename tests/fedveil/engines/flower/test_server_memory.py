"""No share without all its masks is in the memory of the server's process, at any time, nor in a log or ledger.

As a script it is the server: a process of its own, which holds still after each answer while its memory is read. Each
site, a process too, notes in a private file what must never be seen.
"""

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.serverapp import ServerApp

from fedveil.flower import FedVeilStrategy, run_in_process, to_arrays
from site_kit import LAYOUT, ProcessGrid, method, network, set_up

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="Linux alone"),
]
LOOKS = 3 + 3 + 1  # greetings, a round, the end
ENOUGH = 64  # bytes of a vector: eight whole numbers of it, or sixteen float32 ones


def hold():
    print("holding", flush=True)
    sys.stdin.readline()


class Watched(ProcessGrid):
    def ask_node(self, message):
        reply = super().ask_node(message)
        self.seen.clear()  # the test's own book
        hold()
        return reply


def main(folder, values):
    sum_ = json.loads(values)
    configs = [
        {**c, "private": f"{folder}/site{i}/private"} for i, c in enumerate(set_up(Path(folder), 3))
    ]
    if sum_["sum"] != "secure":
        for config in configs:
            policy = Path(config["privacy.policy"])
            policy.write_text(policy.read_text().replace("secure sum", "trusted sum"))
    grid, server = Watched(configs, **sum_), ServerApp()
    strategy = FedVeilStrategy(method(**sum_), LAYOUT, rounds=1)

    @server.main()
    def run(grid, context):
        strategy.start(grid, to_arrays(LAYOUT, LAYOUT.read(network())))

    run_in_process(server, grid=grid)
    hold()
    grid.close()


def memory_of(pid):
    """All that a process may write to, piece by piece."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(part, 16) for part in span.split("-"))
                memory.seek(start)
                try:
                    yield memory.read(end - start)
                except OSError:  # a region of the kernel's own
                    continue


def noted(folder):
    """What the sites noted so far: vectors that must not be seen, and what left."""
    never, sent = [], []
    for place in Path(folder).glob("site*/private"):
        with place.open("rb") as file:
            while file.peek(1):
                vectors, left = pickle.load(file)
                never += vectors
                sent.append(left)
    return [v[:ENOUGH] for v in never], [v[:ENOUGH] for v in sent]


def as_text(vector):
    """How a vector of whole numbers would stand in a log or a ledger."""
    numbers = [str(n) for n in struct.unpack("<4q", vector[:32])]
    return vector.hex().encode(), *(comma.join(numbers).encode() for comma in (", ", ",", " "))


def watch(folder, **values):
    """Run the server; after each answer and at the end: which of what must not be seen was, and which that left."""
    command = [sys.executable, __file__, str(folder), json.dumps(values)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    log = (folder / "log").open("wb")  # the sites', too
    server = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment
    )
    before, seen, found, looks = set(), set(), set(), 0
    while server.stdout.readline() == "holding\n":
        never, sent = (set(vectors) for vectors in noted(folder))
        looks += 1
        if looks < LOOKS:  # what is new; at the end all
            never, sent, before = never - before, sent - before, before | never | sent
        for piece in memory_of(server.pid) if sent else ():
            seen |= {v for v in never if v in piece}
            found |= {v for v in sent if v in piece}
        server.stdin.write("\n")
        server.stdin.flush()
    assert server.wait(timeout=60) == 0, (folder / "log").read_text()
    never, sent = noted(folder)
    written = [p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "private"]
    assert len(written) > 3 * 4  # keys, policies, ledgers, heads, the log
    for vector in never:
        seen |= {
            vector for text in written if any(form in text for form in (vector, *as_text(vector)))
        }
    assert looks == LOOKS
    assert len(sent) == len(set(sent)) == 3
    return set(never), seen, found, set(sent)


@pytest.mark.few(0)
def test_of_a_secure_sum_the_server_sees_what_left_and_no_share_with_a_mask_less(tmp_path):
    never, seen, found, sent = watch(tmp_path, sum="secure")
    assert len(never) == 3 * 5  # the sum; with noise; under one mask of two; two as floating point
    assert found == sent
    assert not seen


@pytest.mark.few(0)
def test_of_a_trusted_sum_it_sees_every_share(tmp_path):
    *_, found, sent = watch(tmp_path, sum="trusted", silos=3)
    assert found == sent


if __name__ == "__main__":
    main(*sys.argv[1:])
