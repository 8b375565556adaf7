"""The story of Volcano's Queues, played beside its own scheduler, and what is recorded of it.

    root
    └── org     6 GPUs
        ├── team    10000 MiB
        └── other

Nobody runs pods: the story is the device plugin, whose handshake it answers, and the kubelet. The
queues' states are its own, too, since Volcano's controllers do not run.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from tests.cluster.originals import GROUP, HANDSHAKE, NAME, configuration
from tests.support.bed import objects
from tests.support.bed.client import Client, Object, Refused
from tests.support.registers import volcano_register
from tests.support.waiting import wait_until
from vgpu.kube.quantities import whole

VERSION = "scheduling.volcano.sh/v1beta1"
NODE, TEAM = "gpu-1", "ml"
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
GPUS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(4))
MIB = 16384

CONFIGURATION = configuration({"name": "capacity", "enableHierarchy": True})

PATHS = (
    "/api/v1/nodes",
    f"/api/v1/namespaces/{TEAM}/pods",
    f"/apis/{VERSION}/queues",
    f"/apis/{VERSION}/namespaces/{TEAM}/podgroups",
    f"/api/v1/namespaces/{TEAM}/events",
)
"""What is recorded."""


class Story:
    """Plays the story step by step: ``for name in Story(client).steps(): …``."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def prepare(self) -> None:
        """The node, whose GPUs the scheduler asks for when it starts."""
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": NODE,
                "annotations": {**volcano_register(*GPUS, amount=MIB), HANDSHAKE: _reported()},
            },
        }
        self.client.create(node)
        self.client.patch(node, {"spec": {"taints": None}})
        of_gpus = {NUMBER: "40", MEMORY: str(4 * MIB), PERCENTAGE: "400"}
        number = {**of_gpus, "pods": "110", "cpu": "64", "memory": "64Gi"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": number, "allocatable": number, "conditions": [ready]}
        self.client.patch(node, {"status": status}, "status")
        about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
        self.client.create(about)
        account = f"/api/v1/namespaces/{TEAM}/serviceaccounts/default"
        wait_until(lambda: self.client.find(account), "has an account")

    def steps(self) -> Iterator[str]:
        """Each step when it has been done and Volcano has taken it in; its name."""
        for step in (
            self.declare,
            self.a_pod_of_two_gpus_counts_twice_in_the_status,
            self.a_pod_is_admitted_above_what_the_status_shows,
            self.a_pod_is_refused_by_its_queue,
            self.a_percentage_counts_zero,
            self.a_pod_is_refused_by_the_queue_above,
            self.a_pod_ends_and_the_one_that_waits_is_placed,
        ):
            self._alive()
            step()
            yield step.__name__

    # ------------------------------------------------------------ steps

    def declare(self) -> None:
        """The queues, open as Volcano's controllers would have them."""
        self._queue("org", capability={NUMBER: "6"})
        self._queue("team", parent="org", capability={MEMORY: "10000"})
        self._queue("other", parent="org")
        for name in ("root", "org", "team", "other"):
            self.client.patch(_path(name), {"status": {"state": "Open"}}, "status")

    def a_pod_of_two_gpus_counts_twice_in_the_status(self) -> None:
        """Two GPUs of 5000 MiB: 10000 in the status, and 5000 for the check."""
        self._start("two", "team", {NUMBER: 2, MEMORY: 5000})
        self._until_bound("two")
        self._until_allocated("team", 2, 10000)
        self._until_allocated("org", 2, 10000)

    def a_pod_is_admitted_above_what_the_status_shows(self) -> None:
        """5000 + 4000 are within 10000, and the status then shows 14000."""
        self._start("fits", "team", {NUMBER: 1, MEMORY: 4000})
        self._until_bound("fits")
        self._until_allocated("team", 3, 14000)

    def a_pod_is_refused_by_its_queue(self) -> None:
        """5000 + 4000 + 4000 are not."""
        self._start("waits", "team", {NUMBER: 1, MEMORY: 4000})
        self._until_refused("waits", MEMORY)

    def a_percentage_counts_zero(self) -> None:
        """Half of a GPU passes the limit that refuses 4000 MiB."""
        self._start("half", "team", {NUMBER: 1, PERCENTAGE: 50})
        self._until_bound("half")
        self._until_allocated("team", 4)

    def a_pod_is_refused_by_the_queue_above(self) -> None:
        """The queue other has no limit, and org has room for two more GPUs."""
        self._start("three", "other", {NUMBER: 3, MEMORY: 100})
        self._until_refused("three", NUMBER)

    def a_pod_ends_and_the_one_that_waits_is_placed(self) -> None:
        """The pod of two GPUs goes."""
        self.client.delete(self._pod_path("two"), grace_seconds=0)
        self.client.delete(_path("two", f"namespaces/{TEAM}/podgroups"))
        self._until_bound("waits")
        self._until_allocated("team", 3)

    # ------------------------------------------------------------ what the steps use

    def record(self) -> list[Object]:
        """All objects of the story, as they are."""
        found = []
        for path in PATHS:
            listed = self.client.get(path)
            about = {
                "apiVersion": listed["apiVersion"],
                "kind": listed["kind"].removesuffix("List"),
            }
            for each in listed["items"]:
                each["metadata"].pop("managedFields", None)
                found.append({**about, **each})
        return found

    def _alive(self) -> None:
        marks = {"metadata": {"annotations": {HANDSHAKE: _reported()}}}
        self.client.patch(f"/api/v1/nodes/{NODE}", marks)

    def _queue(self, name: str, **spec: object) -> None:
        about = {"apiVersion": VERSION, "kind": "Queue", "metadata": {"name": name}}
        self.client.create({**about, "spec": {"weight": 1, "reclaimable": True, **spec}})

    def _start(self, name: str, queue: str, limits: dict[str, int]) -> None:
        quantities = {each: str(amount) for each, amount in limits.items()}
        self.client.create(
            {
                "apiVersion": VERSION,
                "kind": "PodGroup",
                "metadata": {"name": name, "namespace": TEAM},
                "spec": {"minMember": 1, "queue": queue, "minResources": quantities},
            }
        )
        container = objects.container("main", limits=quantities)
        pod = objects.pod(name, TEAM, containers=[container])
        pod["metadata"].setdefault("annotations", {})[GROUP] = name
        pod["spec"]["schedulerName"] = NAME
        self.client.create(pod)

    def _pod_path(self, name: str) -> str:
        return f"/api/v1/namespaces/{TEAM}/pods/{name}"

    def _until_bound(self, name: str) -> None:
        """Until it is bound; then the kubelet's part, which is ours."""

        def bound() -> bool:
            self._alive()
            return bool(self.client.get(self._pod_path(name))["spec"].get("nodeName"))

        wait_until(bound, f"{name} is bound", context=self._context)
        running = {"running": {"startedAt": "2026-11-28T12:00:00Z"}}
        container = {
            "name": "main",
            "image": "any",
            "imageID": "any",
            "ready": True,
            "restartCount": 0,
            "containerID": "containerd://1",
            "state": running,
        }
        status = {"phase": "Running", "containerStatuses": [container]}
        self.client.patch(self._pod_path(name), {"status": status}, "status")

    def _until_allocated(self, queue: str, number: int, memory: int | None = None) -> None:
        wanted = {NUMBER: number, **({} if memory is None else {MEMORY: memory})}

        def is_allocated() -> bool:
            self._alive()
            shown = self.client.get(_path(queue)).get("status", {}).get("allocated") or {}
            return {name: whole(str(shown.get(name, 0))) for name in wanted} == wanted

        wait_until(is_allocated, f"queue {queue} has {wanted}", context=self._context)

    def _until_refused(self, name: str, resource: str) -> None:
        """Until Volcano's event on the PodGroup names the resource."""

        def is_refused() -> bool:
            self._alive()
            events = self.client.get(f"/api/v1/namespaces/{TEAM}/events")["items"]
            return any(
                each["involvedObject"]["name"] == name
                and f"insufficient {resource}" in each.get("message", "")
                for each in events
            )

        wait_until(is_refused, f"{name} is refused", failures=(Refused,), context=self._context)

    def _context(self) -> str:
        kept = (each for each in self.record() if each["kind"] != "Node")
        return json.dumps([*kept], indent=1)[-6000:]


def _path(name: str, plural: str = "queues") -> str:
    return f"/apis/{VERSION}/{plural}/{name}"


def _reported() -> str:
    return f"Reported {datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}000 +0000 UTC"
