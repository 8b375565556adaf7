"""Failures of requests to the API server, as an exception with fields."""

from typing import Final

GONE: Final = 410
NO_CONFIGURATION: Final = "NoConfiguration"


class ClusterError(Exception):
    """The API server cannot be found or reached, or has refused a request.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        reason: the server's reason (``Forbidden``, ``NotFound``, ``Conflict`` …), or
            ``NoConfiguration``, ``Unreachable``, ``WrongClock``.
        message: the message of the server or the network; for Forbidden it names the missing right.
        retry_after: seconds that the server asks us to wait, None if it does not.
        causes: the causes that the server reports, such as a disruption budget with its numbers.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        complete = reason == NO_CONFIGURATION or not message  # the message needs no reason
        super().__init__((message or reason) if complete else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes


class ExpiredError(ClusterError):
    """A 410: ``token`` continues the list at the same place in a later version, or is ""."""

    def __init__(self, message: str, token: str) -> None:
        super().__init__(GONE, "Expired", message)
        self.token = token


def one_line(text: str) -> str:
    """The text on one line, without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
