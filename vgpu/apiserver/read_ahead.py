"""The next page of a list is requested while the last one is decoded.

An API server writes the token of the next page in front of the objects, so it is known before they
are decoded. There is one request at a time, as without this.
"""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

_TOKEN: Final = re.compile(rb'"continue"\s*:\s*"([^"\\]+)"')

_HEAD: Final = 16 * 1024
"""Maximum number of bytes in front of the objects; tokens have some hundred."""


def next_token(answer: bytes) -> str:
    """The token of the next page if it stands in front of the objects; "" if none is found."""
    head, items, _ = answer[:_HEAD].partition(b'"items"')
    match = _TOKEN.search(head) if items else None
    return match[1].decode(errors="replace") if match else ""


class ReadAhead:
    """Answers to queries of one list, of which the next one may be requested early."""

    def __init__(self, ask: Callable[[Mapping[str, str]], bytes]) -> None:
        """``ask`` is called in another thread for a query that was begun."""
        self._ask = ask
        self._pool: ThreadPoolExecutor | None = None
        self._begun: tuple[Mapping[str, str], Future[bytes]] | None = None

    def begin(self, query: Mapping[str, str]) -> None:
        """Request the answer to a query that comes next."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "read-ahead")
        self._begun = query, self._pool.submit(self._ask, query)

    def answer(self, query: Mapping[str, str]) -> bytes:
        """The answer, which may have been requested already. Raises what ``ask`` raises."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == query:
            return begun[1].result()
        return self._ask(query)

    def close(self) -> None:
        """Wait for no answer any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
