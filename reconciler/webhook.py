"""Messages to a chat: one for each cycle that acted, and one when the circuit breaker trips.

The message is JSON with one field ``text``, as incoming webhooks of Slack and Mattermost take it.
The URL is a secret: it is read from a file, and stands in no log and no error.
"""

import json
import logging
import ssl
from collections import Counter
from typing import Final, Self

from reconciler.cycle import Cycle
from vgpu.io.http_client import BadUrl, HttpClient, HttpError, HttpUrl
from vgpu.model.reasons import SourceError
from vgpu.model.units import count
from vgpu.sources.files import read_file

log = logging.getLogger(__name__)

FLAG: Final = "--notify-url-file"

LIMIT: Final = 4096
"""Maximum size of the file with the URL, in bytes."""

SECONDS: Final = 10.0
"""Maximum time to wait for the chat, in seconds."""

_SUCCESSES: Final = range(200, 300)


class NotifyError(Exception):
    """The file has no usable URL; the message names the file and not the URL."""


class Webhook:
    """One webhook. One thread calls it; no failure of the chat is an error of the reconciler."""

    def __init__(self, url: str, server: str) -> None:
        """``server`` is the API server's address, which the messages name. Raises BadUrl."""
        parts = HttpUrl.parse(url)
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._client = HttpClient(parts, tls, SECONDS, limit=0)
        self._server = server
        self._tripped = False

    @classmethod
    def from_file(cls, path: str, server: str) -> Self:
        """The webhook whose URL the file has. Raises NotifyError."""
        try:
            url = read_file(path, LIMIT, follow=True).decode("ascii").strip()
        except (SourceError, UnicodeDecodeError) as error:
            detail = error.detail if isinstance(error, SourceError) else "it has no URL"
            raise NotifyError(f"{path}: {detail}") from error
        try:
            return cls(url, server)
        except BadUrl:  # which part is wrong could show the rest
            problem = "it has no usable URL that begins with https:// or http://, without a user"
            raise NotifyError(f"{path}: {problem}") from None

    def post(self, cycle: Cycle) -> None:
        """Send the cycle's message, if there is one."""
        text = message(cycle, was_tripped=self._tripped)
        if cycle.plan is not None:
            self._tripped = cycle.plan.breaker.tripped
        if text:
            self._send(f"vgpu reconciler at {self._server}: {text}")

    def _send(self, text: str) -> None:
        try:
            answer = self._client.exchange(
                {"Content-Type": "application/json"},
                method="POST",
                body=json.dumps({"text": text}).encode(),
            )
        except HttpError as error:
            log.warning("the webhook was not reached", extra={"reason": str(error)})
            return
        if answer.status not in _SUCCESSES:
            log.warning("the webhook refused the message", extra={"status": answer.status})


def message(cycle: Cycle, *, was_tripped: bool = False) -> str:
    """What is to be known of a cycle, in one sentence; "" if it did nothing new."""
    plan = cycle.plan
    if plan is None:
        return ""
    if plan.breaker.tripped:
        if was_tripped:
            return ""
        return (
            f"the circuit breaker has tripped: {count(plan.breaker.wanted, 'object')} need an"
            f" action, with {count(plan.breaker.pods, 'pod')} that share GPUs; more than"
            f" {plan.breaker.allowed} are not allowed. Nothing is done: find the common cause."
        )
    if not cycle.results:
        return ""
    outcomes = Counter((result.entry.finding.rule, result.outcome) for result in cycle.results)
    parts = (f"{rule} {outcome} {number}" for (rule, outcome), number in outcomes.items())
    return f"{count(len(cycle.results), 'action')}: {', '.join(parts)}."
