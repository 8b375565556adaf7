"""The documented queries with the original monitors' names are answered by a real Prometheus."""

import re

import pytest
from msgspec import structs

from exporter.compat import SETS, Compat
from exporter.families import OWN_TABLES
from tests.support import nvml_fake
from tests.support.bed.monitoring import Prometheus
from tests.support.environment import ROOT
from tests.support.live import LiveExporter
from vgpu.model import Scheme, Share
from vgpu.simulator.demo import A10, demo, make_pod, make_shim
from vgpu.simulator.scenario import HAMI_ROOT, Scenario
from vgpu.units import GIB

PAGE = (ROOT / "docs" / "legacy-queries.md").read_text()
SECTION = re.compile(r"^## `--compat ([\w-]+)`\n\n```promql\n(.*?)```", re.MULTILINE | re.DOTALL)
QUERIES = [
    (Compat(name), query)
    for name, block in SECTION.findall(PAGE)
    for query in re.split(r"\n\n", block.strip())
]
FAMILIES = {
    name: {
        family.name: {*table.labels, *family.extra}
        for table in make(False)
        for family in table.families
    }
    for name, make in SETS.items()
}
OWN = {family.name for table in OWN_TABLES for family in table.families}
WORD = re.compile(r"[A-Za-z_]\w+")

CARD, INSTANCE = nvml_fake.uuid(7), nvml_fake.mig_uuid(7)


GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
OF_TARGETS_AND_CARDS = {"instance", "model"}


def asked(query):
    """Without the comment."""
    return "\n".join(line for line in query.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("name", SETS)
def test_each_name_of_a_set_is_asked_for(name):
    words = {word for of, query in QUERIES if of is name for word in WORD.findall(asked(query))}
    assert set(FAMILIES[name]) <= words


@pytest.mark.parametrize("name", SETS)
def test_each_name_of_a_set_has_its_replacement(name):
    table = PAGE.partition("## What to ask instead")[2]
    assert set(FAMILIES[name]) <= set(re.findall(r"`([^`]+)`", table))


def test_replacements_are_metrics_of_ours():
    table = PAGE.partition("## What to ask instead")[2]
    assert {word for word in WORD.findall(table) if word.startswith("vgpu_")} <= OWN


def test_each_query_says_what_it_tells():
    assert all(query.startswith("# ") for _, query in QUERIES)


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_what_is_joined_and_added_up_are_labels_of_the_set(name, query):
    known = set().union(*FAMILIES[name].values()) | OF_TARGETS_AND_CARDS
    for labels in GROUPED.findall(query):
        assert set(filter(None, labels.split(", "))) <= known


class MigNode(LiveExporter):
    """A card that is split, and a pod on one of its instances."""

    def __init__(self, folder, *flags):
        folder.mkdir()
        split = structs.replace(A10, uuid=INSTANCE)
        share = Share(device=INSTANCE, memory_bytes=4 * GIB)
        pod = make_pod("ml/mig-0/main", Scheme.VOLCANO, (share,), shim=make_shim("v1.2", HAMI_ROOT))
        super().__init__(folder, Scenario(node="mig-node", cards=(split,), pods=(pod,)), *flags)
        card = nvml_fake.Device(CARD, mig=1)
        self.write_driver(devices=[card, nvml_fake.Mig(CARD, INSTANCE, gi=3)])


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """By set: the names of Volcano's monitor and of HAMi's older one are the same."""
    folder = tmp_path_factory.mktemp("legacy")
    first = [Compat.VOLCANO, Compat.VOLCANO_SCHEDULER, Compat.HAMI, Compat.GAIA]
    second = [Compat.HAMI_LEGACY]

    def node(name, sets):
        (folder / name).mkdir()
        flags = [f"--compat={each}" for each in sets]
        return LiveExporter(folder / name, demo(), "--volcano.memory-factor=1024", *flags)

    with (
        node("first", first) as one,
        node("second", second) as other,
        MigNode(folder / "mig", "--compat=hami", "--compat=hami-legacy") as split,
        Prometheus(folder / "p1", f"127.0.0.1:{one.port}", f"127.0.0.1:{split.port}") as newer,
        Prometheus(folder / "p2", f"127.0.0.1:{other.port}", f"127.0.0.1:{split.port}") as older,
    ):
        yield {**dict.fromkeys(first, newer), **dict.fromkeys(second, older)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "query"), QUERIES, ids=[f"{name}: {q.splitlines()[0][2:]}" for name, q in QUERIES]
)
def test_a_documented_query_is_answered(servers, name, query):
    assert servers[name].wait_for(asked(query))
