"""A token daemon in this process."""

import pytest

from kubeshare.tokens.scheduler import TokenMode, TokenRules
from kubeshare.tokens.server import TokenServer
from tests.kubeshare.tokens.gemini_process import own_address


@pytest.fixture
def serve(tmp_path):
    """Starts a daemon over files in ``tmp_path``."""
    servers = []

    def start(mode=TokenMode.EXCLUSIVE):
        failures = []
        server = TokenServer(tmp_path, own_address(), TokenRules(mode), failures.append)
        servers.append((server, failures))
        server.start()
        return server

    yield start
    for server, failures in servers:
        server.stop()
        assert failures == []
