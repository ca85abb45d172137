"""A site's key of one study, as a file that its owner alone can read."""

import os
import stat
from pathlib import Path

from fedveil.engines.files import BINARY, create
from fedveil.errors import FieldError
from fedveil.secure import SiteKey

FIRST, LEDGER = "fedveil site key 1", "ledger "


def make_key(path: str | Path) -> SiteKey:
    """Make a key and write it to a new file of mode 0600.

    Raises
    ------
    FieldError
        As `write_private`.
    """
    key, secret = SiteKey.new()
    write_private(path, FIRST, secret)
    return key


def read_key(path: str | Path) -> SiteKey:
    """Read a key.

    Raises
    ------
    FieldError
        As `read_private`.
    """
    return SiteKey(read_private(path, FIRST, 64))


def bind_key(path: str | Path, ledger: str) -> None:
    """Have a key answer from one ledger alone, whose id its file holds from the first use on.

    A second ledger knows nothing of what was answered from the first: it would answer the same question about other
    data, under the same masks.

    Raises
    ------
    FieldError
        If it is another ledger's, or its file cannot be written.
    """
    file, line = Path(path).expanduser(), f"{LEDGER}{ledger}"
    try:
        if len(file.read_text("ascii").splitlines()) < 3:
            with file.open("ab", buffering=0) as stream:  # of two processes that do so, the first line counts
                stream.write(f"{line}\n".encode())
                os.fsync(stream.fileno())
        found = file.read_text("ascii").splitlines()[2]
    except OSError as error:
        raise FieldError("key", str(file), "cannot be written: chmod 600, since it names its ledger") from error
    if found != line:
        accepted = "answers from another ledger: a data set, and a ledger begun anew, has a key of its own"
        raise FieldError("key", str(file), f"{accepted} (fedveil keys new)")


def write_private(path: str | Path, first: str, secret: bytes) -> None:
    """Write a secret to a new file of mode 0600, under a line that says what it is.

    Raises
    ------
    FieldError
        If the file exists: whoever overwrote a key could no longer answer under it.
    """
    file = Path(path).expanduser()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        create(file, f"{first}\n{secret.hex()}\n".encode())
    except FileExistsError as error:
        raise FieldError("key", str(file), "exists: a study has one key; name another file") from error


def read_private(path: str | Path, first: str, size: int) -> bytes:
    """The secret of so many bytes in a file, under the line that says what it is.

    Raises
    ------
    FieldError
        If there is none, others can read or write it, or it is damaged; nothing of what it holds is shown.
    """
    file = Path(path).expanduser()
    try:
        handle = os.open(file, os.O_RDONLY | BINARY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        accepted = "cannot be read as a key file: make one first (a link is not followed)"
        raise FieldError("key", str(file), accepted) from error
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise FieldError("key", str(file), "must be a file")
    with os.fdopen(handle, "rb") as stream:
        if os.name == "posix" and (about.st_mode & 0o077 or about.st_uid not in (os.geteuid(), 0)):
            raise FieldError("key", str(file), f"others can read it: chmod 600 {file.name}; if others had it, end it")
        lines = stream.read(1 << 10).decode("ascii", "replace").split("\n")
    try:
        secret = bytes.fromhex(lines[1])
        more, end = lines[2:-1], lines[-1]
        if lines[0] != first or end or not all(line.startswith(LEDGER) for line in more) or len(secret) != size:
            raise ValueError
    except (ValueError, IndexError):
        raise FieldError("key", str(file), "is no key file, or damaged: restore it, or agree on a new key") from None
    return secret


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
