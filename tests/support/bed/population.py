"""Who lives in a fleet: nodes with GPUs, and pods as a cluster has them, under one scheme.

    population = Population(nodes=1000, pods=5000, scheme="gpushare")
    population.node(7)
    population.pod(5000, life=Life.OUT_OF_RESOURCE)

Pure, and the same every time but for the moment of binding. Pod ``i`` is bound to node
``i % nodes``; those of a node take its GPUs in turn, one share each. What a scheme's scheduler and
plugin say about nodes and pods is a line of SCHEMES.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from tests.support.bed.client import Object
from tests.support.bed.stages import LABEL, MANAGED, PLAYED, Life

CARDS = 8
MODEL = "NVIDIA H100 80GB HBM3"
CARD_MIB = 81559
SHARES = 10
"""Of a GPU; each gets this part of it."""
TEAMS = 10
PODS_OF_A_SET = 10


class Scheme(NamedTuple):
    """What one sharing system has nodes and pods say, when all is well."""

    allocatable: Mapping[str, int]
    limits: Mapping[str, int]
    pod_annotations: Callable[[str, int, int], dict[str, str]]
    """Node, GPU, unix time of binding -> annotations of a pod whose share was assigned."""
    node_annotations: Callable[[str], dict[str, str]] = lambda _: {}
    node_labels: Mapping[str, str] = {}


def card_uuid(node: str, card: int) -> str:
    """A GPU's UUID, which is always the same."""
    return f"GPU-{_uuid(str(card), node)}"


# ------------------------------------------------------------------------------------ schemes

MEMORY_SHARE = CARD_MIB // SHARES
CORE_SHARE = 100 // SHARES
GIB, GAIA_BLOCK = 1024, 256  # MiB


def _volcano_register(node: str) -> dict[str, str]:
    cards = (
        f"{card_uuid(node, card)},{SHARES},{CARD_MIB},NVIDIA-{MODEL},true,hami-core:"
        for card in range(CARDS)
    )
    return {"volcano.sh/node-vgpu-register": "".join(cards)}


def _volcano(node: str, card: int, bound: int) -> dict[str, str]:
    share = f"{card_uuid(node, card)},NVIDIA,{MEMORY_SHARE},{CORE_SHARE}:"
    return {
        "volcano.sh/bind-phase": "success",
        "volcano.sh/bind-time": str(bound),
        "volcano.sh/devices-to-allocate": ";",
        "volcano.sh/vgpu-ids-new": share,
        "volcano.sh/vgpu-node": node,
        "volcano.sh/vgpu-time": str(2**64 - 1),  # the plugin's, once it has served the pod
    }


def _gpushare(node: str, card: int, bound: int) -> dict[str, str]:
    return {
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(bound * 10**9),
        "ALIYUN_COM_GPU_MEM_DEV": str(CARD_MIB // GIB),
        "ALIYUN_COM_GPU_MEM_IDX": str(card),
        "ALIYUN_COM_GPU_MEM_POD": str(MEMORY_SHARE // GIB),
    }


def _gaia(node: str, card: int, bound: int) -> dict[str, str]:
    return {
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-gpu-idx-0": str(card),
        "tencent.com/predicate-node": node,
        "tencent.com/predicate-time": str(bound * 10**9),
    }


SCHEMES = {
    "volcano": Scheme(
        allocatable={
            "volcano.sh/vgpu-cores": CARDS * 100,
            "volcano.sh/vgpu-memory": CARDS * CARD_MIB,
            "volcano.sh/vgpu-number": CARDS * SHARES,
        },
        limits={
            "volcano.sh/vgpu-cores": CORE_SHARE,
            "volcano.sh/vgpu-memory": MEMORY_SHARE,
            "volcano.sh/vgpu-number": 1,
        },
        pod_annotations=_volcano,
        node_annotations=_volcano_register,
    ),
    "gpushare": Scheme(
        allocatable={
            "aliyun.com/gpu-count": CARDS,
            "aliyun.com/gpu-mem": CARDS * (CARD_MIB // GIB),
        },
        limits={"aliyun.com/gpu-mem": MEMORY_SHARE // GIB},
        pod_annotations=_gpushare,
        node_labels={"gpushare": "true"},
    ),
    "gaia": Scheme(
        allocatable={
            "tencent.com/vcuda-core": CARDS * 100,
            "tencent.com/vcuda-memory": CARDS * (CARD_MIB // GAIA_BLOCK),
        },
        limits={
            "tencent.com/vcuda-core": CORE_SHARE,
            "tencent.com/vcuda-memory": MEMORY_SHARE // GAIA_BLOCK,
        },
        pod_annotations=_gaia,
        node_labels={"nvidia-device-enable": "enable"},
    ),
}


# ------------------------------------------------------------------------------------ objects


class Population(NamedTuple):
    """So many nodes and pods, and what they all are."""

    nodes: int
    pods: int
    scheme: str = "volcano"
    """One of SCHEMES."""

    def node(self, index: int) -> Object:
        """A node that is not Ready yet."""
        scheme, name = SCHEMES[self.scheme], node_name(index)
        resources = {
            "cpu": "128",
            "memory": "1056Gi",
            "ephemeral-storage": "1800Gi",
            "hugepages-1Gi": "0",
            "hugepages-2Mi": "0",
            "pods": "250",
            **{resource: str(number) for resource, number in scheme.allocatable.items()},
        }
        address = f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}"
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {MANAGED: PLAYED, **scheme.node_annotations(name)},
                "labels": {
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "node.kubernetes.io/instance-type": "gpu-8",
                    "topology.kubernetes.io/zone": f"zone-{index % 3}",
                    **scheme.node_labels,
                },
            },
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": address},
                    {"type": "Hostname", "address": name},
                ],
                "allocatable": resources,
                "capacity": resources,
                "nodeInfo": {
                    "architecture": "amd64",
                    "bootID": _uuid("boot", name),
                    "containerRuntimeVersion": "containerd://1.7.35",
                    "kernelVersion": "6.1.0-31-amd64",
                    "kubeProxyVersion": "v1.34.4",
                    "kubeletVersion": "v1.34.4",
                    "machineID": _uuid("machine", name).replace("-", ""),
                    "operatingSystem": "linux",
                    "osImage": "Debian GNU/Linux 12 (bookworm)",
                    "systemUUID": _uuid("system", name),
                },
            },
        }

    def furniture(self) -> tuple[list[Object], list[Object]]:
        """The namespaces, and the ServiceAccounts in them that the pods run as."""
        teams = [f"team-{number}" for number in range(TEAMS)]
        accounts = [{"name": "default", "namespace": team} for team in teams]
        return (
            [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": t}} for t in teams],
            [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": a} for a in accounts],
        )

    def replica_sets(self) -> list[Object]:
        """The owners of the pods, each of PODS_OF_A_SET."""
        sets = []
        for first in range(0, self.pods, PODS_OF_A_SET):
            pod = self.pod(first)
            labels = pod["metadata"]["labels"]
            template = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
            spec = {
                "replicas": min(PODS_OF_A_SET, self.pods - first),
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": template},
            }
            name, namespace = _set_name(first), pod["metadata"]["namespace"]
            metadata = {"name": name, "namespace": namespace, "labels": labels}
            about = {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
            sets.append({**about, "metadata": metadata, "spec": spec})
        return sets

    def owned_pods(self, sets: Sequence[Object], bound: int) -> Iterator[Object]:
        """All pods, bound at unix time ``bound``, each owned by its set of ``sets``."""
        for index in range(self.pods):
            owner = sets[index // PODS_OF_A_SET]
            yield self.pod(index, owner=owner, bound=bound)

    def pod(
        self, index: int, *, owner: Object | None = None, bound: int = 0, life: Life | None = None
    ) -> Object:
        """A pod as it is once it was bound and served by its scheme, at unix time ``bound``.

        ``index`` may be past the last; without an owner it is a bare pod.
        """
        scheme = SCHEMES[self.scheme]
        node, card = node_name(index % self.nodes), index // self.nodes % CARDS
        application, _, template = _set_name(index).rpartition("-")
        labels = {"app.kubernetes.io/name": application, "pod-template-hash": template}
        if life:
            labels[LABEL] = life
        metadata: Object = {
            "name": f"{application}-{template}-{index:06d}",
            "namespace": f"team-{index // PODS_OF_A_SET % TEAMS}",
            "labels": labels,
            "annotations": scheme.pod_annotations(node, card, bound),
        }
        if owner:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ]
        spec = {
            "nodeName": node,
            "containers": [_container(scheme)],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "volumes": [
                {"name": "data", "nfs": {"server": "storage.example.com", "path": "/data"}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            ],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def node_name(index: int) -> str:
    """The name of a node."""
    return f"gpu-{index:05d}"


def _set_name(index: int) -> str:
    """The name of the ReplicaSet of a pod: its Deployment's, and a hash of the template."""
    number = index // PODS_OF_A_SET
    return f"train-{number:05d}-{_uuid('template', str(number))[:8]}"


def _uuid(*names: str) -> str:
    """One that is always the same."""
    return str(uuid5(NAMESPACE_DNS, ".".join(names)))


def _container(scheme: Scheme) -> dict[str, Any]:
    plain = {"cpu": "4", "memory": "32Gi"}
    limits = {**plain, **{resource: str(number) for resource, number in scheme.limits.items()}}
    about_itself = {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "NODE_NAME": "spec.nodeName",
    }
    return {
        "name": "main",
        "image": "registry.example.com/train/torch:2.7.1-cuda12.8",
        "command": ["python3", "-m", "train"],
        "args": ["--config=/data/config.yaml", "--resume=latest", "--checkpoint-every=1000"],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in about_itself.items()
        ]
        + [{"name": "NCCL_DEBUG", "value": "WARN"}],
        "ports": [{"name": "metrics", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "metrics"}},
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
