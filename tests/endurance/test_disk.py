"""Disks that are full, read-only, torn or slow at every write: a refusal with a reason, nothing lost, and on it goes."""

import itertools
import os
from contextlib import suppress

import pytest
from acts import ACTS

from disk_kit import FAULTS, Disk, failing
from endurance_kit import note
from fedveil.errors import FedVeilError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ACTS)
def test_disk(name, fault, tmp_path):
    act, played = ACTS[name], 0
    for first in itertools.count(1, act.every):
        root = tmp_path / str(first)
        root.mkdir()
        act.before(root)
        disk, done = Disk(root, fault, first), False
        with failing(disk), suppress(OSError, FedVeilError):
            act.act(root)
            done = True
        played += 1
        try:
            act.after(root, done)
        except BaseException as error:
            error.add_note(f"{name}: the disk was {fault} from step {first} on; done: {done}")
            raise
        if fault == "slow":
            assert done
            break
        if disk.steps < first:
            assert done
            break
    note("disk", f"{name}, {fault}", steps=disk.steps, played=played)
