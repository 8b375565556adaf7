"""``--web.config.file``: its requirements for requests, re-read when it or its certificates change.

A change takes effect within about a second, without a restart: certificates and CAs for new
connections, everything else for the next request. A file that has become wrong changes nothing:
the last good one stays in force, the log reports it once, and ``last_reload_ok`` and
``reload_failures`` can be published.

A reload never takes a protection away. A file caught half-written is often a valid file with its
end missing, so one that no longer asks for TLS, for passwords, or for client certificates is
refused like a wrong one; dropping a protection needs a restart.

YAML, TLS and bcrypt are imported only when a file asks for them.
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from vgpu.web.message import Headers, HttpRequest, HttpResponse, plain
from vgpu.web.ratelimit import RateLimiter

if TYPE_CHECKING:
    from vgpu.web.auth import BasicAuth
    from vgpu.web.schema import WebConfig
    from vgpu.web.tls import ServerTls

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
_CLIENT_AUTH = "tls_server_config.client_auth_type"
_MAX_FILE = 1024 * 1024

_Signature = tuple[int, ...]

_UNAUTHORIZED = plain(
    401, "Unauthorized", (("WWW-Authenticate", 'Basic realm="vgpu", charset="UTF-8"'),)
)
_BUSY = plain(503, "too many passwords to check, try again", (("Retry-After", "1"),))
_TOO_MANY_REQUESTS = plain(429, "Too Many Requests", (("Retry-After", "1"),))


class WebConfigError(Exception):
    """A web config file that cannot be used.

    Attributes:
        path: the file.
        key: dotted, e.g. ``tls_server_config.cert_file``; empty for the file as a whole.
        message: what is wrong and what to do.
    """

    def __init__(self, path: str, key: str, message: str) -> None:
        super().__init__(f"--web.config.file {path}: {key}: {message}".replace(": : ", ": "))
        self.path = path
        self.key = key
        self.message = message


class WebPolicy(msgspec.Struct, frozen=True):
    """The requirements of one version of the file.

    Attributes:
        tls: how to answer TLS clients; None is plain HTTP.
        headers: added to every response.
        users: None lets everybody in.
        limiter: None sets no limit.
        protections: keys that a reload may not take away.
    """

    tls: "ServerTls | None" = None
    headers: Headers = ()
    users: "BasicAuth | None" = None
    limiter: RateLimiter | None = None
    protections: frozenset[str] = frozenset()

    @property
    def requires_client_certificates(self) -> bool:
        """Whether a client needs a certificate that the file's CA has signed."""
        return _CLIENT_AUTH in self.protections

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        """The response to a request that is not let through: 429, 401 or 503."""
        if self.limiter is not None and not self.limiter.allow():
            return _TOO_MANY_REQUESTS
        if self.users is None:
            return None
        admitted = self.users.check(request.headers.get("authorization"))
        if admitted is None:
            return _BUSY
        return None if admitted else _UNAUTHORIZED


OPEN = WebPolicy()
"""No file: plain HTTP for everybody."""


class WebConfigFile:
    """The file at ``path``, loaded now and after each change.

    Attributes:
        path: its path.
        last_reload_ok: whether the newest version of the file is the one in force.
        reloads: number of new versions that took effect.
        reload_failures: number of new versions that were refused.

    Raises:
        WebConfigError: the file, or one that it names, is missing or wrong.
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.last_reload_ok = True
        self.reloads = 0
        self.reload_failures = 0
        self._clock = clock
        self._checking = threading.Lock()
        self._next_check = clock() + _CHECK_SECONDS
        self._problem = ""
        self._policy, self._signatures = _load(path, OPEN)

    def current(self) -> WebPolicy:
        """The policy in force; looks for changes at most once a second. Never raises."""
        if self._clock() >= self._next_check and self._checking.acquire(blocking=False):
            try:
                self._reload_if_changed()
                self._next_check = self._clock() + _CHECK_SECONDS
            finally:
                self._checking.release()
        return self._policy

    def _reload_if_changed(self) -> None:
        # After a failure the signatures are of no use: the new version may name other files.
        if self.last_reload_ok and all(
            _signature(p) == signature for p, signature in self._signatures.items()
        ):
            return
        try:
            policy, signatures = _load(self.path, self._policy)
        except Exception as error:  # noqa: BLE001 - serving goes on, whatever a new file does
            self.last_reload_ok = False
            self.reload_failures += 1
            if str(error) != self._problem:
                self._problem = str(error)
                message = "web config not reloaded, the last good one stays"
                log.error(message, extra={"err": error})  # noqa: TRY400 - no traceback: a typo
            return
        self._policy, self._signatures = policy, signatures
        self.last_reload_ok = True
        self.reloads += 1
        self._problem = ""
        log.info("web config reloaded", extra={"path": self.path})


def _load(path: str, previous: WebPolicy) -> tuple[WebPolicy, dict[str, _Signature | None]]:
    """The policy that a file asks for, and the signatures of all files it was made from."""
    from vgpu.web.schema import Invalid, parse  # noqa: PLC0415 - loads YAML

    signatures: dict[str, _Signature | None] = {}
    file = Path(path)

    def read(name: str) -> bytes:
        full = str(file.parent / name)
        content, signatures[full] = _read(full)
        return content

    try:
        config = parse(read(file.name))
        policy = _policy(config, previous, read)
    except Invalid as error:
        raise WebConfigError(path, error.key, error.problem) from None
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise WebConfigError(path, "", f"cannot be read: {problem}") from None
    return policy, signatures


def _policy(config: "WebConfig", previous: WebPolicy, read: Callable[[str], bytes]) -> WebPolicy:
    from vgpu.web.schema import Invalid  # noqa: PLC0415 - loads YAML; loaded by now

    tls_config = config.tls_server_config
    protections: set[str] = set()
    tls = users = limiter = None
    if tls_config is not None:
        from vgpu.web.tls import server_tls  # noqa: PLC0415 - loads ssl

        tls = server_tls(tls_config, read)
        protections.add("tls_server_config")
        if tls_config.client_auth_type == "RequireAndVerifyClientCert":
            protections.add(_CLIENT_AUTH)
        if tls.allowed_sans is not None:
            protections.add("tls_server_config.client_allowed_sans")
    if config.basic_auth_users:
        protections.add("basic_auth_users")
    lost = sorted(previous.protections - protections)
    if lost:
        raise Invalid(lost[0], "was in force and is now missing; restart to do without it")
    if config.basic_auth_users:
        from vgpu.web.auth import BasicAuth, VerifiedPasswords  # noqa: PLC0415 - loads bcrypt

        memory = previous.users.memory if previous.users else VerifiedPasswords()
        users = BasicAuth(config.basic_auth_users, memory)
    interval, burst = config.rate_limit.seconds(), config.rate_limit.burst
    if interval:
        limiter = previous.limiter
        if limiter is None or (limiter.interval, limiter.burst) != (interval, burst):
            limiter = RateLimiter(interval, burst)
    headers = tuple((n, v) for n, v in config.http_server_config.headers.items() if v)
    return WebPolicy(tls, headers, users, limiter, frozenset(protections))


def _read(path: str) -> tuple[bytes, _Signature]:
    """A regular file's content, and the signature of exactly what was read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(_MAX_FILE + 1)
    finally:
        os.close(fd)
    if len(content) > _MAX_FILE:
        raise ValueError(f"larger than {_MAX_FILE} bytes")
    return content, _sign(status)


def _signature(path: str) -> _Signature | None:
    try:
        return _sign(Path(path).stat())
    except OSError:
        return None


def _sign(status: os.stat_result) -> _Signature:
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip
