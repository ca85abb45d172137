"""Keys of the sites of one study: X25519 (RFC 7748) by the `cryptography` package.

There is no forward secrecy: a site's key, if it leaks later, unmasks every recorded share of that site. A key is
therefore made for one study and destroyed at its end.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NoReturn

from fedveil.errors import FieldError
from fedveil.mechanisms import KeyedSource

_PRIME = (1 << 255) - 19
_BYTES = 32

PublicKey = bytes
"""32 bytes, little-endian, as RFC 7748 writes them; canonical, see `public_key`."""


def public_key(value: str | bytes, field: str = "peers") -> PublicKey:
    """Read a public key from its text or bytes.

    Parameters
    ----------
    value : str or bytes
        64 hexadecimal digits, or 32 bytes.
    field : str
        Name of the field, for errors.

    Raises
    ------
    FieldError
        If it is no key, or not in its canonical form. X25519 accepts other forms of the same point, so one site could
        count as two.
    """
    try:
        raw = bytes.fromhex(value) if isinstance(value, str) else value
    except ValueError:
        raw = b""
    if not isinstance(raw, bytes) or len(raw) != _BYTES:
        raise FieldError(
            field,
            value,
            "must be a public key, 64 hexadecimal digits, as `fedveil keys show` prints it",
        )
    number = int.from_bytes(raw, "little")
    if number >= _PRIME:
        raise FieldError(
            field,
            value,
            "is no canonical X25519 key: ask the site for what `fedveil keys show` prints",
        )
    return raw


def _derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), _BYTES, salt=salt, info=info).derive(secret)


class SiteKey:
    """Secret key of one site for one study: its X25519 key, and the key of its noise.

    Parameters
    ----------
    secret : bytes
        64 bytes: the X25519 private key, then the noise key. They are never printed, pickled or compared.

    Examples
    --------
    >>> key, secret = fv.SiteKey.new()
    >>> len(secret)
    64
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != 2 * _BYTES:
            raise FieldError(
                "secret", "of another length", "must be 64 bytes: make a key by `fedveil keys new`"
            )
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.from_private_bytes(secret[:_BYTES])
        self._noise = secret[_BYTES:]
        self._shared: dict[PublicKey, bytes] = {}  # with each peer: the same in every round
        self.public: PublicKey = self._private.public_key().public_bytes_raw()

    @classmethod
    def new(cls) -> "tuple[SiteKey, bytes]":
        """Make a new key from the operating system's randomness; also return its 64 secret bytes for a private file."""
        secret = os.urandom(2 * _BYTES)
        return cls(secret), secret

    def pair_key(self, peer: PublicKey, info: bytes) -> bytes:
        """Derive 32 bytes that only this site and a peer can compute, for one purpose.

        Parameters
        ----------
        peer : bytes
            Public key of the peer.
        info : bytes
            Purpose of the key; another purpose gives an independent key. Both public keys also enter.

        Raises
        ------
        FieldError
            If the peer's key is this site's own, or a point of low order (its shared secret would be zero).
        """
        if peer == self.public:
            raise FieldError("peers", peer.hex(), "is this site's own key")
        if peer not in self._shared:
            self._shared[peer] = self._agreed(peer)
        bound = b"".join(sorted((self.public, peer)))
        return _derived(self._shared[peer], b"fedveil secure sum", bound + info)

    def _agreed(self, peer: PublicKey) -> bytes:
        """Compute the secret that X25519 gives this site and a peer."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise FieldError(
                "peers", peer.hex(), "is a point of low order, and no site's key"
            ) from error

    def source(self, context: bytes) -> KeyedSource:
        """Make this site's source of noise for one question; equal questions give the same source.

        So a site that was restored to an earlier state repeats its answer, and never gives one with other noise.

        Parameters
        ----------
        context : bytes
            Digest of the question.
        """
        return KeyedSource(_derived(self._noise, b"fedveil noise", context))

    def __reduce__(self) -> NoReturn:
        """Refuse pickling and copying."""
        raise TypeError("a site's key cannot be pickled or copied")

    def __repr__(self) -> str:
        """Return a text with the fingerprint of the public key only."""
        return f"SiteKey({fingerprint([self.public])})"


def fingerprint(keys: Iterable[PublicKey]) -> str:
    """Return 32 hexadecimal digits for a set of public keys in any order, for people to compare by telephone.

    A server could try to make two sets with its own keys look alike. With 16 digits it would need 2^32 tries; with 32
    it needs 2^64.
    """
    return hashlib.sha256(b"".join(sorted(keys))).hexdigest()[:32]


def roster(keys: object, field: str = "roster") -> tuple[PublicKey, ...]:
    """Check public keys, and return them in ascending order.

    Raises
    ------
    FieldError
        If these are no keys, or a key occurs twice.
    """
    if not isinstance(keys, Sequence) or isinstance(keys, str | bytes):
        raise FieldError(field, keys, "must be a list of public keys")
    ordered = sorted(public_key(key, field) for key in keys)
    for one, other in pairwise(ordered):
        if one == other:
            raise FieldError(field, one.hex(), "occurs twice: every site has a key of its own")
    return tuple(ordered)
