"""What every program serves beside its own."""

import re

from vgpu import __version__
from vgpu.program.pages import RESERVED, program_routes
from vgpu.web.routes import Route, route_of
from vgpu.web.server import HttpRequest, plain


def own(_):
    return plain(200, "own")


def ask(routes, path):
    response = route_of(routes[path]).handler(HttpRequest("GET", path, "", {}))
    return response.status, response.body.decode()


def test_the_reserved_paths_are_served():
    assert set(program_routes("toy", {})) == RESERVED


def test_a_failing_probe_answers_with_the_reason():
    reasons = ["a disk is full", ""]
    routes = program_routes("toy", {}, ready=lambda: reasons.pop(0), healthy=lambda: "dead")
    assert ask(routes, "/readyz") == (503, "a disk is full\n")
    assert ask(routes, "/-/ready") == (200, "vgpu toy is ready\n")
    assert ask(routes, "/healthz") == ask(routes, "/-/healthy") == (503, "dead\n")


def test_the_page_links_what_can_be_looked_at():
    routes = program_routes("toy", {"/a": own, "/post": Route(own, methods=("POST",), max_body=1)})
    status, page = ask(routes, "/")
    assert status == 200
    assert f"<h1>vgpu toy</h1>\n<p>version {__version__}</p>" in page
    assert re.findall(r'href="([^"]*)"', page) == ["/a", "/-/healthy", "/-/ready"]


def test_the_page_loads_nothing_and_runs_nothing():
    routes = program_routes("<toy>", {'/"><script>': own})
    _, page = ask(routes, "/")
    assert not re.search(r"<script|<img|<link|@import|url\(|https?://|<toy>", page)
    headers = dict(route_of(routes["/"]).handler(HttpRequest("GET", "/", "", {})).headers)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_a_page_of_the_programs_own_takes_the_place_of_ours():
    assert ask(program_routes("toy", {"/": own}), "/") == (200, "own\n")
