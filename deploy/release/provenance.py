"""The provenance of a release: an in-toto statement with SLSA's predicate (v1), not yet signed.

It has no time and no identity of a run: the same commit gives the same statement.
"""

import hashlib
import json
import os
import platform
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from deploy.project import Project
from deploy.release.layers import sha256
from deploy.release.source import SourceTree

LOCKS: Final = ("build", "debian", "dev", "runtime")
"""Lock files of requirements/ that decide what a release is built of and built with."""

BUILDER: Final = "BUILDER_ID"
"""Environment variable: the address that names who builds, set by a forge's workflow."""


def statement(source: SourceTree, project: Project, files: Iterable[Path]) -> str:
    """The statement about ``files``, as JSON."""
    how = f"{project.site}/releasing.html"
    commit = {"uri": f"git+{project.address}", "digest": {"gitCommit": source.commit}}
    locks = [
        {"uri": f"requirements/{name}.lock", "digest": {"sha256": _sha256(source.lock(name))}}
        for name in LOCKS
    ]
    document: dict[str, Any] = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": sha256(file)}} for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": how,
                "externalParameters": {"command": "make release", "version": source.version},
                "internalParameters": {
                    "SOURCE_DATE_EPOCH": source.epoch,
                    "python": platform.python_version(),
                    "zlib": zlib.ZLIB_RUNTIME_VERSION,
                },
                "resolvedDependencies": [commit, *locks],
            },
            "runDetails": {"builder": {"id": os.environ.get(BUILDER) or f"{how}#by-hand"}},
        },
    }
    return json.dumps(document, indent=1) + "\n"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
