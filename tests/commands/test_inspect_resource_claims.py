"""`vgpu inspect` on a cluster that uses dynamic resource allocation (DRA)."""

import json
from functools import partial

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.answering_server import answer, serving, status
from tests.support.dra import published, resource_claim_json, resource_slice, result
from vgpucli.inspect.read import from_cluster
from vgpucli.main import main

UUID = sample.uuid(7)


def pod(name, **options):
    made = sample.pod(name, "gpu-1", **options)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "train"}]
    return made


def users(*names):
    return [(name, sample.pod(name)["metadata"]["uid"]) for name in names]


OTHER = partial(result, driver="fpga.example", pool="rack")
ITEMS = (
    sample.node("gpu-1"),
    pod("left"),
    pod("right"),
    pod("watcher"),
    resource_claim_json("train", result(consumed="4Gi"), pods=users("left", "right")),
    resource_claim_json("eyes", result(adminAccess=True), pods=users("watcher")),
    resource_claim_json("odd", OTHER("fpga-3"), pods=users("watcher")),
    resource_slice(published("gpu-0", UUID)),
)


def run(*args):
    outcome = CliRunner().invoke(main, ["inspect", *args], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_the_table_has_the_pods_of_a_resource_claim_and_counts_it_once(source):
    lines = run(*source).splitlines()
    (head,) = (line for line in lines if line.startswith("gpu-1"))
    assert head.split() == ["gpu-1", "dra", "·", "1", "GPU", "·", "6.0", "GiB", "free"]
    (gpu,) = (line for line in lines if line.startswith("  GPU-00000007"))
    assert "4.0/10.0 GiB" in gpu
    assert [line.split()[:2] for line in lines if line.startswith("    ml/")] == [
        ["ml/left", "4.0"],
        ["ml/right", "4.0"],
        ["ml/watcher", "–"],
    ]
    assert lines.count("      ResourceClaim train") == 2
    assert "      ResourceClaim odd (fpga.example/rack/fpga-3)" in lines


def test_the_document_names_the_resource_claims(source):
    (node,) = json.loads(run(*source, "-o", "json"))["nodes"]
    (device,) = node["devices"]
    assert (device["memoryHeldBytes"], device["sharesHeld"]) == (4 * 1024**3, 1)
    (resource_claim,) = device["holdings"][0]["resourceClaims"]
    assert resource_claim == {
        "name": "train",
        "uid": "uid-train",
        "requests": ["gpu"],
        "driver": "gpu.nvidia.com",
        "pool": "gpu-1",
        "device": "gpu-0",
        "shareId": "share-of-4Gi",
        "memoryBytes": 4 * 1024**3,
        "coresMilli": None,
    }
    (other,) = node["unplaced"]
    assert (other["pod"]["name"], other["resourceClaims"][0]["driver"]) == (
        "watcher",
        "fpga.example",
    )


def test_one_node_has_its_own_resource_claims_only(cluster):
    lines = run(*cluster, "gpu-1").splitlines()
    assert any(line.startswith("    ml/left") for line in lines)


def listed(*items):
    return answer({"metadata": {"resourceVersion": "1"}, "items": list(items)})


NOT_FOUND = status(404, "NotFound")
FORBIDDEN = status(403, "Forbidden", "no right")
NODES, PODS = listed(sample.node("gpu-1")), listed(pod("left"))


@pytest.mark.parametrize(
    ("answers", "notes"),
    [
        ((NODES, *[NOT_FOUND] * 3, PODS, NOT_FOUND), ()),
        ((NODES, FORBIDDEN, PODS, NOT_FOUND), ("ResourceClaims could not be read: no right",)),
        (
            (NODES, listed(ITEMS[4]), FORBIDDEN, PODS, NOT_FOUND),
            ("ResourceSlices could not be read: no right",),
        ),
    ],
    ids=["not served", "no right to ResourceClaims", "no right to ResourceSlices"],
)
def test_a_cluster_that_does_not_show_them_is_read_all_the_same(answers, notes):
    with serving(*answers) as (cluster, server):
        read = from_cluster(cluster, "")
        assert server.answers == []
    assert read.notes == notes
    assert not read.objects.resource_claims.slices


def test_what_a_resource_claim_supplies_is_no_request_to_a_device_plugin(tmp_path):
    """With DRAExtendedResource a pod requests nvidia.com/gpu, and a ResourceClaim supplies it."""
    name = "left-extended-resources-7kx2p"
    supplied = sample.pod("left", "gpu-1", limits={"nvidia.com/gpu": "1"})
    mapping = {
        "containerName": supplied["spec"]["containers"][0]["name"],
        "resourceName": "nvidia.com/gpu",
        "requestName": "container-0-request-0",
    }
    supplied["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": name,
        "requestMappings": [mapping],
    }
    resource_claim = resource_claim_json(name, result(), pods=users("left"))
    plain = sample.pod("right", "gpu-1", limits={"nvidia.com/gpu": "1"})
    dump = tmp_path / "dump.json"
    items = [sample.node("gpu-1"), supplied, plain, resource_claim, ITEMS[-1]]
    dump.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    document = json.loads(run("--from", str(dump), "-o", "json"))
    (node,) = document["nodes"]
    (device,) = node["devices"]
    (holding,) = device["holdings"]
    assert (device["uuid"], holding["pod"]["name"], holding["container"]) == (UUID, "left", "main")
    (of_plugin,) = document["nvidia"]
    assert [holder["pod"]["name"] for holder in of_plugin["holders"]] == ["right"]
