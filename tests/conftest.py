"""What every test has: a process as it was, and the fixtures of the test bed."""

import logging
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.support.oldest_client import OldestClient

pytest_plugins = ["tests.support.bed.fixtures"]

# A script's background job ignores Ctrl-C, and so would whatever the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline would be a timed assertion, and so is the check that examples are made fast enough.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def process_as_it_was():
    """A command that a test runs sets up logging and blocks signals; the next must not see it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def oldest_client(tmp_path_factory):
    """The oldest Kubernetes client that we allow."""
    return OldestClient(tmp_path_factory.mktemp("kubernetes-oldest"))
