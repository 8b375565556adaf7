"""KubeShare 1's objects as its own programs leave them, and what these make of a cluster.

Its programs have no version at the Go module proxy, so they cannot be built. What is written here
is from the sources of branch release-1.0 (``pkg/devicemanager``), and shares no code with ours.
"""

import re
from collections import defaultdict

from tests.support.bed import objects

REQUEST, LIMIT, MEMORY = (f"kubeshare/gpu_{name}" for name in ("request", "limit", "mem"))
GPUID = "kubeshare/GPUID"
LIBRARY = "/kubeshare/library"
FIRST_PORT, PORTS = 50050, 512


def holder(node, gpuid):
    """The holder pod of a virtual GPU: bound by its creator, without anything of ours."""
    pod = objects.pod(
        f"kubeshare-vgpu-{node}-{gpuid}",
        "kube-system",
        command=["sh", "-c", 'echo "$NVIDIA_VISIBLE_DEVICES"; exec sleep 1000000'],
        limits={"nvidia.com/gpu": 1},
        labels={"kubeshare/role": "dummyPod", "kubeshare/nodeName": node, GPUID: gpuid},
        nodeName=node,
        restartPolicy="Never",
    )
    pod["spec"]["containers"][0]["name"] = "sleepforever"
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    return pod


def pod_of(share_pod, uuid, address, port):
    """The pod that the device manager creates for a stored SharePod."""
    metadata = share_pod["metadata"]
    full_name = f"{metadata['namespace']}/{metadata['name']}"
    env = {
        "NVIDIA_VISIBLE_DEVICES": uuid,
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "LD_PRELOAD": f"{LIBRARY}/libgemhook.so.1",
        "POD_MANAGER_IP": address,
        "POD_MANAGER_PORT": str(port),
        "POD_NAME": full_name,
    }
    owner = {
        "apiVersion": share_pod["apiVersion"],
        "kind": share_pod["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    containers = [
        {
            **each,
            "env": [{"name": name, "value": value} for name, value in env.items()],
            "volumeMounts": [{"name": "kubeshare-lib", "mountPath": LIBRARY}],
        }
        for each in share_pod["spec"]["containers"]
    ]
    volume = {"name": "kubeshare-lib", "hostPath": {"path": LIBRARY}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "annotations": metadata["annotations"],
            "ownerReferences": [owner],
        },
        "spec": {**share_pod["spec"], "containers": containers, "volumes": [volume]},
    }


def put(client, share_pod, pod, uuid, port):
    """The device manager's write of a status: the whole object, with the fields that it knows."""
    status = {
        "PodStatus": pod["status"],
        "PodObjectMeta": pod["metadata"],
        "BoundDeviceID": uuid,
        "PodManagerPort": port,
    }
    return client.replace({**share_pod, "status": status})


def lines(share_pod):
    """What the files of its GPU have for a bound SharePod: its share, and its port."""
    metadata = share_pod["metadata"]
    name, numbers = f"{metadata['namespace']}/{metadata['name']}", metadata["annotations"]
    request, limit = float(numbers[REQUEST]), float(numbers[LIMIT])
    return (
        f"{name} {request:f} {limit:f} {int(numbers[MEMORY])}",
        f"{name} {share_pod['status']['PodManagerPort']}",
    )


def file_of(entries):
    """A file of Gemini's: the number of lines, then each."""
    return "".join(f"{line}\n" for line in (str(len(entries)), *entries))


class Restart:
    """What the device manager makes of the objects at its start; it writes nothing here.

    Attributes:
        complaints: each write that it would make, and each SharePod that it would never serve.
        files: ``(folder, UUID) -> lines`` of the files that it sends to the nodes' daemons.
    """

    def __init__(self, holders, logs, share_pods, pods, known_uuids):
        """``logs`` is by the holder's name, ``pods`` by ``(namespace, name)``, UUIDs by node."""
        self.complaints, self.files = [], defaultdict(list)
        self.pool, self.ports = {}, defaultdict(set)
        for pod in holders:
            labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
            place = labels["kubeshare/nodeName"], labels[GPUID]
            if name != f"kubeshare-vgpu-{place[0]}-{place[1]}":
                self.complaints.append(f"{name}: another name than it deletes")
            uuid = logs[name].strip(" \n\t")
            if pod["status"]["phase"] != "Running" or uuid not in known_uuids[place[0]]:
                self.complaints.append(f"{name}: waits for its UUID, has {uuid!r}")
            self.pool[place] = {"uuid": uuid, "usage": 0.0, "tenants": 0}
        for share_pod in share_pods:
            self._register(share_pod, pods)
        self.complaints += [
            f"{place}: deletes the holder pod"
            for place, gpu in self.pool.items()
            if not gpu["tenants"]
        ]

    def _register(self, share_pod, pods):
        metadata, status = share_pod["metadata"], share_pod.get("status") or {}
        name = metadata["namespace"], metadata["name"]
        place = share_pod["spec"].get("nodeName", ""), metadata["annotations"].get(GPUID, "")
        gpu = self.pool.get(place)
        if gpu is None:
            self.complaints.append(f"{name}: creates a holder pod for {place}")
            return
        gpu["usage"] += float(metadata["annotations"][REQUEST])
        gpu["tenants"] += 1
        if status.get("BoundDeviceID") != gpu["uuid"]:
            self.complaints.append(f"{name}: on {status.get('BoundDeviceID')}, not {gpu['uuid']}")
        port = status.get("PodManagerPort", 0)
        if not 0 < port - FIRST_PORT < PORTS or port in self.ports[place[0]]:
            self.complaints.append(f"{name}: port {port}")
        self.ports[place[0]].add(port)
        if gpu["usage"] > 1.0:
            self.complaints.append(f"{name}: Resource exceed!")
        pod = pods.get(name)
        if pod is None:
            self.complaints.append(f"{name}: creates its pod")
        elif metadata["uid"] not in [
            each["uid"]
            for each in pod["metadata"].get("ownerReferences") or ()
            if each.get("controller") and each["kind"] == "SharePod"
        ]:
            self.complaints.append(f"{name}: ErrResourceExists")
        share, port_line = lines(share_pod)
        self.files["config", gpu["uuid"]].append(share)
        self.files["podmanagerport", gpu["uuid"]].append(port_line)


def known_uuids(node):
    """The GPUs that the node's daemon has reported."""
    info = node["metadata"]["annotations"]["kubeshare/gpu_info"]
    return set(re.findall(r"([^:,]+):[0-9]+,", info))
