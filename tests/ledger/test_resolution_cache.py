"""With the pods of the merge before, a ledger is the same as without them."""

import pytest

from tests.ledger.ledger_values import A, entry, evidence, pod, statement_of
from vgpu.ledger import merge
from vgpu.ledger.merge import ResolutionCache
from vgpu.model.names import ContainerKind, Source
from vgpu.model.objects import Container
from vgpu.model.units import GIB

SIDECAR = Container("proxy", kind=ContainerKind.SIDECAR)
INIT = Container("fetch", kind=ContainerKind.INIT)
MAIN = Container("main")
SIZES = {"proxy": 4, "fetch": 6, "main": 1}


@pytest.mark.parametrize("source", [Source.ANNOTATIONS, Source.OWN_CHECKPOINT])
def test_containers_that_start_in_another_order_have_another_peak(source):
    """The order comes from the pod's spec, and from our own checkpoint where that is unknown."""
    cache = ResolutionCache()
    for containers, peak in (((SIDECAR, INIT, MAIN), 10), ((INIT, SIDECAR, MAIN), 6)):
        spec = (pod("u1", containers=containers),) if source is Source.ANNOTATIONS else ()
        statements = [
            statement_of(source, A, SIZES[one.name], container=one.name, kind=one.kind, alive=True)
            for one in containers
        ]
        facts = evidence(*statements, pods=spec, pods_complete=bool(spec))
        assert merge(facts, cache) == merge(facts)
        assert entry(merge(facts, cache), A).held.memory_bytes == peak * GIB
