"""Makes the helpers beside the tests importable."""

import logging
import sys
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "e2e")]

settings.register_profile("untimed", deadline=None)  # a deadline would be a timed assertion
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """A command that a test runs configures the root logger; the next test must not see it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
