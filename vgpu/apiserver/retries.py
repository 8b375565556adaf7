"""Number of tries and timeouts of requests to the API server."""

import logging
from collections.abc import Mapping
from typing import Any, Final, Self

import urllib3
from urllib3 import exceptions

logging.getLogger("urllib3").setLevel(logging.ERROR)  # each try is counted, and the last reported

READ_TIMEOUT: Final = urllib3.Timeout(connect=10, read=60)
"""Timeouts in seconds. An eviction may take 10, when the server tries again for us."""

MOST_WAIT_SECONDS: Final = 30
"""Maximum time to wait before a read is tried again, whatever the server asks for, in seconds."""


class _Retry(urllib3.Retry):
    """Retries after the time that the server asks for."""

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        """The time that the server asks us to wait, within reason, in seconds."""
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, MOST_WAIT_SECONDS)

    def increment(self, *args: Any, **more: Any) -> Self:
        """The retries after a failure. Raises the error where another try would fail, too."""
        if isinstance(error := more.get("error"), self.final):
            raise error
        return super().increment(*args, **more)

    final: tuple[type[Exception], ...] = (exceptions.SSLError,)
    """Errors that no further try repairs."""


class _RetryUnlessSilent(_Retry):
    """The same, but no wait for an answer is repeated."""

    final = (*_Retry.final, exceptions.TimeoutError)


_READS: Final[Mapping[str, Any]] = {
    "total": 4,
    "connect": 1,  # an address without a listener rarely gets one soon
    "status_forcelist": (429, 502, 503, 504),
    "allowed_methods": frozenset({"GET"}),
    "backoff_factor": 0.3,
    "backoff_jitter": 0.3,
    "backoff_max": 10,
    "raise_on_status": False,
}

AGAIN: Final = _Retry(**_READS)
"""For reads."""

UNLESS_SILENT: Final = _RetryUnlessSilent(**_READS)
"""For reads of a command for which a person waits."""

ONCE: Final = urllib3.Retry(0, raise_on_status=False)
"""For writes, which may have arrived although no answer came."""
