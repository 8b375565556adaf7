"""Keeps all resources of a plugin registered, on one thread that looks at the kubelet's folder.

The thread looks five times a second, with one stat for the kubelet's socket and one for every own
socket, so that it registers again within a second of the kubelet's return.
"""

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deviceplugin.kubelet.registration import KUBELET_SOCKET
from deviceplugin.kubelet.resource_server import ResourceServer, ResourceState, identity
from deviceplugin.ports import Allocator
from vgpu.io.unix_socket import is_served
from vgpu.model.names import Scheme
from vgpu.sources.files import printable

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2

ENDING_SECONDS: Final = 2.0


class Registrar:
    """Serves and registers a scheme's resources between :meth:`start` and :meth:`stop`."""

    def __init__(
        self,
        folder: str,
        scheme: Scheme,
        resources: Iterable[str],
        allocator: Allocator,
        *,
        cdi: bool,
    ) -> None:
        """``folder`` is the kubelet's; the first resource is the binding one.

        A resource is served as soon as it is offered. ``cdi``: whether answers carry their name as
        a CDI device.
        """
        binding, *others = resources
        self._folder = Path(folder)
        self._prefix = f"vgpu-{scheme}-"
        self._servers = {
            name: ResourceServer(
                self._folder, self._prefix, name, allocator, binding=name == binding, cdi=cdi
            )
            for name in (binding, *others)
        }
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        """Keep the resources registered, in the background."""
        self._thread.start()

    def offer(self, resource: str, offered: bytes | None) -> None:
        """Offer this list (a ListAndWatchResponse) from now on; None withdraws the resource."""
        self._servers[resource].offer(offered)
        self._wake.set()

    def states(self) -> tuple[ResourceState, ...]:
        """The present state of each resource."""
        return tuple(server.state() for server in self._servers.values())

    def stop(self, grace: float = 1.0) -> None:
        """Stop serving; calls under way have ``grace`` seconds. The sockets are gone afterwards."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(grace + ENDING_SECONDS)  # a silent kubelet does not block the end
        for ended in [server.stop(grace) for server in self._servers.values()]:
            ended.wait(grace + 1.0)

    def _run(self) -> None:
        self._remove_left_behind()
        socket = str(self._folder / KUBELET_SOCKET)
        while not self._stopping:
            self._wake.clear()
            kubelet = identity(socket)
            for server in self._servers.values():
                if self._stopping:
                    return
                try:
                    server.check(kubelet, time.monotonic())
                except Exception:
                    log.exception("a resource could not be looked after")
            self._wake.wait(LOOK_SECONDS)

    def _remove_left_behind(self) -> None:
        """Remove sockets of earlier processes, except those of a plugin that is still ending."""
        try:
            left_behind = [*self._folder.glob(f"{self._prefix}*.sock")]
        except OSError as error:
            what = {"path": printable(str(self._folder)), "err": str(error)}
            log.warning("sockets left behind cannot be looked for", extra=what)
            return
        for path in left_behind:
            try:
                if path.is_socket() and not is_served(str(path)):
                    path.unlink()
                    log.info("removed a socket left behind", extra={"path": printable(str(path))})
            except OSError as error:
                what = {"path": printable(str(path)), "err": str(error)}
                log.warning("a socket left behind cannot be removed", extra=what)
