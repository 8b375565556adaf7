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
