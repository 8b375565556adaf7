"""The parts of a running page, put together: reads, explanations, the door and the site."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from fleet.door import Door
from fleet.explainer import Explainer
from fleet.keeper import Keeper
from fleet.site import Site
from fleet.snapshot import FleetSnapshot
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import SourceError
from vgpu.program.pages import program_routes
from vgpu.web.routes import Routes

FAILURES: Final = (ClusterError, SourceError, click.ClickException)
"""What a read may raise, and the next read may not."""


@contextmanager
def page_service(
    make: Callable[[], FleetSnapshot], every: float
) -> Iterator[tuple[Routes, Callable[[str], str]]]:
    """The routes, and the address to print for where they are served.

    ``make`` reads and answers, now and ``every`` so many seconds; 0 is never again. Raises what it
    raises the first time.
    """
    keeper = Keeper(make, every, FAILURES)
    site, door = Site(keeper, every), Door()
    explainer = Explainer(site.changed)
    keeper.read(explainer.explain)
    own = {path: door.guarded(handler) for path, handler in site.routes().items()}
    with explainer, keeper:
        yield program_routes("fleet", own), door.address
