"""How many bits a second one isolated bundle tells another that helps it, by each way that isolation leaves open.

    python -m benchmarks.channels [--seconds 4]

Two processes are isolated as `fedveil node` isolates code. They have a clock and a place in a file in common, and no
more. One sends bits that were drawn beforehand, one a slot; the other guesses each from what it sees in its slot, by a
threshold that the first half of the slots taught. Slots are halved from half a second on. Reported is the largest
rate, less what a code that mends the errors costs: (1 - H(error)) bits a slot, H the binary entropy. A way through
which whole bytes go (a pipe in the file system) is measured by its bytes.
"""

import ctypes
import json
import math
import mmap
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path

from fedveil.node.isolation import isolate

LIBC = ctypes.CDLL(None, use_errno=True)
FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, 0)
LONGEST, SHORTEST = 0.5, 1e-4  # seconds a slot


class Way:
    """A way of sending: `send` holds a bit until the time `until`, `receive` gives a number that follows it."""

    shortest = 0.0  # seconds a slot

    def __init__(self, file: Path) -> None:
        self.file = file

    def send(self, bit: int, until: float) -> None:
        raise NotImplementedError

    def receive(self, until: float) -> float:
        raise NotImplementedError


class Futex(Way):
    """A word of a file that both may read: who waits on it is woken by the other."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._address = _mapped(file, mmap.PAGESIZE)

    def send(self, bit: int, until: float) -> None:
        while time.time() < until:
            if bit:
                LIBC.syscall(
                    FUTEX, ctypes.c_void_p(self._address), 1, 1 << 30, None, None, 0
                )  # FUTEX_WAKE
            else:
                time.sleep(max(0.0, min(1e-4, until - time.time())))

    def receive(self, until: float) -> float:
        woken = 0
        while (left := until - time.time()) > 0:
            limit = (ctypes.c_long * 2)(0, int(min(left, 0.9) * 1e9))
            word = ctypes.c_uint.from_address(self._address).value
            woken += (
                LIBC.syscall(FUTEX, ctypes.c_void_p(self._address), 0, word, limit, None, 0) == 0
            )  # FUTEX_WAIT
        return woken


class PageCache(Way):
    """Whether pages of a file that both may read are in memory."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._handle, self._address = os.open(file, os.O_RDONLY), _mapped(file, mmap.PAGESIZE)
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def send(self, bit: int, until: float) -> None:
        if bit:
            os.pread(self._handle, 1, 0)
        else:
            os.posix_fadvise(self._handle, 0, mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        _sleep_until(until)

    def receive(self, until: float) -> float:
        _sleep_until(until - 1e-5)
        found = ctypes.create_string_buffer(1)
        LIBC.mincore(ctypes.c_void_p(self._address), ctypes.c_size_t(mmap.PAGESIZE), found)
        return found.raw[0] & 1


class Memory(Way):
    """How much memory the machine has free."""

    def send(self, bit: int, until: float) -> None:
        held = mmap.mmap(-1, 1 << 26) if bit else None
        for place in range(0, 1 << 26, mmap.PAGESIZE) if held else ():
            held[place] = 1
            if time.time() > until:
                break
        _sleep_until(until)
        if held is not None:
            held.close()

    def receive(self, until: float) -> float:
        _sleep_until(until - (until - time.time()) / 10)
        return -float(os.sysconf("SC_AVPHYS_PAGES"))


class Pipes(Way):
    """The pages that one user's pipes may have together: where they are used up, a new pipe is a small one."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._pages = int(Path("/proc/sys/fs/pipe-user-pages-soft").read_text())

    def send(self, bit: int, until: float) -> None:
        held = [os.pipe() for _ in range(self._pages // 16 if bit else 0)]
        _sleep_until(until)
        for pair in held:
            os.close(pair[0])
            os.close(pair[1])

    def receive(self, until: float) -> float:
        _sleep_until(until - (until - time.time()) / 4)
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        taken = os.write(theirs, bytes(1 << 16))
        os.close(ours)
        os.close(theirs)
        return -float(taken)


class Processor(Way):
    """The time of the processor that both run on."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def send(self, bit: int, until: float) -> None:
        while bit and time.time() < until:
            pass
        _sleep_until(until)

    def receive(self, until: float) -> float:
        turns = 0
        while time.time() < until:
            turns += 1
        return -float(turns)


class Tasks(Way):
    """The number of processes that the machine counts."""

    shortest = 0.01

    def send(self, bit: int, until: float) -> None:
        held = []
        for _ in range(8 if bit else 0):
            child = os.fork()
            if child == 0:
                _sleep_until(until)
                os._exit(0)
            held.append(child)
        _sleep_until(until)
        for child in held:
            os.waitpid(child, 0)

    def receive(self, until: float) -> float:
        _sleep_until(until - (until - time.time()) / 4)
        return float(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


WAYS: dict[str, type[Way]] = {
    "futex": Futex,
    "page cache": PageCache,
    "processor": Processor,
    "memory": Memory,
    "pipes": Pipes,
    "tasks": Tasks,
}


def _mapped(file: Path, size: int) -> int:
    """The address of a file that is mapped for reading, shared."""
    LIBC.mmap.restype, LIBC.mmap.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_long] * 4],
    )
    address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, os.open(file, os.O_RDONLY), 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"{file} is not mapped")
    return int(address)


def _sleep_until(until: float) -> None:
    time.sleep(max(0.0, until - time.time()))


def _play(
    folder: str, role: str, file: str, name: str, begin: float, slot: float, bits: str
) -> None:
    """One end, isolated; the receiver prints what it saw in each slot."""
    isolate(Path(folder))
    way = WAYS[name](Path(file))
    seen = []
    for number, bit in enumerate(bits):
        _sleep_until(begin + number * slot)
        until = begin + (number + 1) * slot
        if role == "send":
            way.send(int(bit), until)
        else:
            seen.append(way.receive(until))
    print(json.dumps(seen))


def _sent(name: str, slot: float, seconds: float, file: Path) -> float:
    """The share of bits that the receiver guesses wrong, with the best threshold of the first half for the second."""
    bits = [random.getrandbits(1) for _ in range(max(16, int(seconds / slot)))]
    begin = time.time() + 1.5
    ends = []
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        for role, folder in (("send", one), ("receive", other)):
            given = [
                folder,
                role,
                str(file),
                name,
                repr(begin),
                repr(slot),
                "".join(map(str, bits)),
            ]
            command = [sys.executable, "-m", "benchmarks.channels", "--end", *given]
            ends.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        seen = [json.loads(end.communicate()[0] or "[]") for end in ends][1]
    if len(seen) != len(bits):
        raise SystemExit(f"{name}: an end failed")
    half = len(bits) // 2

    def wrong(threshold: float, sign: int, part: slice) -> float:
        pairs = list(zip(seen[part], bits[part], strict=True))
        return sum((sign * (value - threshold) > 0) != bool(bit) for value, bit in pairs) / len(
            pairs
        )

    tries = [
        (wrong(t, sign, slice(half)), t, sign) for t in {v - 0.5 for v in seen} for sign in (1, -1)
    ]
    _, threshold, sign = min(tries)
    return wrong(threshold, sign, slice(half, None))


def _left(error: float) -> float:
    """Bits that a slot tells at this rate of errors."""
    if error in (0.0, 1.0):
        return 1.0
    return 1.0 + error * math.log2(error) + (1.0 - error) * math.log2(1.0 - error)


def bandwidth(name: str, seconds: float, file: Path) -> tuple[float, float, float]:
    """The largest rate in bits a second, with its slot and its share of errors."""
    best, slot = (0.0, LONGEST, 0.5), LONGEST
    while slot >= max(SHORTEST, WAYS[name].shortest):
        error = min(_sent(name, slot, seconds, file), 0.5)
        best = max(best, (_left(error) / slot, slot, error))
        slot /= 2
    return best


def pipe_bandwidth(folder: Path) -> float:
    """Bits a second through a pipe that lay in the file system before."""
    pipe, whole = folder / "pipe", 1 << 30
    os.mkfifo(pipe)
    code = "from pathlib import Path\nfrom fedveil.node.isolation import isolate\nisolate(Path({own!r}))\n"
    send = "f = open({pipe!r}, 'wb', 0)\nfor _ in range({n}): f.write(bytes(1 << 16))"
    receive = "f = open({pipe!r}, 'rb', 0)\nwhile f.read(1 << 16): pass"
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        began = time.time()
        ends = [
            subprocess.Popen(
                [sys.executable, "-c", (code + text).format(own=own, pipe=str(pipe), n=whole >> 16)]
            )
            for own, text in ((one, send), (other, receive))
        ]
        for end in ends:
            end.wait()
        return 8 * whole / (time.time() - began)


def main() -> None:
    parser = ArgumentParser(
        prog="python -m benchmarks.channels", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of sending, for each length of slot"
    )
    parser.add_argument("--only", choices=list(WAYS), help="one way")
    parser.add_argument("--end", nargs=7, help="one end of a measurement")
    given = parser.parse_args()
    if given.end:
        folder, role, file, name, begin, slot, bits = given.end
        _play(folder, role, file, name, float(begin), float(slot), bits)
        return
    cores = os.cpu_count()
    print(
        f"{platform.machine()}, {cores} cores, Linux {platform.release()}, {datetime.now(UTC):%d %B %Y}"
    )
    with tempfile.TemporaryDirectory(dir=os.environ.get("CHANNEL_FOLDER")) as folder:
        file = Path(folder) / "both-read"
        file.write_bytes(bytes(mmap.PAGESIZE))
        os.sync()
        for name in [given.only] if given.only else WAYS:
            rate, slot, error = bandwidth(name, given.seconds, file)
            print(
                f"{name:12} {rate:10,.0f} bits a second (slots of {slot * 1000:.3g} ms, {error:.1%} wrong)",
                flush=True,
            )
        if given.only is None:
            print(f"{'named pipe':12} {pipe_bandwidth(Path(folder)):14,.0f} bits a second")


if __name__ == "__main__":
    main()
