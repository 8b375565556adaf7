"""ResourceClaims that keep devices for no pod, as the API server and as a node shows them."""

import json

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, ObjectKind, Scope
from reconciler.observe.cluster import ListingObserver, WatchingObserver
from reconciler.observe.dump import DumpObserver
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.conflicts import double_booked
from reconciler.rules.leftovers import resource_claim as rule
from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from tests.reconciler.samples import CODECS_IN_USE, NOW, replace, snapshot
from tests.support import sample_cluster as sample
from tests.support.answering_server import anonymous_access
from tests.support.dra import published, resource_claim_json, resource_slice, result
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import Units
from vgpu.kube.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from vgpu.ledger import Conflict, ConflictKind, Ledger
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Pod

USERS = [("a", "uid-a"), ("b", "uid-b")]
COMPLETE = frozenset({Coverage.PODS, Coverage.RESOURCE_CLAIMS})


def pod(name, **fields):
    return Pod(PodRef(f"uid-{name}", "ml", name), node="gpu-1", uses_resource_claims=True, **fields)


def found(*resource_claims, pods=(), complete=COMPLETE, **fields):
    known = ClusterResourceClaims(
        tuple(RESOURCE_CLAIMS.one(json.dumps(item).encode()) for item in resource_claims),
        (),
        tuple(pods),
    )
    seen = replace(snapshot(**fields), complete=complete, resource_claims=known)
    return list(rule(ClusterIndex(seen, CODECS_IN_USE), Policy()))


def test_a_resource_claim_whose_pods_exist_is_no_finding():
    resource_claim = resource_claim_json("train", result(), pods=USERS)
    assert not found(resource_claim, pods=[pod("a"), pod("b")])
    assert not found(resource_claim_json("waits", pods=USERS[:1]))  # it has no device


def test_a_resource_claim_without_any_pod_keeps_its_devices():
    (finding,) = found(resource_claim_json("train", result(), result("gpu-1"), pods=USERS))
    assert (finding.rule, finding.cause) == (Rule.RESOURCE_CLAIM, Cause.RESERVED_FOR_NOBODY)
    about = finding.object_ref
    assert (about.kind, about.name, about.node) == (ObjectKind.RESOURCE_CLAIM, "train", "gpu-1")
    assert finding.evidence == (
        "it has gpu.nvidia.com/gpu-1/gpu-0, gpu.nvidia.com/gpu-1/gpu-1",
        "it is reserved for pod a (uid-a), which is gone",
        "it is reserved for pod b (uid-b), which is gone",
    )
    assert finding.action is None
    (alone,) = found(resource_claim_json("train", result()))
    assert alone.evidence[-1] == "it is reserved for no pod"


def test_a_pod_that_is_gone_beside_one_that_lives():
    resource_claim = resource_claim_json("train", result(), pods=USERS)
    (finding,) = found(resource_claim, pods=[pod("a")])
    assert finding.cause is Cause.STALE_RESERVATION
    assert finding.evidence[1:] == ("it is reserved for pod b (uid-b), which is gone",)
    (finding,) = found(resource_claim, pods=[pod("a"), pod("b", phase="Failed")])
    assert finding.cause is Cause.STALE_RESERVATION


def test_what_is_not_known_for_certain_is_no_finding():
    resource_claim = resource_claim_json("train", result(), pods=USERS)
    for missing in COMPLETE:
        assert not found(resource_claim, complete=COMPLETE - {missing})
    unread = MalformedObject("Pod", PodRef("uid-x", "ml", "x"), "bad")
    assert not found(resource_claim, malformed=(unread,))
    resource_claim["status"]["reservedFor"].append({"apiGroup": "x.example", "resource": "gangs"})
    assert not found(resource_claim)


def test_a_resource_claim_may_opt_out():
    resource_claim = resource_claim_json("train", result(), pods=USERS)
    resource_claim["metadata"]["annotations"] = {"vgpu.dev/reconcile": "false"}
    assert not found(resource_claim)


def test_what_only_the_driver_of_a_node_has_is_a_finding_of_the_node():
    left = Conflict(ConflictKind.RESOURCE_CLAIM_LEFT, "GPU-1", detail="ResourceClaim ml/old")
    ledger = Ledger("gpu-1", (), conflicts=(left,))
    (finding,) = found(scope=Scope.NODE, ledgers={"gpu-1": ledger})
    assert (finding.cause, finding.object_ref.name) == (Cause.LEFT_PREPARED, "GPU-1")
    assert finding.evidence[0].endswith(": ResourceClaim ml/old")


def test_a_cdi_spec_that_is_missing_is_a_finding_of_the_node():
    detail = "ResourceClaim ml/a of gpu.nvidia.com, gpu-0: no CDI spec has k8s.x/claim=c1-gpu-0"
    missing = Conflict(ConflictKind.CDI_SPEC_MISSING, "GPU-1", detail=detail)
    ledger = Ledger("gpu-1", (), conflicts=(missing,))
    (finding,) = found(scope=Scope.NODE, ledgers={"gpu-1": ledger})
    assert (finding.cause, finding.object_ref.name) == (Cause.SPEC_MISSING, "GPU-1")
    assert finding.evidence[0].endswith(detail)
    assert finding.action is None


# ---------------------------------------------------------------- how they are read

KINDS = {kind.name: kind for kind in (NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES)}


def user(name):
    item = sample.pod(name, "gpu-1")
    item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    return item


def users(name):
    return [(name, sample.pod(name)["metadata"]["uid"])]


ITEMS = (
    sample.node("gpu-1"),
    user("a"),
    user("b"),
    resource_claim_json("a", result(consumed="6Gi"), pods=users("a")),
    resource_claim_json("b", result(consumed="5Gi"), pods=users("b")),
    resource_claim_json("left", result("gpu-1"), pods=users("gone")),
    resource_slice(published("gpu-0", sample.uuid(1)), published("gpu-1", sample.uuid(2))),
)


@pytest.fixture
def cluster():
    store = ObjectStore()
    for item in ITEMS:
        store.create(KINDS[item["kind"]], item)
    with ApiServer(store) as api, ApiClient(anonymous_access(api.url)) as client:
        yield client


def views(observer):
    try:
        return observer.view(NOW)
    finally:
        observer.close()


@pytest.mark.parametrize("way", ["listed", "watched", "dumped"])
def test_every_observer_reads_them_and_pods_of_them_are_no_pods_that_share(cluster, way):
    match way:
        case "listed":
            view = views(ListingObserver(cluster, Units(), resource_claims=True))
        case "watched":
            view = views(WatchingObserver(cluster, Units(), resource_claims=True))
        case "dumped":
            content = json.dumps({"kind": "List", "items": ITEMS}).encode()
            view = views(DumpObserver(content, "dump", Units()))
    index = ClusterIndex(view.snapshot, view.codecs)
    (finding,) = rule(index, Policy())
    assert (finding.cause, finding.object_ref.name) == (Cause.RESERVED_FOR_NOBODY, "left")
    (sums,) = double_booked(index, Policy(modes={Rule.DOUBLE_BOOKED: Mode.APPLY}))
    assert sums.cause is Cause.OVERCOMMITTED
    assert sums.skip_reason is not None  # no eviction by what only the API server has
    assert view.snapshot.pods == ()
    assert {pod.ref.name for pod in view.snapshot.resource_claims.pods} == {"a", "b"}


def test_without_the_rule_nothing_of_them_is_read(cluster):
    view = views(ListingObserver(cluster, Units()))
    assert view.snapshot.resource_claims == ClusterResourceClaims()
    assert Coverage.RESOURCE_CLAIMS not in view.snapshot.complete
    assert not Policy().reads_resource_claims
