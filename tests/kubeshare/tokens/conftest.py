"""A token daemon in this process."""

import pytest

from kubeshare.tokens.scheduler import TokenMode, TokenRules
from kubeshare.tokens.server import TokenServer, now_us
from tests.kubeshare.tokens.gemini_process import own_address
from tests.kubeshare.tokens.manual_clock import ManualClock


@pytest.fixture
def clock():
    """The time of daemons that get it."""
    return ManualClock()


@pytest.fixture
def serve(tmp_path):
    """Starts a daemon over files in ``tmp_path``."""
    servers = []

    def start(mode=TokenMode.EXCLUSIVE, clock=now_us):
        failures = []
        server = TokenServer(
            tmp_path, own_address(), TokenRules(mode), failures.append, clock=clock
        )
        servers.append((server, failures))
        server.start()
        return server

    yield start
    for server, failures in servers:
        server.stop()
        assert failures == []
