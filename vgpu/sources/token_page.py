"""What the token daemon of this node reports of its pods, from its page of metrics.

The page is the one that Prometheus scrapes. Whatever answers at the address is not trusted: the
answer is bounded in size and time, redirects and proxies are not followed, and a pod whose numbers
are impossible is refused alone.
"""

import ipaddress
import math
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final

from vgpu.facts import TokenSample, TokenTenant
from vgpu.reasons import Reason, Rejection, SourceError
from vgpu.schemes.kubeshare.text import is_uuid
from vgpu.sources.http_access import (
    NO_CREDENTIALS,
    BadOption,
    ClientOptions,
    authorization,
    tls_context,
)

PREFIX: Final = "--tokens."
"""How the flags of the page begin."""

TIMEOUT_SECONDS: Final = 2.0
"""Maximum time for the whole answer, in seconds. It comes from this node, in milliseconds."""

PAGE_LIMIT: Final = 4 * 2**20
"""Maximum size of a page in bytes; 511 pods, all that a node can have, need a half."""

MAX_TENANTS: Final = 511
"""Maximum number of pods on a node: KubeShare has no more ports."""

MARK: Final = "vgpu_token_ready"
"""A series of every page of a token daemon."""

FIELDS: Final = {
    "vgpu_token_request_ratio": "request_ratio",
    "vgpu_token_limit_ratio": "limit_ratio",
    "vgpu_token_window_share_ratio": "window_share_ratio",
    "vgpu_token_wait_seconds_sum": "wait_seconds",
}
"""The metrics that are read, by the field of a tenant."""

_RATIOS: Final = ("request_ratio", "limit_ratio", "window_share_ratio")

_CHUNK: Final = 64 * 1024
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))"
    r"(?::(?P<port>\d{1,5}))?(?P<path>/[!-~]*)?"
)
_LABEL: Final = re.compile(r'(\w{1,64})="([^"\\]{1,253})",?')
_LINE: Final = re.compile(
    r"(vgpu_token_\w{1,64})(?:\{((?:"
    + _LABEL.pattern.replace("(", "(?:")
    + r"){1,8})\})? (\S{1,40})"
)
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")

_Place = tuple[str, str, str]


class _TlsConnection(HTTPConnection):
    """A connection whose server shows a certificate for a name, or else for the host."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, name: str | None) -> None:
        super().__init__(host, port, timeout=TIMEOUT_SECONDS)
        self._tls, self._name = context, name or host

    def connect(self) -> None:
        super().connect()
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


class TokenPage:
    """The page at a URL, ``http://HOST:PORT/PATH`` or ``https://HOST:PORT/PATH``.

    An IPv6 address is in brackets; an IPv4 address may be, as Go's programs take it, for a variable
    that has either. Certificates and password are read for each sample, since they are renewed.
    """

    def __init__(self, url: str, access: ClientOptions = NO_CREDENTIALS) -> None:
        """Raises ValueError for another URL, and BadOption for files that cannot be used."""
        found = _URL.fullmatch(url)
        if found is None:
            raise ValueError(f"{url!r}: give http://HOST:PORT/PATH or https://HOST:PORT/PATH")
        self._is_https = found["scheme"] == "https"
        self._host = found["name"] or str(ipaddress.ip_address(found["address"]))
        self._port = int(found["port"] or (443 if self._is_https else 80))
        self._target = found["path"] or "/metrics"
        self._url, self._access = url, access
        if access.needs_tls and not self._is_https:
            raise BadOption(f"{PREFIX}ca-file, cert, key and server-name need https in {PREFIX}url")
        self._credentials()

    def _credentials(self) -> tuple[ssl.SSLContext | None, Mapping[str, str]]:
        context = tls_context(self._access, PREFIX) if self._is_https else None
        return context, authorization(self._access, PREFIX)

    def sample(self) -> TokenSample:
        """Read the page. Raises SourceError."""
        try:
            content = self._get()
        except BadOption as error:
            raise SourceError(Reason.UNREADABLE, self._url, str(error)) from error
        except TimeoutError as error:
            raise SourceError(Reason.TIMEOUT, self._url) from error
        except ssl.SSLCertVerificationError as error:
            detail = f"its certificate: {error.verify_message}"
            raise SourceError(Reason.UNREACHABLE, self._url, detail) from error
        except (OSError, HTTPException) as error:
            detail = getattr(error, "strerror", None) or type(error).__name__
            raise SourceError(Reason.UNREACHABLE, self._url, detail) from error
        return parse_token_page(content.decode("ascii", "replace"), self._url)

    def _get(self) -> bytes:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        context, headers = self._credentials()
        connection = (
            HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
            if context is None
            else _TlsConnection(self._host, self._port, context, self._access.server_name)
        )
        try:
            accept = {"Accept": "text/plain;version=0.0.4"}
            connection.request("GET", self._target, headers={**accept, **headers})
            with connection.getresponse() as response:
                return self._content(response, deadline)
        finally:
            connection.close()

    def _content(self, response: HTTPResponse, deadline: float) -> bytes:
        if response.status != 200:
            hint = f": {PREFIX}username and {PREFIX}password-file"
            detail = f"HTTP status {response.status}{hint if response.status == 401 else ''}"
            raise SourceError(Reason.MALFORMED, self._url, detail)
        content = bytearray()
        while chunk := response.read1(_CHUNK):
            content += chunk
            if len(content) > PAGE_LIMIT:
                raise SourceError(Reason.TOO_LARGE, self._url)
            if time.monotonic() > deadline:
                raise TimeoutError
        if response.length:  # missing bytes, which read1 does not report
            raise SourceError(Reason.TRUNCATED, self._url)
        return bytes(content)


def parse_token_page(text: str, url: str) -> TokenSample:
    """The pods of a page. Raises SourceError if it is no page of a token daemon."""
    places: dict[_Place, dict[str, float]] = {}
    is_of_daemon = False
    for name, labels, value in _series(text):
        is_of_daemon = is_of_daemon or name == MARK
        if name in FIELDS:
            place = labels.get("uuid", ""), labels.get("namespace", ""), labels.get("pod", "")
            places.setdefault(place, {})[FIELDS[name]] = value
    if not is_of_daemon:
        raise SourceError(Reason.MALFORMED, url, f"not a token daemon: the page has no {MARK}")
    if len(places) > MAX_TENANTS:
        raise SourceError(Reason.MALFORMED, url, f"{len(places)} pods; a node has no more than 511")
    tenants: list[TokenTenant] = []
    rejections: list[Rejection] = []
    for place, fields in places.items():
        reason = _complaint(place, fields)
        if reason is None:
            tenants.append(_tenant(place, fields))
        else:
            rejections.append(Rejection("/".join(place), reason))
    return TokenSample(tuple(tenants), tuple(rejections))


def _series(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            try:
                value = float(found[3])
            except ValueError:
                continue
            yield found[1], dict(_LABEL.findall(found[2] or "")), value


def _tenant(place: _Place, fields: Mapping[str, float]) -> TokenTenant:
    uuid, namespace, pod = place
    return TokenTenant(
        uuid,
        namespace,
        pod,
        fields.get("request_ratio"),
        fields.get("limit_ratio"),
        fields.get("window_share_ratio"),
        fields.get("wait_seconds"),
    )


def _complaint(place: _Place, fields: Mapping[str, float]) -> Reason | None:
    uuid, namespace, pod = place
    if not is_uuid(uuid):
        return Reason.BAD_UUID
    if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(pod)):
        return Reason.MALFORMED
    ratios = [fields[name] for name in _RATIOS if name in fields]
    possible = all(0 <= ratio <= 1 for ratio in ratios)  # not a number is not
    wait = fields.get("wait_seconds", 0.0)
    return None if possible and 0 <= wait < math.inf else Reason.IMPLAUSIBLE
