"""What the pages show to be typed: their blocks and commands, and a process of its own for each."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "lab/*.md", "studies/*.md", "examples/*/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?:    .*\n(?:\n(?=    ))?)+)")
NAME = re.compile(r"# (\S+\.\w+)\n")
PROGRAMS = (
    "fedveil",
    "python",
    "pip",
    "make",
    "flwr",
    "flower-supernode",
    "jupyter",
    "export",
    "podman",
)


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes
    ----------
    page : str
        From the checkout's root.
    kind : str
        ``"python"``, ``"py"`` (a part of a program), ``"toml"``, ``"commands"``, or ``""`` for anything else.
    text : str
        Without its indentation.
    """

    page: str
    kind: str
    text: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def file(self) -> str:
        """The name of the file that the block is saved as, or ""."""
        name = NAME.match(self.text)
        return name[1] if name else ""

    def commands(self) -> list[str]:
        """Its commands, each in a line and without its comment; a line that is no command is left out."""
        if self.kind != "commands":
            return []
        joined = re.sub(r"\\\n\s*", "", self.text)
        lines = (re.sub(r"\s+# .*", "", line) for line in joined.splitlines())
        return [line for line in lines if line.split(" ", 1)[0] in PROGRAMS]


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    name, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    found = [
        (m.start(), "commands" if m[1] == "console" else m[1], m[2]) for m in FENCE.finditer(text)
    ]
    rest = FENCE.sub(lambda m: re.sub(r"[^\n]", "x", m[0]), text)
    for match in INDENTED.finditer(rest):
        inner = textwrap.dedent(match[1])
        found.append((match.start(), kind_of(inner), inner))
    return [Block(name, kind, inner) for _, kind, inner in sorted(found)]


def kind_of(text: str) -> str:
    """What an indented block holds."""
    if any(line.split(" ", 1)[0] in PROGRAMS for line in text.splitlines()):
        return "commands"
    import tomllib

    try:
        if tomllib.loads(text):
            return "toml"
    except tomllib.TOMLDecodeError:
        pass
    return ""


def fresh(
    command: list[str], folder: Path, seconds: float = 3000
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, in a folder."""
    own = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [
                *(str(ROOT / part) for part in ("src", "lab/src", "studies/src")),
                os.environ.get("PYTHONPATH", ""),
            ]
        ),
        "COLUMNS": "120",
        "MPLBACKEND": "agg",
    }
    nothing = subprocess.DEVNULL
    return subprocess.run(
        command,
        cwd=folder,
        env=own,
        stdin=nothing,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def python() -> list[str]:
    """This Python."""
    return [sys.executable]


def words_of(command: str) -> list[str]:
    """A command of a page, for this Python."""
    first, *rest = shlex.split(command)
    return {"fedveil": [sys.executable, "-m", "fedveil"], "python": [sys.executable]}.get(
        first, [first]
    ) + rest
