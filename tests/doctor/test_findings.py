"""The checks of `vgpu doctor`: what each set of objects is found to be."""

import json
import os

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support import sample_cluster as sample
from tests.support.doctor_facts import facts_of
from tests.support.installed import (
    NOW,
    gke_plugin,
    hami_plugin,
    hami_scheduler,
    heartbeat,
    nvidia_plugin,
    our_plugin,
    our_scheduler,
    ours,
    with_software,
    workload,
)
from vgpu.model.units import MIB
from vgpucli.doctor.access_review import Right
from vgpucli.doctor.answer import cluster_findings
from vgpucli.doctor.check_nodes import CdiSupport, cdi_support, version
from vgpucli.doctor.components import COMPONENTS, image_parts
from vgpucli.doctor.facts import ClusterFacts, DeniedRight
from vgpucli.doctor.model import DoctorCheck, DoctorReason, Severity, diagnosis
from vgpucli.doctor.read import from_dumps

GPU_ON = {"gpu": "on"}
BAD = (Severity.ERROR, Severity.WARNING)


def hami_node(name, **software):
    node = sample.node(
        name,
        {"nvidia.com/gpu": 10},
        {"hami.io/node-nvidia-register": "GPU-1,10,24576,100,L40S,0,true:"},
    )
    return with_software(node, **software)


def volcano_node(name, **software):
    return with_software(sample.volcano_node(name, 1), **software)


def config(place="hami-scheduler", **fields):
    text = yaml.safe_dump(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            **fields,
        }
    )
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": place, "namespace": "kube-system"},
        "data": {"config.yaml": text},
    }


def volcano_config(*plugins):
    text = yaml.safe_dump({"actions": "enqueue", "tiers": [{"plugins": list(plugins)}]})
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"},
        "data": {"volcano-scheduler.conf": text},
    }


def webhook(policy="Fail"):
    return {
        "kind": "MutatingWebhookConfiguration",
        "apiVersion": "admissionregistration.k8s.io/v1",
        "metadata": {"name": "hami-webhook"},
        "webhooks": [
            {
                "name": "vgpu.hami.io",
                "failurePolicy": policy,
                "clientConfig": {
                    "service": {"namespace": "kube-system", "name": "hami-scheduler"},
                    "caBundle": "c2VjcmV0",
                },
            }
        ],
    }


@pytest.fixture
def facts(tmp_path):
    def made(*items, units=None, **changes):
        path = tmp_path / "dump.json"
        path.write_text(json.dumps(sample.dump(list(items))))
        os.utime(path, (NOW, NOW))
        return msgspec.structs.replace(from_dumps([str(path)], units or {}), **changes)

    return made


def found(facts, *severities):
    """The reasons of the findings of these severities, without those of parts not in the dump."""
    return {
        each.reason.value
        for each in cluster_findings(facts)
        if each.severity in (severities or BAD) and each.reason is not DoctorReason.NOT_READ
    }


HAMI = (hami_node("a", labels=GPU_ON), hami_plugin(selector=GPU_ON), hami_scheduler())
PROXY = workload("DaemonSet", "kube-proxy", ("p", "registry.k8s.io/kube-proxy:v1.34.0", "/p"))
DNS = workload("Deployment", "coredns", ("d", "registry.k8s.io/coredns:v1.12.1", "/d"))
VOLCANO = (
    volcano_node("a"),
    our_plugin(),
    workload("Deployment", "volcano-scheduler", ("s", "volcanosh/vc-scheduler:v1.14.1", "/vc")),
)
EXTENDER = {
    "urlPrefix": "https://127.0.0.1/scheduler",
    "filterVerb": "filter",
    "bindVerb": "bind",
    "nodeCacheCapable": True,
    "managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": True}],
}

CASES = {
    "HAMi as it should be": (HAMI, set()),
    "nothing at all": ((sample.node("a"),), {"nothing_installed"}),
    "a scheduler without pods that are ready": (
        (*HAMI[:2], hami_scheduler(ready=0)),
        {"none_ready"},
    ),
    "a plugin on some of its nodes": (
        (HAMI[0], hami_plugin(desired=3, ready=2), HAMI[2]),
        {"partly_ready"},
    ),
    "a scheduler of HAMi that counts another resource than the nodes have": (
        (*HAMI[:2], hami_scheduler("--resource-name=nvidia.com/vgpu")),
        {"resource_renamed", "names_differ"},
    ),
    "a scheduler of HAMi that names the resource of the nodes": (
        (*HAMI[:2], hami_scheduler("--resource-name=nvidia.com/gpu")),
        set(),
    ),
    "nodes and no plugin": ((HAMI[0], HAMI[2], PROXY), {"no_device_plugin"}),
    "nodes and no scheduler": ((*HAMI[:2], DNS), {"no_scheduler"}),
    "a plugin is missing only where DaemonSets were read": ((HAMI[0], HAMI[2]), set()),
    "a scheduler is missing only where Deployments were read": (HAMI[:2], set()),
    "a plugin that is scaled to zero is none": (
        (HAMI[0], hami_plugin(desired=0), HAMI[2]),
        {"no_device_plugin"},
    ),
    "a plugin of another version": (
        (HAMI[0], hami_plugin("v2.7.1"), HAMI[2]),
        {"several_versions"},
    ),
    "no GPU is allocatable": (
        (
            with_software(
                sample.node(
                    "a",
                    {"nvidia.com/gpu": 10},
                    {"hami.io/node-nvidia-register": "GPU-1,10,24576,100,L40S,0,true:"},
                    allocatable={"nvidia.com/gpu": "0"},
                )
            ),
            *HAMI[1:],
        ),
        {"nothing_allocatable"},
    ),
    "a node of two systems": (
        (
            with_software(
                sample.node(
                    "a",
                    {"nvidia.com/gpu": 10, "aliyun.com/gpu-mem": 20, "aliyun.com/gpu-count": 1},
                    {"hami.io/node-nvidia-register": "GPU-1,10,24576,100,L40S,0,true:"},
                )
            ),
            *HAMI[1:],
        ),
        {"several_systems", "no_device_plugin", "no_scheduler"},
    ),
    "HAMi's GPUs and NVIDIA's MIG instances on one node": (
        (
            with_software(
                sample.node(
                    "a",
                    {"nvidia.com/gpu": 10, "nvidia.com/mig-1g.10gb": 7},
                    {"hami.io/node-nvidia-register": "GPU-1,10,24576,100,L40S,0,true:"},
                ),
                labels=GPU_ON,
            ),
            *HAMI[1:],
        ),
        {"several_systems"},
    ),
    "KubeShare needs NVIDIA's plugin": (
        (
            with_software(
                sample.node("a", {"nvidia.com/gpu": 1}, {"kubeshare/gpu_info": "GPU-1:1,"})
            ),
            nvidia_plugin(),
            ours("Deployment", "kubeshare-controller", "kubeshare", "controller"),
        ),
        set(),
    ),
    "two schedulers": ((*HAMI, our_scheduler("--original-plugin")), {"several_binders"}),
    "GKE's plugin for each kind of node": (
        (
            with_software(sample.node("a", {"nvidia.com/gpu": 4})),
            gke_plugin("small-cos"),
            gke_plugin("large-cos"),
            gke_plugin("small-ubuntu", desired=0, ready=0),
        ),
        set(),
    ),
    "GKE's plugin and the GPU Operator's": (
        (
            with_software(sample.node("a", {"nvidia.com/gpu": 4})),
            gke_plugin("small-cos"),
            nvidia_plugin(),
        ),
        {"several_plugins"},
    ),
    "two plugins of one resource": ((*HAMI, nvidia_plugin()), {"several_plugins"}),
    "two plugins on other nodes": (
        (*HAMI, nvidia_plugin(selector={"gpu": "whole"})),
        set(),
    ),
    "two plugins that affinity separates": (
        (
            *HAMI,
            nvidia_plugin(
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}
                            ]
                        }
                    }
                }
            ),
        ),
        set(),
    ),
    "ours beside HAMi's plugin": (
        (*HAMI, our_plugin("--volcano.dialect=hami")),
        {"several_plugins"},
    ),
    "ours for Volcano beside HAMi's plugin": ((*HAMI, our_plugin()), set()),
    "two feedbacks": ((*HAMI, ours("DaemonSet", "feedback", "feedback")), {"two_feedbacks"}),
    "our scheduler does not lock for the original plugin": (
        (*HAMI[:2], our_scheduler()),
        {"no_node_lock"},
    ),
    "the original scheduler may serve the original plugin": (
        (*HAMI, our_scheduler()),
        {"several_binders"},
    ),
    "our scheduler locks for the original plugin": (
        (*HAMI[:2], our_scheduler("--original-plugin")),
        set(),
    ),
    "replicas of --single": (
        (*VOLCANO[:2], our_scheduler("--single", desired=2)),
        {"single_with_replicas"},
    ),
    "a webhook that blocks pods": (
        (*HAMI[:2], hami_scheduler(ready=0), webhook()),
        {"none_ready", "webhook_blocks_pods"},
    ),
    "a webhook that fails open": (
        (*HAMI[:2], hami_scheduler(ready=0), webhook("Ignore")),
        {"none_ready"},
    ),
    "Volcano's scheduler without vGPUs": (
        (*VOLCANO, volcano_config({"name": "predicates"}, {"name": "deviceshare"})),
        {"vgpu_not_enabled"},
    ),
    "Volcano's scheduler with two ways of sharing": (
        (
            *VOLCANO,
            volcano_config(
                {
                    "name": "deviceshare",
                    "arguments": {
                        "deviceshare.VGPUEnable": True,
                        "deviceshare.GPUNumberEnable": "true",
                        "deviceshare.GPUSharingEnable": False,
                    },
                }
            ),
        ),
        {"deviceshare_conflict"},
    ),
    "Volcano's scheduler with vGPUs": (
        (
            *VOLCANO,
            volcano_config({"name": "deviceshare", "arguments": {"deviceshare.VGPUEnable": True}}),
        ),
        set(),
    ),
    "a configuration that pods pass by": (
        (*HAMI, config(extenders=[EXTENDER | {"ignorable": True}])),
        {"ignorable"},
    ),
    "a configuration that is none": (
        (*HAMI, config(extenders="KubeSchedulerConfiguration")),
        {"config_unreadable"},
    ),
    "a configuration without extender, of a scheduler for other pods": ((*HAMI, config()), set()),
    "a configuration without extender, and ours is installed": (
        (*HAMI[:2], our_scheduler("--original-plugin"), config()),
        {"no_extender"},
    ),
    "a runtime without CDI": (
        (volcano_node("a", runtime="containerd://1.6.20"), *VOLCANO[1:]),
        {"no_cdi"},
    ),
    "a runtime without CDI, and a plugin that needs none": (
        (volcano_node("a", runtime="containerd://1.6.20"), our_plugin("--no-cdi"), VOLCANO[2]),
        set(),
    ),
    "a runtime that nobody knows": (
        (volcano_node("a", runtime="hyper://9.9.9"), *VOLCANO[1:]),
        {"runtime_unknown"},
    ),
    "a kubelet without CDI": (
        (volcano_node("a", kubelet="v1.28.9+k3s1"), *VOLCANO[1:]),
        {"kubelet_without_cdi"},
    ),
    "a node whose clock is ahead": ((*HAMI, heartbeat("a", renewed=30)), {"clock_of_node"}),
    "a node whose clock is behind": ((*HAMI, heartbeat("a", renewed=-30)), {"clock_of_node"}),
    "a node that renews late": (
        (*HAMI, heartbeat("a", -60, -60), heartbeat("b")),
        {"no_heartbeat"},
    ),
    "Leases of other nodes may be old": (
        (*HAMI, heartbeat("gone", -900, -900), heartbeat("a")),
        set(),
    ),
    "components with different units": (
        (
            volcano_node("a"),
            our_plugin("--volcano.memory-factor=10"),
            our_scheduler("--volcano.memory-factor", "1"),
        ),
        {"units_differ"},
    ),
    "components with the default and the same unit": (
        (volcano_node("a"), our_plugin(), our_scheduler("--volcano.memory-factor=1")),
        set(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_findings(facts, case):
    items, expected = CASES[case]
    assert found(facts(*items)) == expected


def test_a_unit_that_the_nodes_contradict(facts):
    node = with_software(
        sample.node(
            "a",
            {"volcano.sh/vgpu-number": 10, "volcano.sh/vgpu-memory": 4606},
            sample.volcano_node("a", 1, (True,))["metadata"]["annotations"],
        )
    )
    ours = our_plugin("--volcano.memory-factor=1")
    assert found(facts(node, ours, VOLCANO[2])) == {"unit_unconfirmed"}


@pytest.mark.parametrize(
    ("factor", "units", "reasons"),
    [("10", {}, set()), ("1", {}, {"unit_unconfirmed"}), ("1", {"volcano": 10 * MIB}, set())],
)
def test_the_unit_is_that_of_the_command_line_else_that_of_the_plugin(
    facts, factor, units, reasons
):
    """A GPU of 460 units is one of 4.5 GiB with a factor of 10."""
    register = f"{sample.uuid(1)},10,460,NVIDIA-L40S,true,hami-core:"
    node = with_software(
        sample.node(
            "a",
            {"volcano.sh/vgpu-number": 10, "volcano.sh/vgpu-memory": 460},
            {"volcano.sh/node-vgpu-register": register},
        )
    )
    plugin = our_plugin(f"--volcano.memory-factor={factor}")
    assert found(facts(node, plugin, VOLCANO[2], units=units)) == reasons


@pytest.mark.parametrize(
    ("ahead", "reasons"), [(0.0, set()), (1.5, set()), (-9.0, {"clock_of_this_machine"})]
)
def test_the_clock_of_this_machine(facts, ahead, reasons):
    assert found(facts(*HAMI, is_dump=False, as_of=NOW + ahead, clock_ahead=ahead)) == reasons


@pytest.mark.parametrize(
    ("server", "is_supported"),
    [("v1.34.0", True), ("v1.37.9", True), ("v1.38.0", False), ("v1.33.9", False), ("", True)],
)
def test_the_versions_of_kubelets(facts, server, is_supported):
    reasons = set() if is_supported else {"kubelet_skew"}
    assert found(facts(*HAMI, server_version=server)) == reasons


def test_rights_that_are_missing(facts):
    right = Right("", "pods/binding", "create")
    denied = DeniedRight("Deployment x/y", "system:serviceaccount:x:y", right)
    optional = msgspec.structs.replace(denied, need="quotas")
    diagnosed = facts(*HAMI, denied=(denied, optional), reviewed=9)
    assert found(diagnosed, Severity.ERROR) == {"missing_right"}
    assert found(diagnosed, Severity.WARNING) == {"missing_optional_right"}
    text = next(each for each in cluster_findings(diagnosed) if each.check is DoctorCheck.RIGHTS)
    assert text.evidence == (
        "system:serviceaccount:x:y may not create pods/binding",
        '- {apiGroups: [""], resources: [pods/binding], verbs: [create]}',
    )


def test_the_worst_comes_first(facts):
    findings = diagnosis(
        NOW, tuple(cluster_findings(facts(*HAMI, nvidia_plugin(), our_scheduler())))
    ).findings
    severities = [list(Severity).index(each.severity) for each in findings]
    assert severities == sorted(severities)
    assert {each.severity for each in findings} == set(Severity)


@pytest.mark.parametrize(
    ("runtime", "support"),
    [
        ("containerd://2.0.0", CdiSupport.YES),
        ("containerd://1.7.18-1~deb12", CdiSupport.IF_ENABLED),
        ("containerd://1.7.13", CdiSupport.UNKNOWN),
        ("containerd://1.7.11", CdiSupport.NO),
        ("containerd://1.6.36", CdiSupport.NO),
        ("cri-o://1.30.2", CdiSupport.YES),
        ("cri-o://1.24.0", CdiSupport.UNKNOWN),
        ("cri-o://1.20.0", CdiSupport.NO),
        ("docker://24.0.7", CdiSupport.UNKNOWN),
        ("containerd://", CdiSupport.UNKNOWN),
        ("", CdiSupport.UNKNOWN),
    ],
)
def test_which_runtimes_inject_cdi_devices(runtime, support):
    assert cdi_support(runtime) is support


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("projecthami/hami:v2.8.0", ("hami", "v2.8.0")),
        ("mirror:5000/a/hami:v1@sha256:0123456789abcdef", ("hami", "v1")),
        ("mirror:5000/a/hami@sha256:0123456789abcdef", ("hami", "0123456789ab")),
        ("mirror:5000/hami", ("hami", "latest")),
        ("", ("", "latest")),
    ],
)
def test_the_version_of_an_image(image, parts):
    assert image_parts(image) == parts


# ---------------------------------------------------------------- properties


ITEMS = [
    *HAMI,
    *VOLCANO,
    nvidia_plugin(),
    our_scheduler("--single", desired=2),
    ours("DaemonSet", "feedback", "feedback"),
    hami_plugin("v1", ready=0),
    hami_scheduler(ready=0),
    webhook(),
    config(extenders=[EXTENDER]),
    volcano_config(),
    heartbeat("a", 30),
    heartbeat("b", -300, -300),
    *sample.items(),
]


@given(st.lists(st.sampled_from(ITEMS), min_size=1))
def test_a_check_is_ok_or_has_findings_and_the_order_of_objects_does_not_matter(items):
    unique = list(
        {(each["kind"], each["metadata"]["name"]): each for each in (HAMI[0], *items)}.values()
    )
    findings = list(cluster_findings(facts_of(*unique)))
    assert set(findings) == set(cluster_findings(facts_of(*unique[::-1])))
    for check in DoctorCheck:
        severities = {each.severity for each in findings if each.check is check}
        assert Severity.OK not in severities or severities.isdisjoint(BAD)


SECRET = "hunter2-s3cr3t"


def test_nothing_secret_is_printed(facts):
    """Each text of an object that is not a name, an image or a known setting is this secret."""
    words = ("--token", SECRET, f"--password={SECRET}", f"--cdi={SECRET}", SECRET)
    plugin = our_plugin(*words, f"--volcano.memory-factor={SECRET}")
    plugin["metadata"]["annotations"] = {"note": SECRET, "vgpu.dev/x": SECRET}
    for container in plugin["spec"]["template"]["spec"]["containers"]:
        container["env"] = [{"name": "TOKEN", "value": SECRET}]
    node = volcano_node("a", labels={"team": SECRET})
    node["metadata"]["annotations"] = node["metadata"]["annotations"] | {
        "volcano.sh/note": SECRET,
        "note": SECRET,
    }
    node["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "reason": "x", "message": SECRET}
    ]
    tls = {"keyData": SECRET, "caData": SECRET, "insecure": True}
    bad = config("broken")
    bad["data"] = {
        "a": f"kind: KubeSchedulerConfiguration\n: [ {SECRET}",
        "b": f"kind: KubeSchedulerConfiguration\npassword: {SECRET}\nextenders: {SECRET}",
        "c": f"tiers: {SECRET}",
        "d": f"kind: KubeSchedulerConfiguration\napiVersion: {SECRET}",
        "other": SECRET,
    }
    malformed = hami_plugin()
    malformed["spec"]["template"] = SECRET
    hook = webhook()
    hook["webhooks"][0]["clientConfig"]["caBundle"] = SECRET
    secret = {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"name": "x", "namespace": "y"},
        "data": {"password": SECRET},
    }
    diagnosed = facts(
        plugin,
        our_scheduler("--volcano.memory-factor=2"),
        node,
        config(extenders=[EXTENDER | {"tlsConfig": tls, "urlPrefix": f"http://{SECRET}@x"}]),
        bad,
        malformed,
        hook,
        secret,
        heartbeat("a"),
    )
    findings = list(cluster_findings(diagnosed))
    assert {"units_differ", "config_unreadable", "malformed"} <= found(diagnosed)
    assert SECRET not in repr(
        [(each.about, each.evidence, each.advice, each.reason.explanation) for each in findings]
    )


def test_versions_are_read_with_any_text():
    assert version("v1.34.4+k3s1") == (1, 34, 4)
    assert version("1.28") == (1, 28)
    assert version("latest") == ()


def test_facts_without_any_object_are_a_finding():
    reasons = {each.reason for each in cluster_findings(ClusterFacts(NOW))}
    assert DoctorReason.NOTHING_INSTALLED in reasons


WORDS = st.sampled_from(
    [
        *("vgpu", "scheduler", "device-plugin", "--scheme", "--scheme=", "--no-cdi", "-", "--"),
        *("=", "10", "ключ", "\0", "--gpu-memory-factor", "-memory-unit=MiB"),
    ]
)
IMAGES = st.sampled_from(
    [image for row in COMPONENTS for image in row.images] + ["", ":", "@", "/"]
)
CONTAINERS = st.tuples(
    st.sampled_from(["", "device-plugin", "vgpu-monitor"]),
    st.builds("{}{}".format, IMAGES, st.sampled_from(["", ":v1", "@sha256:0", ":", "@"])),
    st.lists(WORDS, max_size=4),
)


@given(st.lists(st.lists(CONTAINERS, max_size=3), max_size=4), st.integers(0, 2))
def test_any_command_line_is_read(workloads, ready):
    """No image, word or number of pods is more than a finding."""
    items = [
        workload("DaemonSet", f"w{number}", *((a, b, *c) for a, b, c in containers), ready=ready)
        for number, containers in enumerate(workloads)
    ]
    assert list(cluster_findings(facts_of(HAMI[0], volcano_node("b"), *items)))
