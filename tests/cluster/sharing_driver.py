"""A DRA driver that shares its GPUs, in this process, for any node of the bed.

    with SharingDriver(node, gpus=2) as driver:
        driver.wait_published()

It has NVIDIA's names with ``--consumable-shares=memory`` (kubernetes-sigs/dra-driver-nvidia-gpu:
``gpu-<minor>``, attributes ``uuid`` and ``productName``, capacity ``memory``, by default all of it,
in steps of 1 MiB), and no GPU. Like that driver it limits nobody. The kubelet speaks to it by two
sockets in the node's folder: ``pluginregistration`` v1 and ``dra`` v1 (k8s.io/kubelet 0.34.4).
Their messages have only strings and messages, so they are encoded here.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import suppress
from typing import Self

import grpc

from tests.support.bed.client import Object, Refused
from tests.support.bed.node import Node
from tests.support.waiting import wait_until

DRIVER = "gpu.nvidia.com"
API = "/apis/resource.k8s.io/v1"
MEMORY_GIB = 40

REGISTRY = f"/var/lib/kubelet/plugins_registry/{DRIVER}-reg.sock"
FOLDER = f"/var/lib/kubelet/plugins/{DRIVER}"
CDI = "/run/cdi"
KIND = f"k8s.{DRIVER}/claim"


# ---------------------------------------------------------------- protobuf's wire format

_DELIMITED = 2


def field(number: int, value: str | bytes) -> bytes:
    """A string or an inner message; every string is written, also an empty one."""
    content = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | _DELIMITED]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that has only strings and messages: number and content."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        key = varint()
        length = varint()
        if key & 7 == _DELIMITED:
            yield key >> 3, message[at : at + length]
            at += length  # else it was a number, and is no string


class SharingDriver:
    """The driver of one node; registered while the block lasts."""

    def __init__(self, node: Node, gpus: int) -> None:
        self.node, self.client = node, node.cluster.client
        self.uuids = [f"GPU-{minor:08x}-1111-4222-8333-444444444444" for minor in range(gpus)]
        self._taints: dict[int, Object] = {}
        self._generation = 0
        self._lock = threading.Lock()
        self._servers: list[grpc.Server] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve both sockets; the kubelet finds the first by itself."""
        self.stop()
        self.node.path(FOLDER).mkdir(parents=True, exist_ok=True)
        self.node.path(REGISTRY).parent.mkdir(parents=True, exist_ok=True)
        dra = {
            "NodePrepareResources": self._each_resource_claim(self._prepare, 2),
            "NodeUnprepareResources": self._each_resource_claim(self._unprepare, 1),
        }
        self._serve(f"{FOLDER}/dra.sock", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", dra)
        registration = {"GetInfo": self._info, "NotifyRegistrationStatus": self._registered}
        self._serve(REGISTRY, "pluginregistration.Registration", registration)

    def stop(self) -> None:
        """Serve no more, as a driver that died: its ResourceSlice stays for a while."""
        for server in self._servers:
            server.stop(None).wait()
        self._servers = []

    def wait_published(self) -> None:
        """Until the scheduler can see the devices of this boot.

        A kubelet that starts may delete them after they were published: then they are once more.
        """
        wait_until(self._is_published, "the driver's devices are published")

    def _is_published(self) -> bool:
        with self._lock:
            generations = [one["spec"]["pool"]["generation"] for one in self._slices()]
            if self._generation > 0 and not generations:
                self._publish()
            return self._generation > 0 and generations == [self._generation]

    def taint(self, minor: int, effect: str) -> None:
        """Take a GPU out of service, as an administrator or a health check of a driver would."""
        with self._lock:
            self._taints[minor] = {"key": "example.com/broken", "effect": effect}
            self._generation += 1
            self._publish()

    # ------------------------------------------------------------ the kubelet's calls

    def _serve(self, path: str, service: str, calls: dict[str, Callable[[bytes], bytes]]) -> None:
        socket = self.node.path(path)
        socket.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(lambda request, _, call=call: call(request))
            for name, call in calls.items()
        }
        handler = grpc.method_handlers_generic_handler(service, handlers)
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    def _info(self, _: bytes) -> bytes:
        return (
            field(1, "DRAPlugin")
            + field(2, DRIVER)
            + field(3, f"{FOLDER}/dra.sock")
            + field(4, "v1.DRAPlugin")
        )

    def _registered(self, _: bytes) -> bytes:
        """The kubelet deletes ResourceSlices when it starts, so they are published each time."""
        with self._lock:
            self._generation += 1
            self._publish()
        return b""

    def _each_resource_claim(
        self, act: Callable[[str, str, str], bytes], error_field: int
    ) -> Callable[[bytes], bytes]:
        """A call about ResourceClaims, each of which is answered, by its UID."""

        def call(request: bytes) -> bytes:
            answers = b""
            for _, resource_claim in fields(request):
                known = {number: content.decode() for number, content in fields(resource_claim)}
                uid = known[2]
                try:
                    answer = act(known[1], uid, known[3])
                except (OSError, Refused, LookupError) as error:
                    answer = field(error_field, str(error))
                answers += field(1, field(1, uid) + field(2, answer))
            return answers

        return call

    def _prepare(self, namespace: str, uid: str, name: str) -> bytes:
        """Write the CDI spec, each time: after a reboot the kubelet asks again, and it is gone."""
        resource_claim = self.client.get(f"{API}/namespaces/{namespace}/resourceclaims/{name}")
        if resource_claim["metadata"]["uid"] != uid:
            raise LookupError(f"ResourceClaim {namespace}/{name} has another UID")
        results = [
            result
            for result in resource_claim["status"]["allocation"]["devices"]["results"]
            if result["driver"] == DRIVER
        ]
        devices = [
            {
                "name": cdi_name(uid, result),
                "containerEdits": {"env": [f"GPU_{result['device'].replace('-', '_')}={uid}"]},
            }
            for result in results
        ]
        spec = {"cdiVersion": "0.6.0", "kind": KIND, "devices": devices}
        folder = self.node.path(CDI)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{DRIVER}-{uid}.json").write_text(json.dumps(spec))
        return b"".join(
            field(
                1,
                field(1, result["request"].partition("/")[0])  # without the alternative
                + field(2, result["pool"])
                + field(3, result["device"])
                + field(4, f"{KIND}={cdi_name(uid, result)}")
                # Kubernetes 1.34 skips it; from 1.35 on the kubelet keeps and reports it.
                + (field(5, result["shareID"]) if "shareID" in result else b""),
            )
            for result in results
        )

    def _unprepare(self, _namespace: str, uid: str, _name: str) -> bytes:
        """What was never prepared is a success, too."""
        (self.node.path(CDI) / f"{DRIVER}-{uid}.json").unlink(missing_ok=True)
        return b""

    # ------------------------------------------------------------ the API server

    def _slices(self) -> list[Object]:
        slices = self.client.list(f"{API}/resourceslices")
        return [
            one
            for one in slices
            if (one["spec"]["driver"], one["spec"].get("nodeName")) == (DRIVER, self.node.name)
        ]

    def _publish(self) -> None:
        for old in self._slices():
            with suppress(Refused):  # a kubelet that starts deletes them as well
                self.client.raw("DELETE", f"{API}/resourceslices/{old['metadata']['name']}")
        node = self.node.object()["metadata"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": f"{self.node.name}-{DRIVER}-{self._generation}",
                "ownerReferences": [owner],
            },
            "spec": {
                "driver": DRIVER,
                "nodeName": self.node.name,
                "pool": {
                    "name": self.node.name,
                    "generation": self._generation,
                    "resourceSliceCount": 1,
                },
                "devices": list(self._devices()),
            },
        }
        self.client.raw("POST", f"{API}/resourceslices", body)

    def _devices(self) -> Iterable[Object]:
        memory = f"{MEMORY_GIB}Gi"
        policy = {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}}
        for minor, uuid in enumerate(self.uuids):
            yield {
                "name": f"gpu-{minor}",
                "allowMultipleAllocations": True,
                "attributes": {
                    "type": {"string": "gpu"},
                    "uuid": {"string": uuid},
                    "productName": {"string": "NVIDIA A100-SXM4-40GB"},
                },
                "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
            } | ({"taints": [self._taints[minor]]} if minor in self._taints else {})


def cdi_name(uid: str, result: Object) -> str:
    """The CDI device of a result; two shares of a device in one ResourceClaim have two."""
    share = result.get("shareID")
    return f"{uid}-{result['device']}" + (f"-{share}" if share else "")
