"""Every program that serves gives the bounds of its flags to its server."""

import signal

import click
import pytest
from click.testing import CliRunner

import deviceplugin.plugin
import exporter.main
import reconciler.commands.run
from deviceplugin.flags import all_flags, options_from
from deviceplugin.health.rules import rules
from vgpu.web.server import ListenError

BOUNDS = ["--web.max-connections=9", "--web.max-connections-per-address=8"]

KUBECONFIG = """\
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
"""


class Driver:
    """As much of one as the plugin asks before it serves."""

    def xids(self):
        return ()


@all_flags
@click.pass_context
def plugin(ctx, **_):
    deviceplugin.plugin.Plugin(
        options_from(ctx), rules(frozenset(), {}, 1.0), Driver(), on_fatal=None, at=None
    )


PROGRAMS = {
    exporter.main: exporter.main.command,
    deviceplugin.plugin: click.command()(plugin),
    reconciler.commands.run: reconciler.commands.run.run,
}


@pytest.fixture
def signals_as_they_were():
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.mark.parametrize("module", PROGRAMS, ids=lambda module: module.__name__)
@pytest.mark.usefixtures("signals_as_they_were")
def test_the_server_of_every_program_has_the_bounds_of_the_flags(module, monkeypatch, tmp_path):
    given = []

    def server(*_, max_connections, max_per_address, **__):
        given.append((max_connections, max_per_address))
        raise ListenError("", "no more is needed")

    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG)
    monkeypatch.setattr(module, "WebServer", server)
    more = {
        exporter.main: [],
        deviceplugin.plugin: ["--scheme=volcano", f"--kubeconfig={config}"],
        reconciler.commands.run: ["--no-leader-elect", f"--kubeconfig={config}"],
    }
    result = CliRunner().invoke(PROGRAMS[module], [*more[module], *BOUNDS])
    assert given == [(9, 8)], result.output
