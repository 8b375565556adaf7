"""The documented queries with the original monitors' names are answered by a real Prometheus."""

import re

import pytest
from msgspec import structs

from exporter.compat import Compat
from exporter.compat.tables import SETS
from exporter.families import OWN_TABLES
from simulator.demo import A10, demo, make_pod, make_shim
from simulator.scenario import HAMI_ROOT, Scenario
from tests.grafana.asking import first_answers
from tests.support import nvml_fake
from tests.support.bed.monitoring import Prometheus
from tests.support.defects import no_defects
from tests.support.environment import ROOT
from tests.support.live import LiveExporter
from vgpu.model.allocation import Share
from vgpu.model.names import Scheme
from vgpu.model.units import GIB

PAGE = (ROOT / "docs" / "legacy-queries.md").read_text()
SECTION = re.compile(r"^## `--compat ([\w-]+)`\n\n```promql\n(.*?)```", re.MULTILINE | re.DOTALL)
QUERIES = {Compat(name): re.split(r"\n\n", block.strip()) for name, block in SECTION.findall(PAGE)}
REPLACEMENTS = PAGE.partition("## Replacement queries")[2]
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

GPU, INSTANCE = nvml_fake.uuid(7), nvml_fake.mig_uuid(7)

GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
OF_TARGETS_AND_GPUS = {"instance", "model"}


def asked(query):
    """Without the comment."""
    return "\n".join(line for line in query.splitlines() if not line.startswith("#"))


each_set = pytest.mark.parametrize("name", SETS)


@each_set
def test_each_name_of_a_set_is_asked_for(name):
    words = {word for query in QUERIES[name] for word in WORD.findall(asked(query))}
    assert FAMILIES[name].keys() - words == set()


@each_set
def test_each_name_of_a_set_has_its_replacement(name):
    assert FAMILIES[name].keys() - set(re.findall(r"`([^`]+)`", REPLACEMENTS)) == set()


def test_replacements_are_metrics_of_ours():
    assert {word for word in WORD.findall(REPLACEMENTS) if word.startswith("vgpu_")} - OWN == set()


@each_set
def test_each_query_has_a_comment(name):
    assert [query for query in QUERIES[name] if not query.startswith("# ")] == []


@each_set
@no_defects
def test_what_is_joined_and_added_up_are_labels_of_the_set(name):
    known = set().union(*FAMILIES[name].values()) | OF_TARGETS_AND_GPUS
    for query in QUERIES[name]:
        for labels in GROUPED.findall(query):
            for label in set(filter(None, labels.split(", "))) - known:
                yield f"no label {label}: {query}"


class MigNode(LiveExporter):
    """A GPU that is split, and a pod on one of its instances."""

    def __init__(self, folder, *flags):
        folder.mkdir()
        split = structs.replace(A10, uuid=INSTANCE)
        share = Share(device=INSTANCE, memory_bytes=4 * GIB)
        pod = make_pod("ml/mig-0/main", Scheme.VOLCANO, (share,), shim=make_shim("v1.2", HAMI_ROOT))
        super().__init__(folder, Scenario(node="mig-node", gpus=(split,), pods=(pod,)), *flags)
        gpu = nvml_fake.Device(GPU, mig=1)
        self.write_driver(devices=[gpu, nvml_fake.Mig(GPU, INSTANCE, gi=3)])


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
@each_set
def test_each_documented_query_is_answered(servers, name):
    first_answers(servers[name], {query: asked(query) for query in QUERIES[name]})
