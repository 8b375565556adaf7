"""Makes the helpers beside the tests importable."""

import sys
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "e2e")]

settings.register_profile("untimed", deadline=None)  # a deadline would be a timed assertion
settings.load_profile("untimed")
