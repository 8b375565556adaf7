"""Basic authentication against bcrypt hashes: the web config file's ``basic_auth_users``.

A hash costs tens of milliseconds by design, and Prometheus sends its password with every scrape.
So the last password that verified for a user is remembered, as a keyed digest whose key never
leaves this process. Failures are not remembered: they would let strangers fill the memory.
"""

import base64
import binascii
import hmac
import secrets
import threading
from collections.abc import Container, Mapping

import bcrypt

_MAX_PASSWORD = 72
"""Number of bytes of a password that bcrypt reads; the rest is ignored, as htpasswd and Go do."""
_CONCURRENT_HASHES = 2
_MAX_WAITING = 32

_hashing = threading.BoundedSemaphore(_CONCURRENT_HASHES)
_waiting = threading.BoundedSemaphore(_MAX_WAITING)


class VerifiedPasswords:
    """The last password that verified, by user; outlives a reload of the file."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._verified: dict[bytes, bytes] = {}

    def digest(self, hashed: bytes, password: bytes) -> bytes:
        """The digest of a password; another hash in the file makes another digest."""
        return hmac.digest(self._key, hashed + password, "sha256")  # every hash has 60 bytes

    def holds(self, user: bytes, digest: bytes) -> bool:
        """Whether this is what verified last."""
        return hmac.compare_digest(self._verified.get(user, b""), digest)

    def keep(self, user: bytes, digest: bytes) -> None:
        """Remember one password of a user, instead of the one before."""
        self._verified[user] = digest

    def forget_all_but(self, users: Container[bytes]) -> None:
        """Drop the users that the file no longer has."""
        kept = self._verified.copy().items()
        self._verified = {user: digest for user, digest in kept if user in users}


class BasicAuth:
    """Users and their bcrypt hashes, with the memory of those who verified before."""

    def __init__(self, users: Mapping[str, str], memory: VerifiedPasswords) -> None:
        self.memory = memory
        self._hashes = {user.encode(): hashed.encode() for user, hashed in users.items()}
        cost = max(int(hashed[4:6]) for hashed in users.values())
        # An unknown user must cost as much as the costliest known one. No password has this hash.
        self._decoy = bcrypt.gensalt(cost) + b"." * 31
        memory.forget_all_but(self._hashes)

    def check(self, authorization: str | None) -> bool | None:
        """Whether the value of an Authorization header names a user with the right password.

        None means that too many passwords wait to be hashed: strangers who guess must not hold
        all the connections. Those who verified before are not affected.
        """
        credentials = _parse(authorization)
        if credentials is None:
            return False
        user, password = credentials
        hashed = self._hashes.get(user, self._decoy)
        digest = self.memory.digest(hashed, password)
        if self.memory.holds(user, digest):
            return True
        if not _waiting.acquire(blocking=False):
            return None
        try:
            with _hashing:
                # Another connection may have verified the same password in the meantime.
                good = self.memory.holds(user, digest) or bcrypt.checkpw(password, hashed)
                if good:  # before the next one of those who wait looks
                    self.memory.keep(user, digest)
        finally:
            _waiting.release()
        return good


def _parse(authorization: str | None) -> tuple[bytes, bytes] | None:
    """The user and the password of ``Basic <base64>`` (RFC 7617), or None."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(" ").encode("latin-1"), validate=True)
    except binascii.Error:
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password[:_MAX_PASSWORD]) if colon else None
