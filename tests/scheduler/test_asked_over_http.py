"""No test of a verb calls Python: all ask over HTTP, most through ``tests/scheduler/served.py``."""

import ast
import re
from pathlib import Path

from tests.support.defects import no_defects
from tests.support.environment import ROOT

SERVED = (Path("tests/scheduler/served.py"), Path("tests/cluster/test_programs_at_rest.py"))
"""Both serve the program's routes; the second one on a real API server, with a clock of its own."""

OF_VERBS = frozenset(
    {
        *("Scheduler", "Extender", "PodBinder", "Preemptor", "NodeLocker", "extender_routes"),
        *("LeaseCommitter", "CacheCommitter"),
        *("binder", "commit", "extender", "locks_and_labels", "main", "preemption", "routes"),
    }
)
"""What answers a verb in the package ``scheduler``: names in its modules, and those modules."""

DECISIONS = frozenset({"filter", "scores", "reserve", "preempt", "note_preemption", "outranked"})
"""Methods of the cache by which verbs decide."""

MAY_ASK = re.compile(r"^from scheduler\b|cache\.", re.MULTILINE)


@no_defects
def test_only_the_served_program_has_verbs():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(ROOT)
        if name in SERVED or not MAY_ASK.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            for what in (*imported(node), *decided(node)):
                yield f"{name}:{node.lineno}: {what}: ask over HTTP, as tests/scheduler/served.py"


def imported(node):
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "scheduler":
        return [alias.name for alias in node.names if alias.name in OF_VERBS]
    return []


def decided(node):
    """A method of something that is called ``cache``."""
    if not isinstance(node, ast.Attribute) or node.attr not in DECISIONS:
        return []
    owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
    return [f"cache.{node.attr}"] if owner.endswith("cache") else []
