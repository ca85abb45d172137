"""A site's key of one study, as a file that its owner alone can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedveil.errors import FieldError
from fedveil.secure import SiteKey

FIRST = "fedveil site key 1"
_BINARY = getattr(os, "O_BINARY", 0)


def make_key(path: str | Path) -> SiteKey:
    """Make a key and write it to a new file of mode 0600.

    Raises
    ------
    FieldError
        If the file exists: whoever overwrote a key could no longer answer under it.
    """
    file, (key, secret) = Path(path).expanduser(), SiteKey.new()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
    except FileExistsError as error:
        raise FieldError("key", str(file), "exists: a study has one key; name another file") from error
    with os.fdopen(handle, "wb") as stream:
        stream.write(f"{FIRST}\n{secret.hex()}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())
    return key


def read_key(path: str | Path) -> SiteKey:
    """Read a key.

    Raises
    ------
    FieldError
        If there is none, others can read or write it, or it is damaged; nothing of what it holds is shown.
    """
    file = Path(path).expanduser()
    try:
        handle = os.open(file, os.O_RDONLY | _BINARY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        accepted = "cannot be read as a key file: make one by `fedveil keys new FILE` (a link is not followed)"
        raise FieldError("key", str(file), accepted) from error
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise FieldError("key", str(file), "must be a file")
    with os.fdopen(handle, "rb") as stream:
        if os.name == "posix" and (about.st_mode & 0o077 or about.st_uid not in (os.geteuid(), 0)):
            raise FieldError(
                "key", str(file), f"can be read by others: chmod 600 {file.name}; if others had it, end it"
            )
        lines = stream.read(1 << 10).decode("ascii", "replace").split("\n")
    try:
        if lines[0] != FIRST or lines[2:] != [""]:
            raise ValueError
        return SiteKey(bytes.fromhex(lines[1]))
    except (ValueError, IndexError):
        raise FieldError("key", str(file), "is no key file, or damaged: restore it, or agree on a new key") from None


def end_key(path: str | Path) -> SiteKey:
    """Destroy a key: overwrite its file and remove it. Copies and backups are its owner's to find.

    Raises
    ------
    FieldError
        As `read_key`.
    """
    file, key = Path(path).expanduser(), read_key(path)
    with file.open("r+b") as stream:
        stream.write(os.urandom(file.stat().st_size))
        stream.flush()
        os.fsync(stream.fileno())
    file.unlink()
    return key
