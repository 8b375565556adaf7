# The part of grpc that is used here; the package has no types of its own.

import enum
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

class StatusCode(enum.Enum):
    RESOURCE_EXHAUSTED = ...

class RpcError(Exception):
    # A failed unary call raises an error that is also its grpc.Call.
    def code(self) -> StatusCode: ...
    def details(self) -> str | None: ...

class UnaryUnaryMultiCallable(Generic[_Request, _Response]):
    def __call__(self, request: _Request, timeout: float | None = None) -> _Response: ...

class Channel:
    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[_Request], bytes],
        response_deserializer: Callable[[bytes], _Response],
    ) -> UnaryUnaryMultiCallable[_Request, _Response]: ...
    def close(self) -> None: ...

def insecure_channel(target: str, options: Sequence[tuple[str, int]] = ()) -> Channel: ...
