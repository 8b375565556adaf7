"""The kubelet's state of dynamic resource allocation, as the kubelet writes it."""

import json
import zlib


def dra_state(*resource_claims, version="v1"):
    """The file's bytes; each is (UID, namespace, name, pod UIDs, {driver: devices}).

    A device is (pool, name, requests) or (pool, name, requests, share ID), which Kubernetes 1.34
    does not write yet. The order of the keys is that of the kubelet's structs.
    """
    entries = [
        {
            "ClaimUID": uid,
            "ClaimName": name,
            "Namespace": namespace,
            "PodUIDs": {pod: {} for pod in sorted(pods)},
            "DriverState": {
                driver: {"Devices": [_device(*device) for device in devices]}
                for driver, devices in sorted(drivers.items())
            },
        }
        for uid, namespace, name, pods, drivers in resource_claims
    ]
    data = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": f"checkpoint.dra.kubelet.k8s.io/{version}",
            "ClaimInfoStateList": entries or None,
        },
        separators=(",", ":"),
    )
    checkpoint = {"Data": data, "Checksum": zlib.crc32(data.encode())}
    return json.dumps(checkpoint, separators=(",", ":")).encode()


def _device(pool, name, requests, share_id=None):
    shared = {} if share_id is None else {"ShareID": share_id}
    cdi = [f"k8s.example/gpu={name}"]
    names = {"PoolName": pool, "DeviceName": name}
    return names | shared | {"RequestNames": requests, "CDIDeviceIDs": cdi}


def driver_checkpoint(*resource_claims, state="PrepareCompleted"):
    """The checkpoint of NVIDIA's DRA driver, second version, without the other versions.

    Each ResourceClaim is (UID, namespace, name, results of its status, {device name: UUID}). Fields
    as in kubernetes-sigs/dra-driver-nvidia-gpu, ``cmd/gpu-kubelet-plugin`` (checkpoint*.go,
    prepared.go): those of Go's structs without a JSON name begin with a capital.
    """
    prepared = {
        uid: {
            "checkpointState": state,
            "status": {"allocation": {"devices": {"results": results}}},
            "preparedDevices": [
                {
                    "devices": [
                        {
                            "gpu": {
                                "info": {"uuid": uuid},
                                "device": {"Requests": ["gpu"], "DeviceName": device},
                            },
                            "mig": None,
                        }
                        for device, uuid in uuids.items()
                    ],
                    "configState": {},
                }
            ],
            "name": name,
            "namespace": namespace,
        }
        for uid, namespace, name, results, uuids in resource_claims
    }
    return json.dumps({"checksum": 1, "v2": {"checksum": 2, "preparedClaims": prepared}}).encode()


# ---------------------------------------------------------------- objects of the API server

VERSION = "resource.k8s.io/v1"


def result(device="gpu-0", *, driver="gpu.nvidia.com", pool="gpu-1", request="gpu", **more):
    """A result of an allocation; ``consumed`` is its memory, with a share ID."""
    consumed = more.pop("consumed", None)
    if consumed is not None:
        more |= {"consumedCapacity": {"memory": consumed}}
        more.setdefault("shareID", f"share-of-{consumed}")
    return {"request": request, "driver": driver, "pool": pool, "device": device} | more


def resource_claim_json(name, *results, pods=(), node="gpu-1", namespace="ml", version=VERSION):
    """A ResourceClaim as kube-scheduler leaves it; ``pods`` are (name, UID) of its users."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {"results": list(results)},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    users = [{"resource": "pods", "name": pod, "uid": uid} for pod, uid in pods]
    return {
        "kind": "ResourceClaim",
        "apiVersion": version,
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": ({"allocation": allocation} if results else {}) | {"reservedFor": users},
    }


def published(name, uuid, memory="10Gi", **more):
    """A device of a ResourceSlice; the names without a domain are the driver's."""
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": uuid}, "index": {"int": 0}}
    return {
        "name": name,
        "attributes": attributes,
        "capacity": {"memory": {"value": memory}},
    } | more


def resource_slice(
    *devices, driver="gpu.nvidia.com", pool="gpu-1", node="gpu-1", generation=1, of=1, part=0
):
    """One of ``of`` ResourceSlices of a pool."""
    return {
        "kind": "ResourceSlice",
        "apiVersion": VERSION,
        "metadata": {"name": f"{pool}-{driver}-{generation}-{part}", "uid": f"{pool}-{part}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": of},
            "devices": list(devices),
        },
    }
