"""Systems whose pods name no known resource keep their numbers, whoever requests nothing beside.

The numbers are those of the versions that counted every annotation.
"""

import json

import pytest
from click.testing import CliRunner

from tests.scheduler.served import Served
from tests.support import sample_cluster as sample
from tests.support.dra import published, resource_claim_json, resource_slice, result
from tests.support.registers import hami_register
from tests.support.sample_cluster import NOW
from vgpu.kube.dump import decode_dump
from vgpu.model.objects import Namespace
from vgpucli.main import main

A, B = sample.uuid(1), sample.uuid(2)
DEVICES = "hami.io/vgpu-devices-allocated"
NAMED = "nvidia.com/vgpu"
"""What an operator of HAMi calls its resource here."""


def hami_pod(name, limits, devices):
    annotations = {DEVICES: devices, "hami.io/vgpu-node": "hami-1", "hami.io/bind-phase": "success"}
    return sample.pod(name, "hami-1", limits, annotations)


RENAMED = (
    sample.node("hami-1", {NAMED: 20}, hami_register(A, B, mib=16384, model="Tesla T4")),
    hami_pod("one", {NAMED: 1, "nvidia.com/gpumem": 4096}, f"{A},NVIDIA,4096,30:;"),
    hami_pod("two", {NAMED: 2}, f"{A},NVIDIA,2048,10:{B},NVIDIA,2048,10:;"),
)
SHARED = sample.share_pod("jupyter-0", "kube-1", "0.4", 4 << 30, gpu=31)
KUBESHARE = (sample.kubeshare_node("kube-1", 31), SHARED, sample.real_pod(SHARED))


def claiming(name):
    made = sample.pod(name, "gpu-1")
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "train"}]
    return made


USER = claiming("train")
DRA = (
    sample.node("gpu-1"),
    USER,
    resource_claim_json("train", result(consumed="4Gi"), pods=[("train", USER["metadata"]["uid"])]),
    resource_slice(published("gpu-0", sample.uuid(7))),
)


def forged(node):
    """Pods that request nothing of a sharing system, or names that no plugin advertises."""
    texts = ("x", f"{A},NVIDIA,16384,100:{B},NVIDIA,16384,100:;")
    asked = ({"rdma/hca": 1}, {"cpu": 1})
    return [
        sample.pod(f"forged-{number}", node, limits, {DEVICES: text})
        for number, (limits, text) in enumerate(
            (limits, text) for limits in asked for text in texts
        )
    ] + [sample.pod("gpumem-alone", node, {"nvidia.com/gpumem": 4096})]


@pytest.fixture
def run(tmp_path):
    def asked(command, items, *words):
        path = tmp_path / "dump.json"
        path.write_text(json.dumps(sample.dump(list(items))))
        outcome = CliRunner().invoke(main, (command, *words, "--from", str(path), "-o", "json"))
        assert outcome.exit_code == 0, outcome.output
        return json.loads(outcome.stdout)

    return asked


@pytest.mark.parametrize("also", [False, True], ids=["alone", "beside forged annotations"])
@pytest.mark.parametrize(
    ("items", "devices", "groups"),
    [
        (RENAMED, [(6144, 10240, 400, 2), (2048, 14336, 100, 1)], (3, 8192, 500)),
        (KUBESHARE, [(4096, 12064, 400, 1)], (1, 4096, 400)),
        (DRA, [(4096, 6144, 0, 1)], None),
    ],
    ids=["renamed HAMi", "KubeShare", "DRA"],
)
def test_inspect_has_the_same_numbers(items, devices, groups, also, run):
    node = items[0]["metadata"]["name"]
    shown = [*items, *(forged(node) if also else ())]
    (view,) = run("inspect", shown)["nodes"]
    assert [
        (
            each["memoryHeldBytes"] >> 20,
            each["memoryFreeBytes"] >> 20,
            each["coresHeldMilli"],
            each["sharesHeld"],
        )
        for each in view["devices"]
    ] == devices
    assert view["unplaced"] == []
    if groups is not None:
        (group,) = run("inspect", shown, "--by", "namespace")["groups"]
        sums = [group["assumed"], group["assigned"]]
        assert groups == (
            sum(each["gpus"] for each in sums),
            sum(each["memoryBytes"] for each in sums) >> 20,
            sum(each["coresMilli"] for each in sums),
        )


@pytest.mark.parametrize("also", [False, True], ids=["alone", "beside forged annotations"])
def test_the_scheduler_and_fit_have_the_same_numbers_of_a_renamed_hami(also, run):
    items = [*RENAMED, *(forged("hami-1") if also else ())]
    read = decode_dump(json.dumps(sample.dump(items)).encode())
    limited = Namespace("ml", annotations={"vgpu.dev/quota-memory": "1Ti"})
    wanted = sample.pod("new", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 5120})
    (pod,) = decode_dump(json.dumps(sample.dump([wanted])).encode()).pods
    with Served(clock=lambda: NOW) as served:
        served.cache.set_namespace("ml", limited)
        served.cache.set_node("hami-1", read.nodes[0])
        for each in read.pods:
            served.show(each.ref.name, each)
        view = served.cache.view("hami-1")
        assert view.reason is None
        assert [(gpu.memory_bytes >> 20, gpu.cores_milli) for gpu in view.candidate.gpus] == [
            (6144, 400),
            (2048, 100),
        ]
        assert served.filter(pod, ["hami-1"]) == (["hami-1"], {})
        assert served.scores(pod, ["hami-1"]) == {"hami-1": 10}
        (quota,) = served.cache.limited()
        assert quota.used["Tesla T4"]["memory"] >> 20 == 8192
    request = ("--request", f"{NAMED}=1", "--request", "nvidia.com/gpumem=5120")
    document = run("fit", items, *request)
    assert document["pods"] == 4
