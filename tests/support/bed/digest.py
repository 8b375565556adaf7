"""Whether the test bed is the one that its own tests (tests/bed) have passed with.

    digest() == tested()   <=>   no source and no pinned version has changed since they passed

``make test-thorough GROUP=bed`` writes the file when they have passed. Until then ``make test``
runs them too.
"""

import hashlib
from pathlib import Path

from tests.support.environment import ROOT

TESTED = ROOT / "tests" / "bed" / "tested.sha256"
BED = Path(__file__).resolve().parent
USED = (BED, TESTED.parent, BED.parent / "waiting.py", BED.parent / "environment.py")
"""The bed, its own tests, and what of the other helpers it uses."""


def digest() -> str:
    """The SHA-256 of all their files, by name and content."""
    content = hashlib.sha256()
    for place in USED:
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file() and file != TESTED and "__pycache__" not in file.parts:
                content.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return content.hexdigest()


def tested() -> str:
    """The digest that the bed's own tests have passed with."""
    return TESTED.read_text().strip() if TESTED.exists() else ""


if __name__ == "__main__":
    TESTED.write_text(f"{digest()}\n")
