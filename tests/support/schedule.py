"""Which tests run, and which of them share a worker: the layers and groups of the suite.

A test belongs to layers by what it uses, and to thorough groups by its marker:

    cluster             uses the test bed (its fixture ``tools``)
    slow                takes more than a few seconds
    thorough("fuzz")    runs in ``make test-thorough`` only
    thorough("plugin", smaller=True)
                        runs in ``make test`` as well, there smaller (fixture ``full``)

``--thorough=GROUP`` runs one thorough group and nothing else. All of tests/bed is in the group
``bed``, which ``make test`` runs too when the bed has changed since these tests passed. The group
``properties`` is every test that hypothesis makes examples for.

pytest-xdist gives a worker whole groups of tests. The tests of the test bed are a few *lanes*, of
which each has control planes and nodes of its own; all other tests of a file are a group. The lanes
come first in the collection, so that they start first and the short groups fill what is left.
"""

from enum import StrEnum

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.bed import digest


class Group(StrEnum):
    """What ``make test-thorough`` has beside ``make test``; why each is there, docs/testing.md."""

    PROPERTIES = "properties"
    BED = "bed"
    FLEETS = "fleets"
    SOAK = "soak"
    FUZZ = "fuzz"
    PLUGIN = "plugin"
    SCHEDULERS = "schedulers"
    QUEUES = "queues"
    BILL = "bill"
    RELEASE = "release"


LANES = {
    "nodes-1": (
        "cluster/test_plugin_faults",
        "cluster/test_plugin_health",
        "cluster/test_plugin_kubelet",
        "cluster/test_end_to_end",
        "cluster/test_reconcile_installed",
    ),
    "nodes-3": (
        "cluster/test_cluster_client",
        "cluster/test_doctor",
        "cluster/test_exporter_api",
        "cluster/test_kubeshare_controllers",
        "cluster/test_node_resource",
        "cluster/test_oldest_kubernetes",
        "cluster/test_plugin_adoption",
        "cluster/test_plugin_status_manager",
        "cluster/test_plugin_swap",
        "cluster/test_programs_at_rest",
        "cluster/test_reconcile_apply",
        "cluster/test_reconcile_fleet",
        "cluster/test_reconcile_node",
        "cluster/test_reconcile_nvidia",
        "cluster/test_reconcile_observe",
        "cluster/test_reconcile_rights",
        "cluster/test_reconcile_rules",
        "cluster/test_reconcile_run",
        "cluster/test_reconcile_safety",
    ),
}
"""Lane -> its files. Each lane takes about as long as the others (10 minutes)."""

OTHERS = "nodes-2"
"""The lane of other files of tests/cluster; tests/bed has one of its own."""

LANE_OF = {file: lane for lane, files in LANES.items() for file in files}
ORDER = (OTHERS, *LANES, "bed", "")

TOGETHER = {
    "docs/test_language": "sources",
    "docs/test_logs": "sources",
    "schemes/test_registry": "sources",
    "test_reachable": "sources",
    "grafana/test_live": "grafana",
    "grafana/test_dashboard_queries": "grafana",
    "release/test_artefacts": "release",
    "release/test_on_a_node": "release",
}
"""Other files that share a session fixture, or what they have read -> the name of their group."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", choices=list(Group), help="run this group of make test-thorough alone"
    )


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether a test of both sizes is to be as large as it can: in ``make test-thorough``."""
    return pytestconfig.getoption("--thorough") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test, choose those that run, and put the lanes first."""
    wanted = config.getoption("--thorough")
    bed_changed = digest.digest() != digest.tested()
    chosen, others = [], []
    for item in items:
        if "tools" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
        if _file(item.nodeid).startswith("bed/"):
            item.add_marker(pytest.mark.thorough(Group.BED, smaller=bed_changed))
        (chosen if _runs(item, wanted) else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
    chosen.sort(key=lambda item: ORDER.index(_lane(_file(item.nodeid))))
    items[:] = chosen


class LaneScheduling(LoadScopeScheduling):
    """Gives a worker all tests of a lane, or of a file.

    With pytest 9.2, pytest-xdist 3.8 ignores the markers of ``--dist=loadgroup``.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return _lane(file) or TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LaneScheduling:
    """Replaces the scheduler of pytest-xdist, whatever the value of ``--dist`` is."""
    return LaneScheduling(config, log)


def _runs(item: pytest.Item, wanted: str | None) -> bool:
    markers = list(item.iter_markers("thorough"))
    if wanted is None:
        return all(marker.kwargs.get("smaller", False) for marker in markers)
    groups = {group for marker in markers for group in marker.args}
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        groups.add(Group.PROPERTIES)
    return wanted in groups


def _lane(file: str) -> str:
    """The lane of a file that uses the bed; no other file has one."""
    folder = file.partition("/")[0]
    if folder == "cluster":
        return LANE_OF.get(file, OTHERS)
    return folder if folder == "bed" else ""


def _file(nodeid: str) -> str:
    """``tests/cluster/test_chart.py::test_x[1]`` -> ``cluster/test_chart``."""
    return nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
