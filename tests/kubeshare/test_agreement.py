"""Controllers, ledger and the reconciler's rule read the same objects, and agree about them."""

import json
from collections import defaultdict

from hypothesis import example, given
from hypothesis import strategies as st

from kubeshare.bodies import HolderOptions, holder_pod
from kubeshare.decoders import CLUSTER_PODS, SHARE_POD_OBJECTS
from kubeshare.model import VirtualGpuName
from kubeshare.share_pod_cluster import SharePodCluster
from kubeshare.steps import DeletePod, holder_step
from reconciler.cluster_index import ClusterIndex
from reconciler.policy import Policy
from reconciler.reasons import Cause
from reconciler.rules.kubeshare import kubeshare
from tests.kubeshare.test_labelled import content
from tests.reconciler.samples import CODECS_IN_USE, snapshot
from vgpu.kube.kinds import PODS, SHARE_PODS
from vgpu.ledger.cluster import cluster
from vgpu.model.objects import Node
from vgpu.model.units import GIB, MIB
from vgpu.schemes.kubeshare.labels import GPU_UUID, MANAGER_PORT, VIRTUAL_GPU
from vgpu.schemes.kubeshare.node import GPU_INFO, HOLDER_UUID
from vgpu.schemes.kubeshare.sharepod import join

NODE, OTHER = "gpu-1", "gpu-2"
UUIDS = {(NODE, "abcde"): "GPU-a", (NODE, "vwxyz"): "GPU-b", (OTHER, "abcde"): "GPU-c"}
"""The GPU of each virtual GPU; GPUIDs are names on a node."""

FINISHING = {"Succeeded": {"OnFailure", "Never"}, "Failed": {"Never"}}


def restarts(tenant):
    """Whether its pod has ended and is created again: the controllers keep its share meanwhile."""
    return tenant["policy"] not in FINISHING.get(tenant["phase"], {tenant["policy"]})


TENANTS = st.lists(
    st.fixed_dictionaries(
        {
            "gpu": st.sampled_from(sorted(UUIDS)),
            "milli": st.integers(1, 200),
            "gib": st.integers(0, 2),
            "phase": st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]),
            "policy": st.sampled_from(["Always", "OnFailure", "Never", ""]),
            "is_bound": st.booleans(),
            "has_share_pod": st.booleans(),
        }
    ).filter(lambda tenant: not restarts(tenant)),
    max_size=5,
)
HOLDERS = st.dictionaries(st.sampled_from(sorted(UUIDS)), st.booleans())
"""Virtual GPUs with a holder pod; the value is whether it may be kept idle."""


def spec_of(tenant):
    containers = [{"name": "main", "image": "a"}]
    return {
        "nodeName": tenant["gpu"][0],
        "restartPolicy": tenant["policy"],
        "containers": containers,
    }


def meta_of(number, tenant, uid):
    return {
        "name": f"p{number}",
        "namespace": "ns",
        "uid": uid,
        "annotations": {
            "kubeshare/GPUID": tenant["gpu"][1],
            "kubeshare/gpu_request": str(tenant["milli"] / 1000),
            "kubeshare/gpu_limit": "1.0",
            "kubeshare/gpu_mem": str(tenant["gib"] * GIB),
        },
    }


def status_of(number, tenant):
    """The status of a SharePod, as KubeShare writes it; no pod has a phase before it is bound."""
    if not tenant["is_bound"]:
        return {}
    status = {"BoundDeviceID": UUIDS[tenant["gpu"]], "PodManagerPort": 50051 + number}
    if tenant["phase"]:
        pod = {"phase": tenant["phase"]}
        status |= {"PodStatus": pod, "PodObjectMeta": {"uid": f"pod-{number}"}}
    return status


def pod_of(number, tenant):
    """The pod of a SharePod."""
    owner = {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "name": f"p{number}"}
    owner |= {"uid": f"share-{number}", "controller": True}
    spec = spec_of(tenant) | {"restartPolicy": tenant["policy"] or "Always"}
    env = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": UUIDS[tenant["gpu"]]},
        {"name": "POD_MANAGER_PORT", "value": str(50051 + number)},
    ]
    spec["containers"] = [spec["containers"][0] | {"env": env}]
    meta = meta_of(number, tenant, f"pod-{number}") | {"ownerReferences": [owner]}
    return {"metadata": meta, "spec": spec, "status": {"phase": tenant["phase"]}}


def holder_of(gpu, may_stay):
    """A holder pod as our controllers create it, which runs."""
    body = holder_pod(VirtualGpuName(*gpu), HolderOptions("vgpu:test", may_stay=may_stay))
    body["metadata"]["uid"] = f"holder-{gpu[0]}-{gpu[1]}"
    body["metadata"]["annotations"][HOLDER_UUID] = UUIDS[gpu]
    body["spec"]["nodeName"] = gpu[0]
    return body | {"status": {"phase": "Running"}}


class Read:
    """The same objects as the controllers and as the other programs read them."""

    def __init__(self, tenants, holders):
        self.state = SharePodCluster()
        self.pods, self.share_pods = [], []
        for number, tenant in enumerate(tenants):
            if tenant["has_share_pod"]:
                meta = meta_of(number, tenant, f"share-{number}")
                content = {"metadata": meta, "spec": spec_of(tenant)}
                self.add_share_pod(content | {"status": status_of(number, tenant)})
            if tenant["is_bound"] and tenant["phase"]:
                self.add_pod(pod_of(number, tenant))
        for gpu, may_stay in holders.items():
            self.add_pod(holder_of(gpu, may_stay))

    def add_share_pod(self, content):
        text = json.dumps(content).encode()
        self.share_pods.append(SHARE_PODS.one(text))
        self.state.set_share_pod(f"ns/{content['metadata']['name']}", SHARE_POD_OBJECTS.one(text))

    def add_pod(self, content):
        text = json.dumps(content).encode()
        self.pods.append(PODS.one(text))
        meta = content["metadata"]
        self.state.set_pod(f"{meta['namespace']}/{meta['name']}", CLUSTER_PODS.one(text))

    def findings(self):
        """What the reconciler's rule reports."""
        seen = snapshot(*self.pods, *self.share_pods)
        return list(kubeshare(ClusterIndex(seen, CODECS_IN_USE), Policy()))

    def ledgers(self):
        """The ledger of each node, by annotations alone."""
        infos = defaultdict(str)
        for (name, _), uuid in UUIDS.items():
            infos[name] += f"{uuid}:{16 * GIB // MIB},"
        nodes = [Node(name, annotations={GPU_INFO: text}) for name, text in infos.items()]
        return cluster(nodes, join(self.pods, self.share_pods), CODECS_IN_USE).ledgers


def held_by_ledger(read):
    """UUID -> thousandths and bytes of the GPU that the ledgers have as held."""
    return {
        entry.device.uuid: (
            sum(holding.share.cores_milli or 0 for holding in entry.holdings),
            sum(holding.share.memory_bytes or 0 for holding in entry.holdings),
        )
        for ledger in read.ledgers().values()
        for entry in ledger.devices
        if entry.holdings
    }


@given(TENANTS, HOLDERS)
def test_ledger_and_controllers_have_the_same_sum_of_each_gpu(tenants, holders):
    """Of each GPU that a SharePod or a holder pod names: pods alone name it only in their env."""
    read = Read(tenants, holders)
    expected = {}
    for gpu in read.state.virtual_gpus():
        is_named = gpu.holder is not None or any(tenant.bound for tenant in gpu.tenants)
        users = [user.request for user in gpu.users if is_named]
        milli = sum(user.request_milli for user in users)
        if users:
            expected[UUIDS[tuple(gpu.name)]] = milli, sum(user.memory_bytes for user in users)
    assert held_by_ledger(read) == expected


@given(TENANTS, HOLDERS)
def test_the_rule_finds_the_holders_that_the_controllers_delete_and_no_others(tenants, holders):
    read = Read(tenants, holders)
    orphans = {
        finding.object_ref.name
        for finding in read.findings()
        if finding.cause is Cause.ORPHANED_HOLDER
    }
    deleted = set()
    for gpu in read.state.virtual_gpus():
        kept = holders.get(tuple(gpu.name), False)
        step = holder_step(gpu, node_exists=True, may_create=True, is_kept=kept)
        if isinstance(step, DeletePod):
            deleted.add(step.ref.name)
    assert orphans == deleted


@given(TENANTS, HOLDERS, st.sampled_from(sorted(UUIDS)))
def test_the_rule_finds_a_second_gpu_of_a_virtual_gpu_as_the_controllers_do(tenants, holders, gpu):
    read = Read(tenants, {**holders, gpu: False})
    assert not [each for each in read.findings() if each.cause is Cause.SPLIT_VIRTUAL_GPU]
    moved = holder_of(gpu, may_stay=False)
    moved["metadata"]["annotations"][HOLDER_UUID] = "GPU-another"
    read.pods = [pod for pod in read.pods if pod.ref.uid != moved["metadata"]["uid"]]
    read.add_pod(moved)  # a later version of the same holder
    found = {
        finding.object_ref.name
        for finding in read.findings()
        if finding.cause is Cause.SPLIT_VIRTUAL_GPU
    }
    state = read.state.virtual_gpu(VirtualGpuName(*gpu))
    tenants_bound = {tenant.ref.name for tenant in state.tenants if tenant.bound}
    assert found == tenants_bound
    assert state.is_torn == bool(state.bound_users)


LABELLED = st.lists(
    st.fixed_dictionaries(
        {
            "gpu": st.sampled_from(sorted(UUIDS)),
            "milli": st.integers(1, 200),
            "gib": st.integers(0, 2),
            "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
            "is_bound": st.booleans(),
        }
    ),
    max_size=5,
)


def labelled_of(number, pod):
    """A pod with KubeShare 2's labels that our controllers have placed, and perhaps bound."""
    node, gpuid = pod["gpu"]
    annotations = {VIRTUAL_GPU: f"{node}/{gpuid}"}
    made = content(f"p{number}", pod["milli"], pod["gib"], annotations=annotations)
    if pod["is_bound"]:
        bound = {GPU_UUID: UUIDS[pod["gpu"]], MANAGER_PORT: str(50051 + number)}
        annotations |= bound | {"sharedgpu/gpu_mem": str(pod["gib"] * GIB)}
        made["spec"]["nodeName"] = node
        made["status"]["phase"] = pod["phase"]
    return made


WAITING = {"gpu": (NODE, "abcde"), "milli": 1, "gib": 0, "phase": "Pending", "is_bound": False}


@given(LABELLED, HOLDERS)
@example([WAITING], {(OTHER, "abcde"): False})
def test_pods_with_labels_count_the_same_for_all(pods, holders):
    read = Read([], holders)
    for number, pod in enumerate(pods):
        read.add_pod(labelled_of(number, pod))
    expected, deleted = defaultdict(lambda: (0, 0)), set()
    for gpu in read.state.virtual_gpus():
        bound = [user.request for user in gpu.users if user.uuid]
        if bound:
            sums = (
                sum(each.request_milli for each in bound),
                sum(each.memory_bytes for each in bound),
            )
            expected[UUIDS[tuple(gpu.name)]] = sums
        kept = holders.get(tuple(gpu.name), False)
        step = holder_step(gpu, node_exists=True, may_create=True, is_kept=kept)
        if isinstance(step, DeletePod):
            deleted.add(step.ref.name)
    assert held_by_ledger(read) == expected
    assert deleted == {
        finding.object_ref.name
        for finding in read.findings()
        if finding.cause is Cause.ORPHANED_HOLDER
    }
