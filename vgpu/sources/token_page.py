"""What the token daemon of this node reports of its pods, from its page of metrics.

The page is the one that Prometheus scrapes. Whatever answers at the address is not trusted: the
answer is bounded in size and time, redirects and proxies are not followed, and a pod whose numbers
are impossible is refused alone.
"""

import ipaddress
import math
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

from vgpu.io.http_client import HttpClient, HttpError, HttpFailure, HttpUrl, shown_url
from vgpu.model.facts import TokenClient, TokenSample
from vgpu.model.reasons import Reason, Rejection, SourceError
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

MAX_CLIENTS: Final = 511
"""Maximum number of pods on a node: KubeShare has no more ports."""

MARK: Final = "vgpu_token_ready"
"""A series of every page of a token daemon."""

FIELDS: Final = {
    "vgpu_token_request_ratio": "request_ratio",
    "vgpu_token_limit_ratio": "limit_ratio",
    "vgpu_token_window_share_ratio": "window_share_ratio",
    "vgpu_token_wait_seconds_sum": "wait_seconds",
}
"""The metrics that are read, by the field of a client pod."""

_RATIOS: Final = ("request_ratio", "limit_ratio", "window_share_ratio")

_OK: Final = 200
_UNAUTHORIZED: Final = 401
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


class TokenPage:
    """The page at a URL, ``http://HOST:PORT/PATH`` or ``https://HOST:PORT/PATH``.

    An IPv6 address is in brackets; an IPv4 address may be, as Go's programs take it, for a variable
    that has either. Certificates and password are read for each sample, since they are renewed.
    """

    def __init__(self, url: str, access: ClientOptions = NO_CREDENTIALS) -> None:
        """Raises ValueError for another URL, and BadOption for files that cannot be used."""
        found = _URL.fullmatch(url)
        if found is None:
            problem = "give http://HOST:PORT/PATH or https://HOST:PORT/PATH, without a user"
            raise ValueError(f"{shown_url(url)}: {problem}".removeprefix(": "))
        host = found["name"] or str(ipaddress.ip_address(found["address"]))
        is_https = found["scheme"] == "https"
        path, _, query = (found["path"] or "/metrics").partition("?")
        port = int(found["port"] or (443 if is_https else 80))
        self._url = HttpUrl(found["scheme"], host, port, path, query)
        self._access = access
        self._name = f"{self._url.origin}{path}"
        if access.needs_tls and not is_https:
            raise BadOption(f"{PREFIX}ca-file, cert, key and server-name need https in {PREFIX}url")
        self._credentials()

    def _credentials(self) -> tuple[ssl.SSLContext | None, Mapping[str, str]]:
        is_https = self._url.scheme == "https"
        context = tls_context(self._access, PREFIX) if is_https else None
        return context, authorization(self._access, PREFIX)

    def sample(self) -> TokenSample:
        """Read the page. Raises SourceError."""
        try:
            context, headers = self._credentials()
        except BadOption as error:
            raise SourceError(Reason.UNREADABLE, self._name, str(error)) from error
        client = HttpClient(
            self._url, context, TIMEOUT_SECONDS, PAGE_LIMIT, self._access.server_name
        )
        try:
            answer = client.exchange({"Accept": "text/plain;version=0.0.4", **headers})
        except HttpError as error:
            raise SourceError(*_failure(error, self._name)) from error
        if answer.status != _OK:
            hint = f": {PREFIX}username and {PREFIX}password-file"
            detail = f"HTTP status {answer.status}{hint if answer.status == _UNAUTHORIZED else ''}"
            raise SourceError(Reason.MALFORMED, self._name, detail)
        return parse_token_page(answer.content.decode("ascii", "replace"), self._name)


def _failure(error: HttpError, name: str) -> tuple[Reason, str, str]:
    match error.failure:
        case HttpFailure.TIMEOUT:
            return Reason.TIMEOUT, name, ""
        case HttpFailure.TOO_LARGE:
            return Reason.TOO_LARGE, name, error.detail
        case HttpFailure.TRUNCATED:
            return Reason.TRUNCATED, name, ""
        case HttpFailure.CERTIFICATE:
            return Reason.UNREACHABLE, name, f"its certificate: {error.detail}"
        case HttpFailure.MALFORMED:
            return Reason.UNREACHABLE, name, str(error)
    return Reason.UNREACHABLE, name, error.detail


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
    if len(places) > MAX_CLIENTS:
        raise SourceError(Reason.MALFORMED, url, f"{len(places)} pods; a node has no more than 511")
    clients: list[TokenClient] = []
    rejections: list[Rejection] = []
    for place, fields in places.items():
        reason = _complaint(place, fields)
        if reason is None:
            clients.append(_client(place, fields))
        else:
            rejections.append(Rejection("/".join(place), reason))
    return TokenSample(tuple(clients), tuple(rejections))


def _series(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            try:
                value = float(found[3])
            except ValueError:
                continue
            yield found[1], dict(_LABEL.findall(found[2] or "")), value


def _client(place: _Place, fields: Mapping[str, float]) -> TokenClient:
    uuid, namespace, pod = place
    return TokenClient(
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
