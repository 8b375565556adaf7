"""Keeps all resources of a plugin registered, on one thread that looks at the kubelet's folder.

Five looks a second, of a stat each for the kubelet's socket and for every own one, are what a
re-registration within a second of the kubelet's return costs.
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
from vgpu.model import Scheme
from vgpu.sources.files import printable
from vgpu.unix_socket import is_served

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

        A resource is served as soon as it is offered. ``cdi`` reports how answers carry their name.
        """
        binding, *others = resources
        self._folder = Path(folder)
        self._prefix = f"vgpu-{scheme}-"
        self._keepers = {
            name: ResourceServer(
                self._folder, self._prefix, name, allocator, binding=name == binding, cdi=cdi
            )
            for name in (binding, *others)
        }
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        """Keep them registered, in the background."""
        self._thread.start()

    def offer(self, resource: str, offered: bytes | None) -> None:
        """Offer this list (a ListAndWatchResponse) from now on; None withdraws the resource."""
        self._keepers[resource].offer(offered)
        self._wake.set()

    def states(self) -> tuple[ResourceState, ...]:
        """Where each resource stands now."""
        return tuple(keeper.state() for keeper in self._keepers.values())

    def stop(self, grace: float = 1.0) -> None:
        """Serve no more; calls under way have ``grace`` seconds. The sockets are gone then."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(grace + ENDING_SECONDS)  # a kubelet that is mute keeps nobody
        for ended in [keeper.stop(grace) for keeper in self._keepers.values()]:
            ended.wait(grace + 1.0)

    def _run(self) -> None:
        self._remove_left_behind()
        socket = str(self._folder / KUBELET_SOCKET)
        while not self._stopping:
            self._wake.clear()
            kubelet = identity(socket)
            for keeper in self._keepers.values():
                if self._stopping:
                    return
                try:
                    keeper.look(kubelet, time.monotonic())
                except Exception:
                    log.exception("a resource could not be looked after")
            self._wake.wait(LOOK_SECONDS)

    def _remove_left_behind(self) -> None:
        """Sockets of earlier lives; one that is served is that of a plugin that still ends."""
        for path in self._folder.glob(f"{self._prefix}*.sock"):
            try:
                if path.is_socket() and not is_served(str(path)):
                    path.unlink()
                    log.info("removed a socket left behind", extra={"path": printable(str(path))})
            except OSError as error:
                what = {"path": printable(str(path)), "err": str(error)}
                log.warning("a socket left behind cannot be removed", extra=what)
