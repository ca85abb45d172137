"""App bundle (FAB) of Flower in memory: hash and code come from the same bytes, which are read once.

An approval is an Ed25519 signature over the hash and the approval's last day. It is a line of text in the run's
configuration (`APPROVAL`); nothing else in that configuration is trusted.
"""

import hashlib
import re
import sys
import zipfile
from collections.abc import Sequence
from datetime import UTC, date, datetime
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.errors import FieldError
from fedveil.files import read_private, write_private
from fedveil.reading import toml_of

LARGEST = 1 << 28  # largest size in bytes, unpacked
PYPROJECT = "pyproject.toml"


class Bundle:
    """App bundle of a run, with its hash and its files.

    Parameters
    ----------
    content : bytes
        Bytes of the file, as it arrived.

    Attributes
    ----------
    sha256 : str
        SHA-256 of `content`, in hexadecimal digits.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.sha256 = content, hashlib.sha256(content).hexdigest()

    @property
    def project(self) -> str:
        """``"publisher/name"`` from the bundle's pyproject.toml."""
        values = self._pyproject()
        return f"{values['tool']['flwr']['app']['publisher']}/{values['project']['name']}"

    @property
    def client(self) -> str:
        """``"module:attribute"`` of the bundle's ClientApp."""
        return str(self._pyproject()["tool"]["flwr"]["app"]["components"]["clientapp"])

    def files(self) -> dict[str, bytes]:
        """Return the bundle's files by path.

        Raises
        ------
        FieldError
            If the bundle is no archive, is too large, or has a path to outside the archive.
        """
        try:
            with zipfile.ZipFile(BytesIO(self.content)) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                if sum(entry.file_size for entry in entries) > LARGEST:
                    raise FieldError(
                        "bundle", self.sha256, f"unpacks to more than {LARGEST:,} bytes"
                    )
                for entry in entries:
                    path = PurePosixPath(entry.filename)
                    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename:
                        raise FieldError("bundle", entry.filename, "leads out of the bundle")
                return {entry.filename: archive.read(entry) for entry in entries}
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise FieldError("bundle", self.sha256, "is no app bundle") from error

    def _pyproject(self) -> dict[str, Any]:
        try:
            with zipfile.ZipFile(BytesIO(self.content)) as archive, archive.open(PYPROJECT) as file:
                values = toml_of(file.read(1 << 20).decode())
            values["tool"]["flwr"]["app"]["components"]["clientapp"], values["project"]["name"]
        except (zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
            raise FieldError(
                "bundle", self.sha256, "has no pyproject.toml of a Flower app"
            ) from error
        return values


class BundleImporter(MetaPathFinder):
    """Importer of a bundle's modules from memory; the bundle's other files are in a folder.

    Parameters
    ----------
    files : dict of str to bytes
        Files as in `Bundle.files`.
    folder : Path
        Empty folder for the other files. Modules get ``__file__`` paths in it, so that code finds its data next to
        itself.
    """

    def __init__(self, files: dict[str, bytes], folder: Path) -> None:
        self._files, self._folder = files, folder
        for name, data in files.items():
            if not name.endswith(".py"):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def install(self) -> None:
        """Put this importer first in ``sys.meta_path``, as Flower does with an app's folder."""
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        inner = fullname.replace(".", "/")
        for name in (f"{inner}/__init__.py", f"{inner}.py"):
            if name in self._files:
                return spec_from_loader(
                    fullname, _Loader(fullname, str(self._folder / name), self._files[name])
                )
        if not any(
            other.startswith(f"{inner}/") and other.endswith(".py") for other in self._files
        ):
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(self._folder / inner)]
        return spec


class _Loader(SourceFileLoader):
    """Loader with the module's source in memory; it never reads a file."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        if path != self.path:
            raise OSError("there is no compiled file")
        return self._source

    def path_stats(self, path: str) -> dict[str, Any]:
        raise OSError("there is no file")


APPROVAL = "fedveil.approval"  # key of the run's configuration
FIRST = "fedveil approval key 1"
_FORM = re.compile(r"(\d{4}-\d\d-\d\d):([0-9a-f]{128})")


def make_signer(path: str | Path) -> str:
    """Make a key that approves bundles, in a new file of mode 0600; return its public half."""
    key = Ed25519PrivateKey.generate()
    write_private(path, FIRST, key.private_bytes_raw())
    return key.public_key().public_bytes_raw().hex()


def approve(path: str | Path, sha256: str, until: date) -> str:
    """Sign an approval of a bundle, valid to the end of a day (UTC).

    Raises
    ------
    FieldError
        If the key cannot be used, or the day is past.
    """
    if until < datetime.now(UTC).date():
        raise FieldError("until", until.isoformat(), "is over")
    key = Ed25519PrivateKey.from_private_bytes(read_private(path, FIRST, 32))
    return f"{until.isoformat()}:{key.sign(_signed(sha256, until.isoformat())).hex()}"


def approved(signers: Sequence[str], sha256: str, approval: object, now: datetime) -> bool:
    """Whether an approval of a bundle was signed by one of the public keys and is still valid."""
    if not isinstance(approval, str):
        return False
    form = _FORM.fullmatch(approval)
    if form is None:
        return False
    until, signature = form.groups()
    try:
        if now.astimezone(UTC).date() > date.fromisoformat(until):
            return False
    except ValueError:
        return False
    for signer in signers:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer)).verify(
                bytes.fromhex(signature), _signed(sha256, until)
            )
        except (InvalidSignature, ValueError):
            continue
        return True
    return False


def _signed(sha256: str, until: str) -> bytes:
    return f"fedveil approves an app\n{sha256}\n{until}\n".encode()
