"""Write constraints-hashes.txt: every pin of constraints.txt but PyTorch's, with the hashes of its files: `make hashes`.

PyTorch is left out, since its builds (CPU, CUDA) come from other places with other bytes. The index is asked for hashes
and nothing is downloaded.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HASHES = ROOT / "constraints-hashes.txt"
HEAD = """\
# Written by `make hashes` from constraints.txt: every pin but PyTorch's, with the SHA-256 of its files. pip installs
# nothing else with --require-hashes: see "What is installed" in docs/dependencies.md.
"""
UNHASHED = ("torch",)


def pins() -> list[str]:
    """The pins that get hashes, a line each."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    return [line for line in named if line.partition("==")[0] not in UNHASHED]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "pins.txt", Path(folder) / "hashed.txt"
        given.write_text("".join(f"{line}\n" for line in pins()))
        command = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--no-deps"]
        command += ["--generate-hashes", "--universal", "--python-version", "3.11"]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", given, "-o", made]
        subprocess.run(command, check=True)
        HASHES.write_text(HEAD + made.read_text())


if __name__ == "__main__":
    main()
