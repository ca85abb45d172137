"""Values that hostile code plants at a site, and the search for them; the search is not the server's."""

import re
from pathlib import Path

import numpy as np

# put together here, so that no text of this file, nor what is compiled of it, holds them
SECRET, VALUE = "-".join(["patient", "4711", "planted"]), float(".".join(["4711", "251953125"]))
PATTERNS = [
    SECRET.encode(),
    np.float32(VALUE).tobytes(),
    np.float64(VALUE).tobytes(),
    str(VALUE).encode(),
]
# four bytes are somewhere in a gigabyte by chance
LONG = [SECRET.encode(), np.full(3, VALUE, np.float32).tobytes(), *PATTERNS[2:]]


def planted(folder, seen):
    """Files below a folder, and the recorder's own, that hold a planted value."""
    found = []
    for path in [*Path(folder).rglob("*"), Path(seen)]:
        if path.is_file() and path.suffix not in (
            ".py",
            ".pyc",
        ):  # the job's own code names what it plants
            content = path.read_bytes()
            if any(pattern in content for pattern in PATTERNS):
                found.append(path)
    return found


def in_memory(pid):
    """Planted values in the memory of a process, and how many bytes of it were read."""
    found, read = set(), 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if span is None:
                continue
            start, end = (int(edge, 16) for edge in span.groups())
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except (OSError, ValueError, OverflowError):
                continue
            read += len(content)
            found |= {pattern for pattern in LONG if pattern in content}
    return found, read
