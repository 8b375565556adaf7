"""A server that answers GET over HTTP: an exporter, or a Prometheus.

Every failure of a server to answer is an Unanswered with a message that a person can act on.
"""

from collections.abc import Mapping
from typing import Final

from vgpu.io.http_client import (
    BadUrl,
    HttpClient,
    HttpError,
    HttpFailure,
    HttpUrl,
    UrlWithUser,
    shown_url,
)
from vgpu.sources.http_access import BadOption, ClientOptions, authorization, tls_context

TIMEOUT_SECONDS: Final = 5.0
"""Default maximum time of a whole exchange, in seconds."""

BODY_LIMIT: Final = 16 * 2**20
"""Maximum size of an answer, in bytes: the sums of 170,000 pods, and twice the page of a node with
thousands of containers. A page of this size is read in 6 s, with 150 MiB."""

UNAUTHORIZED_HINT: Final = "it asks for a password: --username and --password-file"
"""What to do about HTTP status 401."""

_OK: Final = 200


class Unanswered(Exception):  # noqa: N818  # it is no error of ours
    """No answer came; the message has the reason. ``refused``: no server listens there."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class HttpSource:
    """A server by its URL, which ``flag`` has."""

    def __init__(
        self, url: str, access: ClientOptions, timeout: float = TIMEOUT_SECONDS, flag: str = "--url"
    ) -> None:
        """Read the certificates and the password. Raises BadOption."""
        try:
            parts = HttpUrl.parse(url if "://" in url else f"http://{url}")
        except UrlWithUser as error:
            raise BadOption(f"{flag}: {error}; use --username and --password-file") from None
        except BadUrl as error:
            raise BadOption(f"{flag} {shown_url(url)}".rstrip() + f": {error}") from None
        self.path, self.query, self.name = parts.path, parts.query, parts.origin
        tls = tls_context(access) if parts.scheme == "https" else None
        if tls is None and access.needs_tls:
            raise BadOption(f"--ca-file, --cert and --key need an https {flag}")
        self._authorization = authorization(access)
        self._client = HttpClient(parts, tls, timeout, BODY_LIMIT)

    def get(self, target: str, accept: str, hints: Mapping[int, str], otherwise: str) -> str:
        """The answer to a request for ``target``, a path with its query. Raises Unanswered.

        ``hints`` are what to do about another HTTP status than 200, ``otherwise`` is for the rest.
        """
        try:
            answer = self._client.exchange({"Accept": accept, **self._authorization}, target)
        except HttpError as error:
            refused = error.failure is HttpFailure.REFUSED
            raise Unanswered(_why(error), refused=refused) from error
        if answer.status != _OK:
            hint = hints.get(answer.status, otherwise)
            raise Unanswered(f"HTTP status {answer.status}: {hint}")
        return answer.content.decode("utf-8", "replace")


def _why(error: HttpError) -> str:
    match error.failure:
        case HttpFailure.CERTIFICATE:
            return f"its certificate: {error.detail} (--ca-file)"
        case HttpFailure.TIMEOUT:
            return f"no answer {error.detail}"
        case HttpFailure.REFUSED | HttpFailure.UNREACHABLE:
            return error.detail
    return str(error)
