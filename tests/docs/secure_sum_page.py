"""The blocks and commands of docs/secure-sum-app.md, written out for three wards in a folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "secure-sum-app.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
WARDS = 3


def blocks(kind):
    return [text for found, text in BLOCK.findall(PAGE.read_text()) if found == kind]


def of_ward(text, i):
    """What the page says of ward 0, for ward i."""
    for name in ("ward", "heads", "partition-id="):
        text = text.replace(f"{name}0", f"{name}{i}")
    return text.replace("8100", str(8100 + i))


def write_code(folder):
    ward, server = blocks("py")
    (folder / "ward.py").write_text(ward)
    (folder / "server_app.py").write_text(server)


def environment(folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return os.environ | {"PATH": path, "PYTHONPATH": found}


def shell(folder, command):
    """Run a command of the page; what it prints."""
    command = command.replace("PYTHONPATH=. ", "").replace(
        "fedveil ", f"{sys.executable} -m fedveil "
    )
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def set_up(folder):
    """The page's section of what each ward does once."""
    init, rehearse = blocks("sh")[:2]
    *_, policy = blocks("toml")
    printed = [shell(folder, of_ward(init, i)) for i in range(WARDS)]
    publics = [re.findall(r"\b[0-9a-f]{64}\b", text)[-1] for text in printed]
    for i in range(WARDS):
        others = [key for j, key in enumerate(publics) if j != i]
        text = policy.replace("ward0", f"ward{i}").replace("HEADS0", str(folder / f"heads{i}"))
        text = text.replace("PUBLIC1", others[0]).replace("PUBLIC2", others[1])
        (folder / f"ward{i}" / "policy.toml").write_text(text)
    return [shell(folder, of_ward(rehearse, i)) for i in range(WARDS)]
