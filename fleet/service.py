"""The parts of a running page, put together: reads, explanations and the site."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from fleet.explainer import Explainer
from fleet.keeper import Keeper
from fleet.site import Site
from fleet.snapshot import FleetSnapshot
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import SourceError
from vgpu.program.pages import program_routes
from vgpu.web.message import Handler
from vgpu.web.routes import Routes

FAILURES: Final = (ClusterError, SourceError, click.ClickException)
"""What a read may raise, and the next read may not."""


@contextmanager
def page_service(
    make: Callable[[], FleetSnapshot], every: float, guarded: Callable[[Handler], Handler]
) -> Iterator[Routes]:
    """The routes of the page, whose handlers are ``guarded``.

    ``make`` reads and answers, now and ``every`` so many seconds; 0 is never again. Raises what it
    raises the first time.
    """
    keeper = Keeper(make, every, FAILURES)
    site = Site(keeper, every)
    explainer = Explainer(site.changed)

    def use(snapshot: FleetSnapshot) -> None:
        site.prepare(snapshot)
        explainer.explain(snapshot)

    keeper.read(use)
    own = {path: guarded(handler) for path, handler in site.routes().items()}
    with explainer, keeper:
        yield program_routes("fleet", own)
