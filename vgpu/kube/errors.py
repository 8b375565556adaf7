"""What the API server refuses, and what does not reach it, as an exception with fields."""

from typing import Final

GONE: Final = 410
NO_CONFIGURATION: Final = "NoConfiguration"


class ClusterError(Exception):
    """The API server cannot be found or reached, or has refused a request.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        reason: the server's word (``Forbidden``, ``NotFound``, ``Conflict`` …), or
            ``NoConfiguration``, ``Unreachable``, ``WrongClock``.
        message: what it or the network said; of a Forbidden it names the missing right.
        retry_after: seconds that the server asks us to wait, None if it does not.
        causes: what the server says lies behind it, such as a disruption budget with its numbers.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        complete = reason == NO_CONFIGURATION or not message  # the message says it all by itself
        super().__init__((message or reason) if complete else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes


class ExpiredError(ClusterError):
    """A 410: ``token`` goes on with a list from the same place at a later time, "" if it cannot."""

    def __init__(self, message: str, token: str) -> None:
        super().__init__(GONE, "Expired", message)
        self.token = token
