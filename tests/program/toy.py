"""A program with a flag, a metric family and a route of its own: ``python -m tests.program.toy``.

All else is the host's. ``--stuck`` starts a thread that never ends.
"""

import itertools
import threading
from typing import Any, Final

import click
import msgspec

from vgpu.metrics.family import Family, FamilyTable, MetricType
from vgpu.program.host import ProgramHost, program_flags
from vgpu.program.pages import program_routes
from vgpu.web.server import HttpRequest, HttpResponse, Route, plain


class ToyView(msgspec.Struct, frozen=True):
    greeted: int


TABLE: Final = FamilyTable(
    title="Greetings",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        Family("toy_greetings_total", MetricType.COUNTER, "Greetings.", lambda view: view.greeted),
    ),
)


@click.command("toy")
@program_flags("127.0.0.1:0")
@click.option("--greeting", default="hello")
@click.option("--stuck", is_flag=True)
@click.pass_context
def command(ctx: click.Context, /, greeting: str, stuck: bool, **_: Any) -> None:
    counter = itertools.count(1)
    view = ToyView(0)

    def greet(request: HttpRequest) -> HttpResponse:
        nonlocal view
        if request.body == b"nobody":
            host.fail("nobody is there")
        view = ToyView(next(counter))
        return plain(200, f"{greeting}, {request.body.decode()}")

    with ProgramHost.from_flags(ctx.params) as host:
        if stuck:
            threading.Thread(target=threading.Event().wait, name="stuck").start()
        greeting_route = Route(greet, methods=("GET", "POST"), max_body=100)
        metrics = host.metrics((TABLE,), lambda: view)
        host.start(program_routes("toy", {"/greet": greeting_route, "/metrics": metrics}))
        host.wait()
    ctx.exit(host.leave())


if __name__ == "__main__":
    command()
