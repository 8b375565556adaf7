"""Every rule on a real API server: each fault is found, reported, repaired, and undone on request.

There are no controllers here: nothing happens but what a test does. The command is the real one,
with just the rights of deploy/manifests.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.cluster.reconciling import (
    AT_ONCE,
    CLUSTER_RIGHTS,
    Command,
    forget_state,
    is_evicted,
    make_default_account,
    staged,
    version,
    with_rights,
)
from tests.reconciler import samples
from tests.reconciler.samples import replace, uuid
from tests.support.bed import crds
from vgpu.model.names import Phase
from vgpu.model.objects import ContainerState, Node, Status
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.node import HOLDER_NAMESPACE
from vgpu.schemes.kubeshare.sharepod import GPUID, PREFIX

NODE = "gpu-1"
STYLES = ("volcano", "hami", "gpushare", "gaia")
ASKED_FOR = ("double_booked", "running_without_device", "lost_device", "kubeshare")
"""Rules that act only where they are configured to."""

EDITED = {
    "assumed_unbound": "VgpuClaimCleared",
    "leftover_claim": "VgpuClaimCleared",
    "stale_lock": "VgpuLockCleared",
    "stale_handshake": "VgpuHandshakeCleared",
    "kubeshare": "VgpuSharePodReset",
}
"""What an edit is called in Kubernetes' events."""

ALL_ON = AT_ONCE | {"rules": {rule: {"mode": "apply"} for rule in ASKED_FOR}}


@pytest.fixture(scope="module")
def reconciler(api):
    """The reconciler's ServiceAccount, in a cluster that knows SharePods."""
    crds.load(api.client, crds.SHARE_POD)
    make_default_account(api.client, HOLDER_NAMESPACE)
    return with_rights(api, *CLUSTER_RIGHTS)


@pytest.fixture
def command(api, reconciler, tmp_path):
    yield Command(reconciler, tmp_path, ALL_ON)
    forget_state(api.client)


@pytest.fixture
def stage(api):
    with staged(api.client) as stage:
        yield stage


# ---------------------------------------------------------------- what may be wrong

Samples = tuple[Any, ...]


class Case(NamedTuple):
    """A way in which one thing is wrong.

    ``make`` gives the samples for a namespace: the first is the faulty object. What is not a
    node has one of this ``style`` to be on. ``after`` are annotations of the object after its edit,
    None for one that is removed; without them it is evicted.
    """

    rule: str
    reason: str
    style: str
    make: Callable[[str], Samples]
    evidence: str
    effect: str = "recovery"
    after: Mapping[str, str | None] = {}
    part: str = ""

    def __str__(self):
        return f"{self.rule}-{self.reason}-{self.style}"


def sick(style, make=lambda pod: pod, **fields):
    """A pod with something wrong."""
    return lambda namespace: (make(samples.pod("sick", style, namespace=namespace, **fields)),)


REFUSALS = {
    "OutOfvolcano.sh/vgpu-number": "out_of_resource",
    "TopologyAffinityError": "topology_affinity_error",
    "PreStartContainerCheckErr": "prestart_check_error",
}


def refused():
    for style in STYLES:
        make, message = sick(style, samples.refused), samples.ALLOCATE
        yield Case("refused", "unexpected_admission_error", style, make, message, "tidying")
    for reason, cause in REFUSALS.items():
        make = sick("volcano", partial(samples.refused, reason=reason))
        yield Case("refused", cause, "volcano", make, reason, "tidying")


def cannot_start():
    for message, cause in {
        samples.PRESTART: "prestart_check_failed",
        "Allocate check failed": "allocate_check_failed",
    }.items():
        make = sick("gaia", partial(samples.prestart_failed, message=message))
        yield Case("prestart_failed", cause, "gaia", make, message)
    for style in ("gpushare", "volcano"):
        make = sick(style, samples.no_gpu_matched)
        yield Case("no_gpu_matched", "no_gpu_to_run", style, make, samples.NO_GPU)


def promised():
    for style in STYLES:
        # gpu-manager leaves no sign of it once the kubelet has admitted the pod.
        make = sick(style, claim=Phase.ASSUMED, statuses=())
        yield Case("assumed_expired", "never_assigned", style, make, "assumed main")
        keys = samples.CODECS[style].claim_keys(samples.unbound(style=style))
        yield Case(
            "assumed_unbound",
            "never_bound",
            style,
            lambda namespace, style=style: (samples.unbound("sick", style, namespace=namespace),),
            "assumed main",
            "repair",
            dict.fromkeys(keys),
        )


def marked(style, mark, *others):
    """A node with an annotation, and what else there is."""
    return lambda namespace: (
        samples.node(NODE, style, annotations=mark(namespace)),
        *(make(namespace) for make in others),
    )


def lock_owner(namespace):
    return samples.pod("owner", "hami", namespace=namespace)


def locks():
    owned, anonymous = (samples.CODECS[each].key_set.locks[0] for each in ("hami", "volcano"))
    by_owner = marked("hami", lambda namespace: samples.lock(lock_owner(namespace)))
    for reason, state, owners in (
        ("owner_gone", "gone", ()),
        ("owner_ended", "ended", (lambda namespace: samples.ended(lock_owner(namespace)),)),
        ("owner_served", "served", (lock_owner,)),
    ):

        def make(namespace, owners=owners):
            return (*by_owner(namespace), *(each(namespace) for each in owners))

        after = {owned: None}
        yield Case("stale_lock", reason, "hami", make, f"is: {state}", "repair", after, owned)
    make = marked("volcano", lambda _: samples.lock(style="volcano"))
    after = {anonymous: None}
    message = "no pod waits"
    yield Case("stale_lock", "nobody_waits", "volcano", make, message, "repair", after, anonymous)


def handshakes():
    for style in ("volcano", "hami"):
        (key,) = mark = samples.handshake(style=style)
        make = marked(style, lambda _, mark=mark: mark)
        after = {key: None}
        yield Case("stale_handshake", "plugin_lives", style, make, "offers", "repair", after, key)


def leftovers():
    for style in ("volcano", "hami"):
        key = samples.CODECS[style].key_set.to_allocate
        promise = samples.assumed(style=style).annotations[key]
        after = {key: ";" if style == "hami" else ""}
        for reason, end in (
            ("ended_with_claim", samples.ended),
            ("served_with_claim", lambda pod: pod),
        ):
            make = sick(style, end, annotations={key: promise})
            yield Case("leftover_claim", reason, style, make, key, "repair", after)


def on_a_lost_gpu(pod):
    return replace(
        pod,
        annotations={key: text.replace("GPU-", "GPU-f") for key, text in pod.annotations.items()},
    )


def conflicts():
    unclaimed = sick("volcano", claim=None, phase="Running")
    message = "no annotation names a device"
    yield Case("running_without_device", "no_claim", "volcano", unclaimed, message)
    lost = sick("volcano", on_a_lost_gpu)
    yield Case("lost_device", "device_missing", "volcano", lost, "GPU-f")


def share_pods(*requests):
    """SharePods of one virtual GPU with its holder; the first one has no pod."""
    return lambda namespace: (
        *(
            samples.share_pod(
                f"share-{at}",
                served=at > 0,
                bound=at > 0,
                annotations={f"{PREFIX}gpu_request": request, f"{PREFIX}gpu_mem": str(GIB)},
                namespace=namespace,
            )
            for at, request in enumerate(requests)
        ),
        samples.holder(),
    )


def ghost(namespace):
    return (
        samples.share_pod("sick", gpuid="ghost", served=False, bound=False, namespace=namespace),
    )


def of_kubeshare():
    keeper, again = (lambda _: (samples.holder(),)), {GPUID: None}
    yield Case("kubeshare", "orphaned_holder", "kubeshare", keeper, "abcde")
    yield Case("kubeshare", "vanished_gpuid", "kubeshare", ghost, "no holder pod", after=again)
    sharers = share_pods(*["0.05"] * 20)
    yield Case("kubeshare", "float_sum", "kubeshare", sharers, "in float64", after=again)


CASES = [
    *refused(),
    *cannot_start(),
    *promised(),
    *locks(),
    *handshakes(),
    *leftovers(),
    *conflicts(),
    *of_kubeshare(),
]

# ---------------------------------------------------------------- found, repaired, put back


def neighbour(style, namespace):
    """A pod on the other GPU that nothing is wrong with."""
    if style != "kubeshare":
        well = samples.owner(name="well")
        return samples.pod("healthy", style, gpu=1, namespace=namespace, owner=well)
    pod = samples.labelled("healthy", namespace=namespace)
    there = {
        key: text.replace(uuid(NODE, 0), uuid(NODE, 1)) for key, text in pod.annotations.items()
    }
    return replace(pod, annotations=there)


def put(stage, case, namespace):
    """Make it so; the faulty object and its neighbour as the API server has them."""
    made = case.make(namespace)
    if not any(isinstance(each, Node) for each in made):
        stage.put(samples.node(NODE, case.style))
    object_ref, *_ = [stage.put(each) for each in made]
    return object_ref, stage.put(neighbour(case.style, namespace))


def annotations(client, obj):
    return client.get(obj)["metadata"].get("annotations", {})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_faulty_pod_is_found_and_repaired_and_its_neighbour_skipped(
    api, api_namespace, stage, command, case
):
    object_ref, well = put(stage, case, api_namespace)
    untouched = version(api.client, well)
    before = annotations(api.client, object_ref)

    plan = command.plan()
    assert plan.code == 3
    (entry,) = plan.entries
    assert entry in plan.actions, entry
    assert (entry["rule"], entry["reason"]) == (case.rule, case.reason)
    assert (entry["kind"], entry["name"]) == (object_ref["kind"], object_ref["metadata"]["name"])
    assert (entry["uid"], entry["part"]) == (object_ref["metadata"]["uid"], case.part)
    assert (entry["effect"], entry["action"]["type"]) == (
        case.effect,
        "edit" if case.after else "evict",
    )
    assert case.evidence in "\n".join(entry["evidence"])

    applied = command.apply()
    assert applied.code == 0
    assert applied.document["plan"] == plan.document["plan"]
    assert [each["outcome"] for each in applied.actions] == ["done"]
    if case.after:
        now = annotations(api.client, object_ref)
        assert now == {key: text for key, text in (before | case.after).items() if text is not None}
        assert (
            object_ref["kind"] != "SharePod" or "nodeName" not in api.client.get(object_ref)["spec"]
        )
    else:
        assert is_evicted(api.client, object_ref)
    assert version(api.client, well) == untouched

    (event,) = api.client.events(object_ref)
    assert event["reason"] == (EDITED[case.rule] if case.after else "VgpuEvicted")
    assert f"({case.rule}/{case.reason})" in event["message"]

    stage.kubelet_ends()
    again = command.plan()
    assert (again.code, again.actions, again.skipped) == (0, [], [])

    intent, result = command.audit_records()
    assert (intent["event"], result["event"], result["outcome"]) == ("intent", "result", "done")
    for record in (intent, result):
        assert record["subject"]["uid"] == object_ref["metadata"]["uid"]
        assert (record["plan"], record["rule"]) == (plan.document["plan"], case.rule)
        if case.after:
            assert record["action"]["before"] == {key: before[key] for key in case.after}
        else:
            assert record["action"]["resource_version"] == object_ref["metadata"]["resourceVersion"]

    restored = command.restore()
    if case.after:
        assert restored.code == 0
        assert annotations(api.client, object_ref) == before
        assert api.client.get(object_ref)["spec"] == object_ref["spec"]
    else:
        assert restored.code == 4
        assert [each["undo"] for each in restored.document] == ["irreversible"]
    assert version(api.client, well) == untouched


# ---------------------------------------------------------------- what is only reported


def test_rules_that_evict_running_pods_act_only_where_they_are_configured_to(
    api, api_namespace, stage, command
):
    command.configure(AT_ONCE)
    stage.put(samples.node(NODE, "volcano"), samples.node("gpu-2", "kubeshare"))
    lost = stage.put(on_a_lost_gpu(samples.pod("lost", namespace=api_namespace)))
    unclaimed = stage.put(
        samples.pod("unclaimed", namespace=api_namespace, claim=None, phase="Running")
    )
    six = stage.put(*(samples.pod(f"full-{at}", gpu=1, namespace=api_namespace) for at in range(6)))
    keeper = stage.put(samples.holder(node="gpu-2"))
    everybody = (lost, unclaimed, keeper, *six)
    untouched = [version(api.client, each) for each in everybody]

    applied = command.apply()
    assert (applied.code, applied.actions) == (0, [])
    assert {entry["rule"] for entry in applied.findings} == {*ASKED_FOR} - {"kubeshare"}
    assert [entry["skip"] for entry in applied.skipped] == ["rule_mode_plan"]
    assert [version(api.client, each) for each in everybody] == untouched


def test_nobody_is_sent_away_because_of_what_annotations_alone_claim(
    api, api_namespace, stage, command
):
    """They are their tenants' own to write; on the node it is known who has the GPU."""
    stage.put(samples.node(NODE, "volcano"))
    six = stage.put(*(samples.pod(f"full-{at}", namespace=api_namespace) for at in range(6)))
    applied = command.apply()
    assert (applied.code, applied.actions) == (0, [])
    (entry,) = applied.skipped
    assert (entry["rule"], entry["reason"]) == ("double_booked", "overcommitted")
    assert entry["skip"] == "no_node_evidence"
    assert not any(is_evicted(api.client, pod) for pod in six)


def test_an_unhealthy_gpu_is_known_by_gpushares_config_map(api, api_namespace, stage, command):
    stage.put(samples.node(NODE, "gpushare"))
    sick, well = stage.put(
        samples.pod("sick", "gpushare", namespace=api_namespace),
        samples.pod("well", "gpushare", gpu=1, namespace=api_namespace),
    )
    about = {"name": f"unhealthy-gpu-{NODE}", "namespace": "kube-system"}
    stage.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"gpus": "0"}})
    (entry,) = command.apply().actions
    assert (entry["reason"], entry["name"]) == ("device_unhealthy", "sick")
    assert is_evicted(api.client, sick)
    assert not is_evicted(api.client, well)


def test_a_reservation_that_was_allocated_is_reported_since_only_the_node_knows_the_gpu(
    api, api_namespace, stage, command
):
    stage.put(samples.node(NODE, "volcano"))
    stage.put(samples.pod("sick", namespace=api_namespace, claim=Phase.ASSUMED, phase="Running"))
    (entry,) = command.apply().skipped
    assert (entry["rule"], entry["reason"]) == ("recover", "runs_unassigned")
    assert entry["skip"] == "no_node_evidence"


def test_a_share_pod_that_completes_for_ever_is_reported_with_advice(
    api, api_namespace, stage, command
):
    stage.put(samples.node(NODE, "kubeshare"), samples.holder())
    done = Status("main", ContainerState.TERMINATED, reason="Completed", restarts=7)
    stage.put(replace(samples.share_pod("sick", namespace=api_namespace), statuses=(done,)))
    (entry,) = command.apply().findings
    assert (entry["reason"], entry["kind"]) == ("completed_for_ever", "SharePod")
    assert "OnFailure" in entry["evidence"][-1]


def test_a_claim_that_cannot_be_read_is_reported_and_skipped(api, api_namespace, stage, command):
    stage.put(samples.node(NODE, "gpushare"))
    torn = {"ALIYUN_COM_GPU_MEM_IDX": "two"}
    sick = samples.assumed("sick", "gpushare", namespace=api_namespace)
    pod = stage.put(replace(sick, annotations=sick.annotations | torn))
    untouched = version(api.client, pod)
    (entry,) = command.apply().findings
    assert (entry["rule"], entry["reason"]) == ("assumed_expired", "malformed")
    assert version(api.client, pod) == untouched


# ---------------------------------------------------------------- owners with a policy

VOLCANO = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobs.batch.volcano.sh"},
    "spec": {
        "group": "batch.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "Job", "plural": "jobs"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
"""As much of Volcano's own as is needed to create one."""


def test_a_volcano_jobs_dead_pod_goes_only_if_no_policy_restarts_the_others(
    api, api_namespace, stage, command, tmp_path
):
    definition = tmp_path / "job.yaml"
    definition.write_text(json.dumps(VOLCANO))
    crds.load(api.client, definition)
    restart = {"event": "PodEvicted", "action": "RestartJob"}
    job = stage.put(
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": api_namespace},
            "spec": {"policies": [restart], "tasks": [{"name": "worker"}]},
        }
    )
    owner = samples.owner("Job", "train", job["apiVersion"])
    owner = replace(owner, uid=job["metadata"]["uid"])
    marks = {"volcano.sh/task-spec": "worker"}
    pod = samples.pod("train-worker-0", namespace=api_namespace, owner=owner, annotations=marks)
    sick = stage.put(samples.node(NODE, "volcano"), samples.refused(pod))[1]

    (entry,) = command.apply().skipped
    assert entry["skip"] == "owner_policy"
    assert entry["skipDetail"] == "its policy for PodEvicted is RestartJob"
    assert not is_evicted(api.client, sick)
    api.client.patch(job, {"spec": {"policies": []}})
    (entry,) = command.apply().actions
    assert (entry["effect"], entry["outcome"]) == ("recovery", "done")
    assert is_evicted(api.client, sick)
