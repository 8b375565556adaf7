"""Python's garbage collector leaves the collected tests alone.

Ten thousand tests and the modules they import are there until the process ends. Each full
collection would walk over all of them: two fifths of the time in which pytest collects.
"""

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
