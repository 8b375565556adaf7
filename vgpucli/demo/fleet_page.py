"""The fleet page of the demo's cluster: the real ``vgpu fleet``, inside of the demo."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fleet.door import Door
from fleet.main import DEFAULT_ADDRESS
from fleet.read import of_cluster
from fleet.service import page_service
from fleet.snapshot import snapshot
from vgpu.inventory import Units
from vgpu.model.units import GIB
from vgpu.program.kube_flags import connected
from vgpu.web.listen import ListenError
from vgpu.web.routes import Routes
from vgpu.web.server import WebServer

READ_SECONDS: Final = 5.0
"""Time between two reads of the demo's cluster, in seconds."""

UNITS: Final = Units(1024, GIB)
"""The units of memory of the demo's pods."""


@contextmanager
def fleet_page(kubeconfig: str) -> Iterator[str]:
    """Serve the page while the block runs; gives its address, with the key."""
    door = Door()
    with (
        connected(kubeconfig, "") as cluster,
        page_service(
            lambda: snapshot(of_cluster(cluster, UNITS, "team"), UNITS), READ_SECONDS, door.guarded
        ) as routes,
    ):
        server = _started(routes)
        try:
            yield door.address(server.urls[0])
        finally:
            server.stop()


def _started(routes: Routes) -> WebServer:
    """The server on the port of ``vgpu fleet``, or on a free one where that is in use."""
    try:
        server = WebServer(routes, [DEFAULT_ADDRESS])
        server.start()
    except ListenError:
        server = WebServer(routes, ["127.0.0.1:0"])
        server.start()
    return server
