"""A server with Prometheus' HTTP API: one question, and its answer as JSON."""

from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from vgpu.sources.http_access import ClientOptions
from vgpucli.top.source import UNAUTHORIZED_HINT, HttpSource, Unanswered

_HINTS: Final = {401: UNAUTHORIZED_HINT, 404: "--prometheus is the address without /api/v1"}

T = TypeVar("T")


class PrometheusSource(HttpSource):
    """A server by its URL, which ``--prometheus`` has."""

    def __init__(
        self, url: str, access: ClientOptions, seconds: float, limit: int | None = None
    ) -> None:
        """Read the certificates and the password. Raises BadOption."""
        super().__init__(url, access, seconds, "--prometheus", limit)
        self._base = f"{self.path.rstrip('/')}/api/v1"

    def ask(
        self, path: str, parameters: Mapping[str, object], decoder: msgspec.json.Decoder[T]
    ) -> T:
        """The answer of ``/api/v1/<path>``. Raises Unanswered."""
        target = f"{self._base}/{path}?{urlencode(parameters)}"
        text = self.get(target, "application/json", _HINTS, "is this a Prometheus?")
        try:
            return decoder.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Unanswered("not an answer of Prometheus' HTTP API") from error
