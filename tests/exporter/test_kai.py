"""The exporter's page of a node of KAI Scheduler, and of one without it."""

from exporter.allocations import allocation_totals
from exporter.families import OWN_TABLES
from exporter.problems import CONFLICT_RUNBOOKS, conflict_problems
from exporter.sampler import codecs
from tests.exporter.test_nvidia_sharing import view_of
from tests.kai.kai_world import KaiNode, Seen, TenantPod
from tests.support.kai_pods import NODE, gpu, kai_node, reservation, tenant
from tests.support.waiting import WAIT_SECONDS
from vgpu.ledger.conflicts import OF_GPU_GROUPS, ConflictKind
from vgpu.metrics.render import Format, Renderer
from vgpu.model.units import GIB, MIB
from vgpu.schemes.kai.row import KAI_ROW
from vgpu.schemes.registry import registered
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import observe
from vgpu.sources.samples import Observation, pod_sample, with_node


def page(seen, node=NODE):
    """The lines of all tables."""
    builder = LedgerBuilder(codecs(GIB, GIB), node)
    ledger = builder.ledger(seen)
    view = view_of(seen, builder.usage(seen), allocation_totals(ledger))
    return Renderer(OWN_TABLES).render(view).body(Format.TEXT)


TENANTS = (
    TenantPod((0,), 50, False, 1000, 60.0, False),
    TenantPod((0, 1), 27, True, 2000, 60.0, False),
)


def lines(**fields):
    """The lines about what containers have, of a node with two shared GPUs."""
    node = {"has_isolator": True, "has_label": True, "reads_api": True, "whole_gpu": False}
    seen = Seen(KaiNode(2, TENANTS, **(node | fields))).observation()
    return page(seen).decode().splitlines()


def of(family, *parts, **fields):
    return sorted(
        line.rpartition(" ")[2]
        for line in lines(**fields)
        if line.startswith(f"{family}{{") and all(part in line for part in parts)
    )


def test_tenants_have_the_schedulers_size_and_the_librarys_limit():
    second = str(15360 * 27 // 100 * MIB)
    first = {'pod="tenant-0"', f'uuid="{gpu(0)}"'}
    assert of("vgpu_container_memory_allocated_bytes", *first) == [str(7650 * MIB)]
    assert of("vgpu_container_memory_limit_bytes", *first) == [str(7680 * MIB)]
    assert of("vgpu_container_memory_allocated_bytes", 'pod="tenant-1"') == [second] * 2
    assert of("vgpu_container_memory_used_bytes", *first) == [str(1000 * MIB)]
    assert of("vgpu_container_memory_limit_bytes", has_isolator=False) == []
    assert not any("gpu-reservation" in line for line in lines())


def test_without_the_api_server_the_size_of_a_tenant_is_absent_unless_a_library_limits_it():
    assert of("vgpu_container_shares_allocated", reads_api=False) == ["1"] * 3
    allocated = "vgpu_container_memory_allocated_bytes"
    assert of(allocated, reads_api=False, has_isolator=False) == []
    assert not any("gpu-reservation" in line for line in lines(reads_api=False))


def test_the_conflicts_of_groups_have_numbers_on_nodes_of_kai_only():
    kinds = {kind.value for kind in OF_GPU_GROUPS}
    named = [line for line in lines() if any(f'"{kind}"' in line for kind in kinds)]
    assert len(named) == len(kinds)
    assert {line.rpartition(" ")[2] for line in named} == {"0"}


def test_the_status_page_names_the_pod_the_group_and_the_runbook_of_each_conflict():
    assert CONFLICT_RUNBOOKS.keys() == set(ConflictKind)
    pods = (reservation(), reservation("h", gpu(1)), tenant(fraction="0.004"))
    seen = Observation(pods=with_node(pod_sample(pods, complete=True), kai_node()))
    builder = LedgerBuilder(codecs(None, None), NODE)
    view = view_of(seen, builder.usage(seen), allocation_totals(builder.ledger(seen)))
    texts = [f"{each.text} {each.detail.page}" for each in conflict_problems(view)]
    assert len(texts) == 3
    for text, part in zip(texts, (gpu(1), gpu(1), "team-a/train"), strict=True):
        assert part in text
        assert text.endswith("runbooks/kai")


def test_a_node_without_kai_serves_the_same_bytes(make_bench):
    """The demo's node has every other system that annotates, and each problem."""
    seen = observe(make_bench().collectors, 1_790_000_000.0, WAIT_SECONDS, 600.0)
    whole = page(seen, "n")
    assert whole.count(b"\nvgpu_container_memory_used_bytes{") > 5
    with registered(without=(KAI_ROW,)):
        assert page(seen, "n") == whole
    assert [line for line in whole.splitlines() if b"reservation-pod" in line] == []
