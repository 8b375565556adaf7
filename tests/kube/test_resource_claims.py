"""ResourceClaims and ResourceSlices of the API server, in each of its versions."""

import json

import pytest

from tests.support.answering_server import answer, serving, status
from tests.support.dra import published, resource_claim_json, resource_slice, result
from vgpu.apiserver.list_watch import ListWatch
from vgpu.kube.documents import Keep
from vgpu.kube.dra_objects import PublishedDevices
from vgpu.kube.dump import decode_dump
from vgpu.kube.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from vgpu.model.names import PodRef
from vgpu.model.objects import UsedClaim
from vgpu.model.resource_claims import AllocatedDevice, PublishedDevice
from vgpu.model.units import GIB

UUID = "GPU-00000001-0000-4000-8000-000000000001"
NOT_FOUND = status(404, "NotFound")


def decoded_resource_claim(item):
    return RESOURCE_CLAIMS.one(json.dumps(item).encode())


def of_slices(*slices):
    return PublishedDevices(RESOURCE_SLICES.one(json.dumps(item).encode()) for item in slices)


def test_a_resource_claim_has_its_results_its_pods_and_its_node():
    resource_claim = decoded_resource_claim(
        resource_claim_json(
            "train", result(consumed="4Gi"), result("gpu-1"), pods=[("a", "u1"), ("b", "u2")]
        )
    )
    assert resource_claim.results == (
        AllocatedDevice("gpu", "gpu.nvidia.com", "gpu-1", "gpu-0", "share-of-4Gi", 4 * GIB),
        AllocatedDevice("gpu", "gpu.nvidia.com", "gpu-1", "gpu-1", cores_milli=1000),
    )
    assert resource_claim.reserved_for == (PodRef("u1", "ml", "a"), PodRef("u2", "ml", "b"))
    assert (resource_claim.uid, resource_claim.node, resource_claim.reserved_otherwise) == (
        "uid-train",
        "gpu-1",
        False,
    )


SELECTORS = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'mig'"}}]
OF_CLASS = {"deviceClassName": "gpu.nvidia.com"}
SELECTED = {"deviceClassName": "mig.nvidia.com", "selectors": SELECTORS}


@pytest.mark.parametrize(
    ("requests", "classes", "has_selectors"),
    [
        ([], (), False),
        ([{"name": "gpu", "exactly": OF_CLASS}], ("gpu.nvidia.com",), False),
        ([{"name": "gpu", "exactly": SELECTED}], ("mig.nvidia.com",), True),
        ([{"name": "gpu", **SELECTED}], ("mig.nvidia.com",), True),  # v1beta1
        (
            [{"name": "gpu", "firstAvailable": [OF_CLASS, SELECTED]}],
            ("gpu.nvidia.com", "mig.nvidia.com"),
            True,
        ),
    ],
)
def test_a_resource_claim_names_what_it_selects_devices_by(requests, classes, has_selectors):
    item = resource_claim_json("train")
    item["spec"] = {"devices": {"requests": requests}}
    resource_claim = decoded_resource_claim(item)
    assert resource_claim.device_classes == classes
    assert resource_claim.has_selectors is has_selectors


@pytest.mark.parametrize(
    ("driver", "consumed", "memory", "cores"),
    [
        ("gpu.nvidia.com", {"memory": "4Gi"}, 4 * GIB, None),
        ("gpu.nvidia.com", {"shares": "1"}, None, None),  # --consumable-shares=<N>
        ("gpu.nvidia.com", {"memory": "0"}, 0, None),  # --consumable-shares=unlimited
        ("hami-core-gpu.project-hami.io", {"memory": "4Gi", "cores": "30"}, 4 * GIB, 300),
        ("gpu.example.com", {"memory": "1Gi", "compute": "25"}, GIB, 250),
        ("other.example.com", {"memory": "1Gi", "cores": "25", "compute": "25"}, GIB, None),
    ],
)
def test_each_driver_has_its_own_names_of_capacities(driver, consumed, memory, cores):
    share = result(driver=driver, consumedCapacity=consumed, shareID="s1")
    (found,) = decoded_resource_claim(resource_claim_json("c", share)).results
    assert (found.share_id, found.memory_bytes, found.cores_milli) == ("s1", memory, cores)


def test_only_pods_of_the_core_group_are_pods():
    item = resource_claim_json("c", result(), pods=[("a", "u1")])
    item["status"]["reservedFor"].append({"apiGroup": "x.example", "resource": "pods", "uid": "u"})
    resource_claim = decoded_resource_claim(item)
    assert resource_claim.reserved_for == (PodRef("u1", "ml", "a"),)
    assert resource_claim.reserved_otherwise


@pytest.mark.parametrize("change", ["two names", "labels", "nothing"])
def test_an_allocation_of_no_single_node_has_none(change):
    item = resource_claim_json("c", result())
    selector = item["status"]["allocation"]["nodeSelector"]
    match change:
        case "two names":
            selector["nodeSelectorTerms"][0]["matchFields"][0]["values"] = ["a", "b"]
        case "labels":
            selector["nodeSelectorTerms"] = [{"matchExpressions": [{"key": "zone"}]}]
        case "nothing":
            del item["status"]["allocation"]["nodeSelector"]
    assert decoded_resource_claim(item).node == ""


def test_a_complete_pool_has_its_devices():
    mig = published("mig", "MIG-1", "5Gi")
    texts = {"parentUUID": UUID, "gpu.nvidia.com/productName": "H100"}
    mig["attributes"] |= {name: {"string": text} for name, text in texts.items()}
    devices = of_slices(
        resource_slice(published("gpu-0", UUID), of=2), resource_slice(mig, of=2, part=1)
    )
    assert devices.devices == {
        ("gpu.nvidia.com", "gpu-1", "gpu-0"): PublishedDevice("gpu-0", UUID, 10 * GIB),
        ("gpu.nvidia.com", "gpu-1", "mig"): PublishedDevice("mig", "MIG-1", 5 * GIB, "H100", UUID),
    }
    assert set(devices.nodes.values()) == {"gpu-1"}


def test_the_first_version_of_the_api_has_devices_one_level_deeper():
    device = published("gpu-0", UUID)
    details = {key: device.pop(key) for key in ("attributes", "capacity")}
    devices = of_slices(resource_slice(device | {"basic": details}))
    assert devices.devices["gpu.nvidia.com", "gpu-1", "gpu-0"].uuid == UUID


def test_an_incomplete_pool_has_none_and_old_generations_do_not_count():
    old = resource_slice(published("gpu-0", UUID), generation=1, of=1)
    new = resource_slice(published("gpu-0", "GPU-2"), generation=2, of=2)
    assert of_slices(old).devices
    halfway = of_slices(old, new)
    assert not halfway.devices
    assert halfway.incomplete == {("gpu.nvidia.com", "gpu-1")}
    rest = resource_slice(published("gpu-1", "GPU-3"), generation=2, of=2, part=1)
    assert {device.uuid for device in of_slices(old, new, rest).devices.values()} == {
        "GPU-2",
        "GPU-3",
    }


def test_fields_of_other_feature_gates_change_no_device():
    """DRAPartitionableDevices and DRADeviceTaints; from 1.35 on counters have a ResourceSlice."""
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    used = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "10Gi"}}}]
    taint = {"key": "broken", "effect": "NoSchedule", "timeAdded": None}
    device = published("gpu-0-mig-1g", "MIG-1", consumesCounters=used, taints=[taint])
    together = resource_slice(device)
    together["spec"]["sharedCounters"] = counters
    apart = resource_slice(of=2, part=1)
    apart["spec"] |= {"sharedCounters": counters, "devices": None}
    assert of_slices(resource_slice(device, of=2)).incomplete
    for slices in ([together], [resource_slice(device, of=2), apart]):
        (found,) = of_slices(*slices).devices.values()
        assert (found.uuid, found.memory_bytes) == ("MIG-1", 10 * GIB)


def page(*items):
    return answer({"metadata": {"resourceVersion": "5"}, "items": list(items)})


def test_a_server_is_asked_for_the_newest_version_that_it_has():
    old = resource_claim_json("c", result(), version="resource.k8s.io/v1beta2")
    with serving(NOT_FOUND, page(old), NOT_FOUND, page(old)) as (cluster, server):
        (listed,) = cluster.optional_pages(RESOURCE_CLAIMS)
        watched = ListWatch(cluster, RESOURCE_CLAIMS)
        assert watched.list() == (list(listed.objects), "5")
        line = json.dumps({"type": "ADDED", "object": old}).encode() + b"\n"
        server.answers.append(answer(line, Content_Length=None, Connection="close"))
        (event,) = watched.watch("5")
        assert event.object == listed.objects[0]
    paths = [path.split("/")[3] for _, path, _, _ in server.requests]
    assert paths == ["v1", "v1beta2", "v1", "v1beta2", "v1beta2"]


def test_a_server_without_the_kind_has_none_and_is_no_error():
    with serving(*[NOT_FOUND] * 6) as (cluster, _):
        assert cluster.optional_pages(RESOURCE_SLICES) == ()
        assert ListWatch(cluster, RESOURCE_SLICES).list() == ([], "")


def pod(name, **spec):
    meta = {"name": name, "namespace": "ml", "uid": f"uid-{name}"}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec}


def test_pods_with_resource_claims_are_kept_where_they_are_wanted():
    resource_claim_pod = pod(
        "claiming", resourceClaims=[{"name": "gpu", "resourceClaimName": "train"}]
    )
    supplied = pod("supplied")  # its ResourceClaim is in no spec
    supplied["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "supplied-7kx2p"}}
    items = [resource_claim_pod, supplied, pod("plain")]
    content = json.dumps({"metadata": {}, "items": items}).encode()
    assert PODS.page(content).objects == ()
    kept = PODS.page(content, keep=Keep.RESOURCE_CLAIMS).objects
    assert [each.ref.name for each in kept] == ["claiming", "supplied"]
    assert all(each.uses_resource_claims for each in kept)


def test_the_resource_claims_of_a_pod_have_their_names_and_templates():
    one = pod(
        "claiming",
        resourceClaims=[
            {"name": "own", "resourceClaimTemplateName": "gpu"},
            {"name": "shared", "resourceClaimName": "train"},
            {"name": "unmade", "resourceClaimTemplateName": "mig"},
        ],
    )
    one["status"] = {
        "resourceClaimStatuses": [
            {"name": "own", "resourceClaimName": "claiming-own-x"},
            {"name": "unmade", "resourceClaimName": None},
        ],
        "extendedResourceClaimStatus": {"resourceClaimName": "claiming-extended"},
    }
    assert PODS.one(json.dumps(one).encode()).used_claims == (
        UsedClaim("own", "claiming-own-x", "gpu"),
        UsedClaim("shared", "train"),
        UsedClaim("unmade", "", "mig"),
        UsedClaim("", "claiming-extended"),
    )


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_dump_has_them_in_any_version(version):
    items = [
        resource_claim_json("c", result(), version=f"resource.k8s.io/{version}"),
        resource_slice(),
    ]
    other = resource_claim_json("x", version="resource.example/v1")
    dump = decode_dump(json.dumps({"kind": "List", "items": [*items, other]}).encode())
    assert [resource_claim.name for resource_claim in dump.resource_claims] == ["c"]
    assert len(dump.resource_slices) == 1
    assert dump.others == {"ResourceClaim": 1}


def test_an_object_that_cannot_be_read_costs_itself_only():
    bad = resource_claim_json("bad")
    bad["status"]["reservedFor"] = 7
    content = json.dumps(
        {"metadata": {}, "items": [resource_claim_json("c", result()), bad]}
    ).encode()
    listed = RESOURCE_CLAIMS.page(content)
    assert [resource_claim.name for resource_claim in listed.objects] == ["c"]
    assert [broken.title for broken in listed.malformed] == ["ResourceClaim ml/bad"]
