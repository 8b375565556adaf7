"""What people see of our extender behind a real kube-scheduler, and what wakes a waiting pod."""

import time

import pytest

from tests.cluster.extending import Extender, bound, condition_message, kube_scheduler, request
from tests.cluster.placing import check, explain_path
from tests.cluster.scheduler_bed import LOST_REQUEST, bed, placing
from tests.support.bed import objects
from tests.support.waiting import WAIT_SECONDS, wait_until
from tests.support.web_helpers import Pki, fetch
from vgpu.program.written_keys import RETRY

__all__ = ["bed", "placing"]

FLUSH_SECONDS = 300.0
"""Time after which kube-scheduler tries a rejected pod again without any event, in seconds."""


def test_a_gpu_that_is_healthy_again_wakes_the_pod_that_waits_for_it(bed, figure):
    """I8, S5: kube-scheduler sees no event of the ConfigMap, and tries the pod for its annotation.

    No try without the annotation finds a node. By itself kube-scheduler tries a rejected pod again
    after five minutes, which is longer than anything here waits.
    """
    bed.node("gpushare", "gpushare-h")
    sick = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "unhealthy-gpu-gpushare-h", "namespace": "kube-system"},
        "data": {"gpus": "0,1"},
    }
    config = bed.client.create(sick)
    try:
        waiting = bed.start("waits", bed.namespace, "gpushare", 1)
        bed.wait_refused(waiting, "the GPUs are unhealthy")
        # The condition with the reason is an event of the pod, for which it is tried again at once.
        wait_until(lambda: len(tries_of(bed, waiting)) > 1, "the pod was tried twice")
        started = time.monotonic()
        bed.client.patch(config, {"data": {"gpus": "0"}})
        pod = bed.client.wait_for(waiting, bound, "is bound")
        figure(f"bound {time.monotonic() - started:.2f} s after its GPU was healthy again")
        assert pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"
        assert RETRY in pod["metadata"]["annotations"]
        for annotations, nodes in tries_of(bed, pod):
            assert RETRY in annotations or not nodes
        assert 2 * WAIT_SECONDS < FLUSH_SECONDS
    finally:
        bed.client.delete(config)


def tries_of(bed, pod):
    """The pod's annotations at each try of kube-scheduler, and the nodes that took the pod."""
    return [
        (sent["metadata"].get("annotations", {}), answer["NodeNames"])
        for sent, answer in ((each.body["Pod"], each.answer) for each in bed.proxy.of("/filter"))
        if sent["metadata"]["uid"] == pod["metadata"]["uid"]
    ]


def test_a_pending_pod_has_its_reason_in_an_event_and_on_a_page(bed):
    """I10: counts by cause, the amount that is missing, and every GPU with what is free of it."""
    bed.node("gpushare", "gpushare-w")
    bed.node("gpushare", "gpushare-x")
    for number in range(4):
        bed.start(f"full{number}", bed.namespace, "gpushare", 3)
    bed.wait_bound(bed.namespace, 4)
    waiting = bed.start("waits", bed.namespace, "gpushare", 2)
    bed.wait_refused(waiting, "0/2 nodes are available: 2 no GPU has enough free memory.")
    cause = (
        "2 nodes: no GPU has enough free memory (8.0 GiB requested,"
        " the largest free amount is 4.0 GiB)"
    )
    events = wait_until(
        lambda: [
            event for event in bed.client.events(waiting) if event["reason"] == "VgpuNotPlaced"
        ],
        "the event is there",
    )
    assert [(event["message"], event["type"]) for event in events] == [(cause, "Warning")]
    status, page = bed.extender.get(f"/explain/{bed.namespace}/waits")
    lines = page.decode().splitlines()
    assert status == 200
    assert lines[0] == (f"pod {bed.namespace}/waits (gpushare) requests main: 1 GPU with 8.0 GiB")
    assert lines[2:5] == [
        "now 0 of 2 nodes with GPUs take it",
        cause,
        "node gpushare-w: no GPU has enough free memory",
    ]
    assert lines[5] == (
        "  GPU 0: 4.0 GiB of 16.0 GiB free, 1 share, average size: no GPU has enough free memory"
    )
    assert bed.extender.get("/explain/nowhere/waits")[0] == 404


def test_the_inspect_page_is_gpushares_byte_for_byte(bed):
    bed.node("gpushare", "gpushare-v")
    bed.start("p", bed.namespace, "gpushare", 2)
    bed.wait_bound(bed.namespace, 1)
    node = (
        '{"name":"gpushare-v","totalGPU":32,"usedGPU":8,"devs":['
        '{"id":0,"totalGPU":16,"usedGPU":8,"pods":['
        f'{{"name":"p","namespace":"{bed.namespace}","usedGPU":8}}]}},'
        '{"id":1,"totalGPU":16,"usedGPU":0,"pods":[]}]}'
    )
    expected = f'{{"nodes":[{node}]}}'.encode()
    path = "/gpushare-scheduler/inspect"
    wait_until(lambda: bed.extender.get(path) == (200, expected), "the page has the pod")
    assert bed.extender.get(f"{path}/gpushare-v") == (200, expected)
    unknown = b'{"nodes":[],"error":"node \\"gone\\" not found"}'
    assert bed.extender.get(f"{path}/gone") == (200, unknown)
    assert bed.extender.get("/version") == (200, b"0.1.0")


def test_an_extender_that_is_down_keeps_no_other_pod_from_its_node(bed):
    """I11."""
    bed.node("gpushare", "gpushare-d")
    bed.proxy.fault = lambda *_: LOST_REQUEST
    plain = bed.client.create(objects.pod("plain", bed.namespace, schedulerName=bed.name))
    bed.client.wait_for(plain, bound, "is bound")
    ours = bed.start("ours", bed.namespace, "gpushare", 1)
    bed.client.wait_for(ours, condition_message, "is not scheduled")
    assert not bound(bed.client.get(ours))


def test_client_certificates_are_required_of_kube_scheduler_and_not_of_the_probes(bed, tmp_path):
    pki = Pki(tmp_path, "vgpu")
    client, client_key = pki.issue("client")
    config = pki.requiring_clients("extender")
    bed.node("gpushare", "gpushare-c")
    with Extender(bed.api, tmp_path, f"--web.config.file={config}", is_locked=True) as extender:
        address = f"127.0.0.1:{extender.port}"
        for path in ("/filter", "/bind", "/metrics", "/"):
            assert request(extender.probe_port, path, b"{}" if "i" in path else None)[0] == 404
        with pytest.raises(OSError, match=r"(?i)reset|alert|closed|eof"):
            fetch(address, "/-/ready", tls=pki.client())
        assert fetch(address, "/-/ready", tls=pki.client((client, client_key)))[0] == 200
        with kube_scheduler(
            bed.api,
            tmp_path,
            "locked",
            extender.port,
            urlPrefix=f"https://{address}",
            enableHTTPS=True,
            tlsConfig={
                "caFile": str(pki.ca),
                "certFile": str(client),
                "keyFile": str(client_key),
            },
        ):
            bed.start("through", bed.namespace, "gpushare", 4, schedulerName="locked")
            check(bed, bed.wait_bound(bed.namespace, 1))


def test_the_gauges_of_the_original_schedulers_have_what_is_bound(bed):
    bed.node("hami", "hami-g")
    bed.node("volcano", "volcano-g")
    for system in ("hami", "volcano"):
        bed.start(system, bed.namespace, system, 3)
    bed.wait_bound(bed.namespace, 2)
    gpu = 'device_type="NVIDIA-Tesla T4",zone="vGPU",device_cores="100"} 12884901888'
    wanted = (
        f'hami_vgpu_memory_allocated_bytes{{namespace="{bed.namespace}",node="hami-g",pod="hami"',
        gpu,
        'podName="volcano"} 12288',
    )

    def missing():
        page = bed.extender.get("/metrics")[1].decode()
        return [text for text in wanted if text not in page]

    wait_until(lambda: not missing(), "the gauges have both pods", context=missing)


# ---------------------------------------------------------------- quotas


def test_a_namespace_is_filled_to_its_quota_and_the_next_pod_comes_as_soon_as_there_is_room(bed):
    """A raised quota makes room, and so does a pod's end; kube-scheduler only hears of the end."""
    bed.node("gpushare", "gpushare-quota")
    path = f"/api/v1/namespaces/{bed.namespace}"
    annotate(bed, path, "8Gi")
    for number in range(4):
        bed.start(f"q{number}", bed.namespace, "gpushare", 1)
    pods = bed.wait_bound(bed.namespace, 2)
    (first, *_), waiting = pods_by_binding(pods)
    for pod in waiting:
        bed.wait_refused(pod, "would exceed a GPU quota of its namespace")
    page = bed.extender.get(explain_path(waiting[0]))[1].decode()
    assert f"memory: 8.0 GiB of 8.0 GiB (Namespace {bed.namespace}, vgpu.dev/quota-memory)" in page
    metrics = bed.extender.get("/metrics")[1].decode()
    assert f'vgpu_extender_quota_used{{namespace="{bed.namespace}",resource="memory"' in metrics
    annotate(bed, path, "12Gi")
    pods = bed.wait_bound(bed.namespace, 3)
    _, waiting = pods_by_binding(pods)
    assert len(waiting) == 1, "no more than the quota"
    bed.client.delete(first, grace_seconds=0)
    pods = bed.wait_bound(bed.namespace, 3)
    check(bed, pods)


def annotate(bed, path, memory):
    """Declare the quota of the namespace."""
    bed.client.patch(path, {"metadata": {"annotations": {"vgpu.dev/quota-memory": memory}}})


def pods_by_binding(pods):
    """The bound pods, and the others."""
    return [pod for pod in pods if bound(pod)], [pod for pod in pods if not bound(pod)]
