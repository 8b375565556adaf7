# The part of grpc.aio that is used here; the package has no types of its own.

from collections.abc import Sequence
from typing import NoReturn

from grpc import GenericRpcHandler, StatusCode

class ServicerContext:
    async def abort(self, code: StatusCode, details: str) -> NoReturn: ...

class Server:
    def add_generic_rpc_handlers(self, handlers: tuple[GenericRpcHandler, ...]) -> None: ...
    def add_insecure_port(self, address: str) -> int: ...
    async def start(self) -> None: ...
    async def stop(self, grace: float | None) -> None: ...

def server(
    *,
    options: Sequence[tuple[str, int]] = (),
    maximum_concurrent_rpcs: int | None = None,
) -> Server: ...
