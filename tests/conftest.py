"""What every test has: a process as it was, and the fixtures of the test bed."""

import logging
import signal
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support.oldest_client import OldestClient

pytest_plugins = [
    "tests.support.garbage",
    "tests.support.schedule",
    "tests.support.figures",
    "tests.support.not_run",
    "tests.support.bed.fixtures",
]

# A script's background job ignores Ctrl-C, and so would whatever the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline would be a timed assertion, and so is the check that examples are made fast enough.
# The parent is named: without it CI=1 in the environment would make all of them derandomized.
COMMON = settings(
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("dev", COMMON)
settings.register_profile("ci", COMMON, max_examples=100, derandomize=True, database=None)
settings.register_profile("fast", settings.get_profile("ci"), max_examples=25)
settings.register_profile("thorough", COMMON, max_examples=1000)
settings.load_profile("dev")  # pytest's --hypothesis-profile=NAME replaces it


def pytest_sessionstart():
    """What is not random depends on the test alone.

    Hypothesis also draws the constants of our modules: of those that the process has loaded so
    far, and so of whatever ran before.
    """
    if settings.default.derandomize:
        patch.object(providers, "_get_local_constants", providers.Constants).start()


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
