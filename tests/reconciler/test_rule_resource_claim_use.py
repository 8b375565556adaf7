"""Containers that use more together than their ResourceClaim consumes of a GPU."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import ObjectKind
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.memory_overuse import over_limit
from tests.reconciler.node_samples import on_node
from tests.reconciler.samples import CODECS_IN_USE, uuid
from vgpu.ledger import Statement
from vgpu.ledger.usage import Usage
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.model.units import GIB

GPU = uuid("gpu-1", 0)
CONSUMED = 8 * GIB
ACTS = Policy(modes={Rule.OVER_LIMIT: Mode.APPLY})
WEB = ("web", "main")
SIDE = ("web", "side")
JOB = ("job", "main")


def holds(place, *shares, source=Source.DRA_STATE):
    """A container uses ResourceClaims, each with this share ID and memory of the GPU."""
    name, container = place
    return Statement(
        source=source,
        pod=PodRef(f"uid-{name}", "ml", name),
        container=container,
        shares=tuple(Share(GPU, memory) for _, memory in shares),
        scheme=Scheme.DRA,
        alive=True,
        resource_claim_devices=tuple(
            ResourceClaimDevice("c1", "train", "gpu.nvidia.com", "gpu-1", "gpu-0", share_id)
            for share_id, _ in shares
        ),
    )


def uses(place, gib):
    name, container = place
    return Usage(f"uid-{name}", container, GPU, gib * GIB, (4711,))


def found(*statements, usage, policy=ACTS):
    known = {"live_pods": frozenset({"uid-web", "uid-job"}), "pods_complete": False}
    seen = on_node(statements=statements, usage=usage, known=known)
    return list(over_limit(ClusterIndex(seen, CODECS_IN_USE), policy))


def test_containers_within_their_share_may_be_over_it_together():
    everyone = (WEB, SIDE, JOB)
    statements = [holds(place, ("s1", CONSUMED)) for place in everyone]
    (finding,) = found(*statements, usage=[uses(place, 4) for place in everyone])
    assert (finding.rule, finding.cause) == (Rule.OVER_LIMIT, Cause.MORE_THAN_CONSUMED)
    about = finding.object_ref
    assert (about.kind, about.namespace, about.name) == (ObjectKind.RESOURCE_CLAIM, "ml", "train")
    assert (about.uid, about.node, finding.action) == ("c1", "gpu-1", None)
    sums, *each = finding.evidence
    assert sums == f"node gpu-1 on {GPU}: 3 containers use 12.0 GiB of 8.0 GiB, 150 %"
    assert len(each) == 3
    assert "ml/web/side holds 8.0 GiB of this GPU (dra-manager-state), and uses 4.0 GiB" in each


@pytest.mark.parametrize("gib", [(4, 4), (0, 8)])
def test_what_is_within_it_together_is_no_finding(gib):
    statements = [holds(place, ("s1", CONSUMED)) for place in (WEB, JOB)]
    assert not found(*statements, usage=[uses(WEB, gib[0]), uses(JOB, gib[1])])


def test_one_container_is_compared_with_what_it_holds():
    (finding,) = found(holds(WEB, ("s1", CONSUMED)), usage=[uses(WEB, 9)])
    assert finding.cause is Cause.MORE_THAN_ALLOCATED


def test_a_container_whose_use_is_not_known_counts_as_nothing():
    statements = [holds(place, ("s1", CONSUMED)) for place in (WEB, SIDE, JOB)]
    usage = [uses(WEB, 5), uses(JOB, 5)]
    assert [one.cause for one in found(*statements, usage=usage)] == [Cause.MORE_THAN_CONSUMED]


def test_two_shares_of_one_resource_claim_are_two_limits():
    statements = [holds(WEB, ("s1", CONSUMED)), holds(JOB, ("s2", CONSUMED))]
    assert not found(*statements, usage=[uses(WEB, 7), uses(JOB, 7)])


def test_a_container_with_more_of_the_gpu_is_left_out():
    statements = [holds(WEB, ("s1", CONSUMED), ("s2", CONSUMED)), holds(JOB, ("s1", CONSUMED))]
    assert not found(*statements, usage=[uses(WEB, 12), uses(JOB, 4)])


@pytest.mark.parametrize("memory", [None, 0])
def test_a_share_without_a_size_has_no_limit(memory):
    statements = [holds(place, ("s1", memory)) for place in (WEB, JOB)]
    assert not found(*statements, usage=[uses(WEB, 20), uses(JOB, 20)])


def test_an_annotation_proves_no_share():
    statements = [
        holds(place, ("s1", CONSUMED), source=Source.RESOURCE_CLAIM) for place in (WEB, JOB)
    ]
    assert not found(*statements, usage=[uses(WEB, 6), uses(JOB, 6)])
