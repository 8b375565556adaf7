"""What the token daemon of this node reports of its pods, from its page of metrics.

The page is the one that Prometheus scrapes. Whatever answers at the address is not trusted: the
answer is bounded in size and time, redirects and proxies are not followed, and a pod whose numbers
are impossible is refused alone.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final
from urllib.parse import urlsplit

from vgpu.facts import TokenSample, TokenTenant
from vgpu.reasons import Reason, Rejection, SourceError
from vgpu.schemes.kubeshare.text import is_uuid

DEFAULT_TOKENS_URL: Final = "http://127.0.0.1:9402/metrics"

TIMEOUT_SECONDS: Final = 2.0
"""Maximum time for the whole answer, in seconds. It comes from this node, in milliseconds."""

PAGE_LIMIT: Final = 4 * 2**20
"""Maximum size of a page in bytes; 511 pods, all that a node can have, need a quarter."""

MAX_TENANTS: Final = 511
"""Maximum number of pods on a node: KubeShare has no more ports."""

MARK: Final = "vgpu_token_ready"
"""A series of every page of a token daemon."""

FIELDS: Final = {
    "vgpu_token_request_ratio": "request_ratio",
    "vgpu_token_limit_ratio": "limit_ratio",
    "vgpu_token_window_share_ratio": "window_share_ratio",
    "vgpu_token_wait_seconds_total": "wait_seconds",
}
"""The metrics that are read, by the field of a tenant."""

_RATIOS: Final = ("request_ratio", "limit_ratio", "window_share_ratio")

_CHUNK: Final = 64 * 1024
_LABEL: Final = re.compile(r'(\w{1,64})="([^"\\]{1,253})",?')
_LINE: Final = re.compile(
    r"(vgpu_token_\w{1,64})(?:\{((?:"
    + _LABEL.pattern.replace("(", "(?:")
    + r"){1,8})\})? (\S{1,40})"
)
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")

_Place = tuple[str, str, str]


class TokenPage:
    """The page at a URL, ``http://HOST:PORT/PATH``. Raises ValueError for another URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username is not None:
            raise ValueError(f"{url!r}: give http://HOST:PORT/PATH")
        self._url = url
        self._host, self._port = parts.hostname, parts.port
        self._target = parts.path or "/metrics"

    def sample(self) -> TokenSample:
        """Read the page. Raises SourceError."""
        try:
            content = self._get()
        except TimeoutError as error:
            raise SourceError(Reason.TIMEOUT, self._url) from error
        except (OSError, HTTPException) as error:
            detail = getattr(error, "strerror", None) or type(error).__name__
            raise SourceError(Reason.UNREACHABLE, self._url, detail) from error
        return parse_token_page(content.decode("ascii", "replace"), self._url)

    def _get(self) -> bytes:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", self._target, headers={"Accept": "text/plain;version=0.0.4"})
            with connection.getresponse() as response:
                return self._content(response, deadline)
        finally:
            connection.close()

    def _content(self, response: HTTPResponse, deadline: float) -> bytes:
        if response.status != 200:
            raise SourceError(Reason.MALFORMED, self._url, f"HTTP status {response.status}")
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
