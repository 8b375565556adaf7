"""A page and the ledger that it was made with have the same numbers for any node."""

import functools
import re
from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from exporter.allocations import allocation_totals, is_allocation
from exporter.families import OWN_TABLES
from exporter.sampler import codecs
from exporter.view import ExporterView, gpu_rows
from tests.support.any_node import NODE, nodes, numbers
from tests.support.live import parse
from vgpu.ledger.limit_verdict import LimitReason
from vgpu.ledger.usage import certain, container_name, unclear_use, usages
from vgpu.metrics.render import Format, Renderer
from vgpu.model.names import Scheme
from vgpu.model.units import GIB, MIB
from vgpu.sources.ledger_builder import LedgerBuilder

replace = msgspec.structs.replace

LABEL = re.compile(r'(\w+)="([^"]*)"')
PLACE = ("pod_uid", "container", "uuid")


class Page:
    """What is published of an observation, with the ledger that it was made with."""

    def __init__(self, seen, node=NODE):
        self.seen = seen
        builder = LedgerBuilder(codecs(GIB, MIB), node)
        self.ledger = builder.ledger(seen)
        self.finished = seen.pods.finished if seen.pods else frozenset()
        usage = builder.usage(seen)
        self.view = ExporterView(
            timestamp=seen.at,
            node=node,
            interval=15.0,
            usage=usage,
            collectors=(),
            calls={},
            xids=(),
            build={},
            own={},
            gpus=tuple(gpu_rows(seen.gpu, usage)) if seen.gpu else (),
            allocations=allocation_totals(self.ledger, self.finished),
        )
        exposition = Renderer(OWN_TABLES).render(self.view)
        assert not exposition.dropped
        self.series = {}
        for at, value in parse(exposition.body(Format.TEXT).decode()).items():
            name, _, labels = at.partition("{")
            self.series.setdefault(name, []).append((dict(LABEL.findall(labels)), value))

    def by(self, labels, name):
        """Values of a family, added up by these of its labels."""
        sums = Counter()
        for series_labels, value in self.series.get(name, ()):
            sums[tuple(series_labels.get(label, "") for label in labels)] += value
        return sums


@functools.cache
def page_of(number):
    """The page of a node; all properties look at the same ones."""
    return Page(nodes()[number])


@given(numbers)
def test_what_containers_use_and_the_gap_come_to_what_the_device_uses(number):
    page = page_of(number)
    used = page.by(("uuid",), "vgpu_gpu_memory_used_bytes")
    of_containers = page.by(("uuid",), "vgpu_container_memory_used_bytes")
    attributed = page.by(("uuid",), "vgpu_gpu_memory_attributed_bytes")
    gaps = page.by(("uuid",), "vgpu_gpu_memory_unattributed_bytes")
    assert attributed.keys() == gaps.keys()
    for device, total in attributed.items():
        assert total == of_containers[device]
        assert total + gaps[device] == used[device]


@given(numbers)
def test_what_is_allocated_comes_to_what_the_ledger_has(number):
    page, memory, slots = page_of(number), Counter(), Counter()
    for holding in page.ledger.holdings:
        ended = (holding.pod.uid, holding.container) in page.finished and not holding.alive
        if is_allocation(holding) and not ended:
            slots[holding.share.device,] += holding.slots
            if holding.share.memory_bytes is not None:
                memory[holding.share.device,] += holding.share.memory_bytes
    assert page.by(("uuid",), "vgpu_container_memory_allocated_bytes") == memory
    assert page.by(("uuid",), "vgpu_container_shares_allocated") == slots


@given(numbers)
def test_a_container_is_there_once_with_the_scheme_and_phase_of_the_ledger(number):
    page = page_of(number)
    infos = [labels for labels, _ in page.series.get("vgpu_container_info", ())]
    published = {(one.get("pod_uid", ""), one.get("container", "")): one for one in infos}
    assert len(published) == len(infos)
    held = {}
    for holding in page.ledger.holdings:
        held.setdefault((holding.pod.uid, holding.container), []).append(holding)
    for place, holdings in held.items():
        if place in published:
            labels = published[place]
            schemes = {holding.scheme for holding in holdings} - {Scheme.NONE}
            assert not schemes or labels["scheme"] in schemes
            assert labels["phase"] in {"released", *(holding.phase for holding in holdings)}
        elif place not in page.finished:  # a share of the whole pod, of which a container is known
            assert not place[1]
            assert any(uid == place[0] for uid, _ in published)


@given(numbers)
def test_what_the_reconciler_judges_by_is_what_is_published(number):
    """Where no region was needed to find the container of a process."""
    page = page_of(number)
    seen = page.seen
    if seen.gpu is None or seen.process is None or not seen.process.sees_host:
        assert not page.by(PLACE, "vgpu_container_memory_used_bytes")
        return
    names = seen.kubelet.containers if seen.kubelet else {}
    found = usages(seen.gpu, seen.process.owners, lambda owner, _: container_name(owner, names))
    published = page.by(PLACE, "vgpu_container_memory_used_bytes")
    for usage in certain(found, unclear_use(seen.gpu, seen.process, found)):
        assert published[usage.pod_uid, usage.container, usage.device] == usage.used_bytes


@given(numbers)
def test_no_limit_is_published_that_nobody_can_have(number):
    page = page_of(number)
    for share in page.view.usage.shares:
        assert not page.ledger.bounds.limit_error(share.device, share.limit_bytes)
        if share.accounted is not None and share.accounted.total is not None:
            assert not page.ledger.bounds.use_error(share.device, share.accounted.total)


def in_one_sample(usage):
    """The usage without the one fact that is of several samples: how often a limit was exceeded."""
    containers = tuple(
        replace(one, limit_reason=LimitReason.OVER_LIMIT_ONCE)
        if one.limit_reason is LimitReason.OVER_LIMIT
        else one
        for one in usage.containers
    )
    return replace(usage, containers=containers)


@given(st.lists(numbers, min_size=2, max_size=4))
def test_what_is_used_does_not_depend_on_what_was_kept_before(several):
    kept = LedgerBuilder(codecs(GIB, MIB), NODE)
    for number in several:
        seen, fresh = nodes()[number], LedgerBuilder(codecs(GIB, MIB), NODE)
        assert kept.ledger(seen) == fresh.ledger(seen)
        assert in_one_sample(kept.usage(seen)) == in_one_sample(fresh.usage(seen))
