"""Pods that KAI Scheduler has not bound, explained by what a real KAI wrote (tests/golden/kai)."""

import copy
import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.support import kai_player
from vgpu.kube.kai_groups import Unschedulable
from vgpucli.explain.kai_texts import TEXTS, binding_part, causes
from vgpucli.main import main

WAITING = "pods_wait_for_their_reasons"


def explained(objects, name, tmp_path):
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    words = ("explain", "pod", name, "-o", "json", "--from", str(file))
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def codes(document):
    """The codes of the steps that have some."""
    steps = document["steps"]
    return {
        each["step"]: [reason["code"] for reason in each["reasons"]]
        for each in steps
        if each["reasons"]
    }


def pod_of(objects, prefix):
    return next(
        f"{each['metadata']['namespace']}/{each['metadata']['name']}"
        for each in objects
        if each["kind"] == "Pod" and each["metadata"]["name"].startswith(prefix)
    )


@pytest.mark.parametrize(
    ("name", "step", "code", "detail"),
    [
        ("team-a/too-large", "nodes", "gpu_too_small", "GPU memory"),
        ("team-a/over-limit", "quota", "queue_never_fits", "Limit is 0.3 GPUs"),
        ("team-a/no-quota", "quota", "scheduler_quota", "small quota is 0.2 GPUs"),
        ("team-a/lost", "quota", "queue_missing", "Queue 'nowhere' does not exist"),
        ("team-b/no-room-by-memory", "nodes", "memory", "Unable to schedule pod"),
        ("team-b/no-whole", "nodes", "exclusive", "resources: GPUs"),
        ("team-b/no-devices", "nodes", "memory", "resources: GPUs"),
        ("team-b/no-node", "nodes", "node_affinity", "affinity"),
        ("team-a/unlabelled", "nodes", "memory", "resources: GPUs"),
    ],
)
def test_what_kai_refuses_is_explained_by_its_own_word(tmp_path, name, step, code, detail):
    document = explained(kai_player.after(WAITING), name, tmp_path)
    assert codes(document)[step] == [code]
    assert f"fails at step {step}" in document["conclusion"]
    assert detail in document["conclusion"]
    assert document["advice"]


def test_a_node_whose_gpus_have_no_size_is_named(tmp_path):
    objects = kai_player.after("a_node_lacks_its_label", record=kai_player.HAMICORE)
    document = explained(objects, "team-a/by-memory-0", tmp_path)
    assert codes(document)["nodes"] == ["unknown_size"]
    assert "not synced yet of node3" in document["conclusion"]
    assert "nvidia.com/gpu.memory" in document["advice"]


def test_a_gang_of_which_no_pod_fits_is_explained_for_each_of_its_pods(tmp_path):
    objects = kai_player.after(WAITING)
    names = {
        each["metadata"]["name"]
        for each in objects
        if each["kind"] == "Pod" and each["metadata"]["name"].startswith("gang-waits-")
    }
    assert len(names) == 2
    for name in names:
        document = explained(objects, f"team-a/{name}", tmp_path)
        assert codes(document)["nodes"] == ["memory"]
        assert "0 pods of the group fit, 2 have to run together" in document["conclusion"]


def test_a_gang_that_is_not_complete_waits_for_its_pods(tmp_path):
    objects = kai_player.after(WAITING)
    document = explained(objects, pod_of(objects, "gang-incomplete-"), tmp_path)
    assert codes(document)["reserved"] == ["pod_group_waits"]
    assert "needs 3 pods, and 2 of them exist" in document["conclusion"]


def test_between_its_bind_request_and_its_binding_a_pod_waits_for_the_binder(tmp_path):
    objects = kai_player.after("a_bind_request_waits_for_the_binder")
    document = explained(objects, "team-a/train-0", tmp_path)
    assert codes(document)["reserved"] == ["not_bound"]
    reserved = next(each for each in document["steps"] if each["step"] == "reserved")
    assert "to node node2: 0.50 of 1 GPU, group " in reserved["evidence"][0]
    assert reserved["since"] is not None
    passed = {each["step"] for each in document["steps"] if each["outcome"] == "passed"}
    assert {"request", "quota", "nodes"} <= passed


@pytest.mark.parametrize(
    ("step", "name", "code"),
    [
        ("a_reservation_sees_two_gpus", "team-b/failing-0", "reservation_failed"),
        ("a_reservation_is_refused_by_the_kubelet", "team-b/failing-1", "reservation_failed"),
        ("a_bind_request_has_a_backoff_limit", "team-b/stopped-0", "scaling_up"),
    ],
)
def test_what_the_binder_refuses_is_a_failure_though_the_condition_may_report_a_success(
    tmp_path, step, name, code
):
    document = explained(kai_player.after(step), name, tmp_path)
    assert codes(document)["reserved"] == [code]
    assert "fails at step reserved" in document["conclusion"]


def test_at_each_event_a_pod_without_a_node_has_a_step_that_fails_or_waits(tmp_path):
    """No text that KAI wrote in the whole story is unknown."""
    explained_so_far = set()
    for moment in kai_player.moments():
        if moment.event[1]["kind"] not in ("Pod", "PodGroup", "BindRequest"):
            continue
        for (kind, namespace, name), pod in moment.objects.items():
            is_tenant = kind == "Pod" and namespace.startswith("team-")
            if not is_tenant or pod["spec"].get("nodeName"):
                continue
            group = pod["metadata"].get("annotations", {}).get("pod-group-name", "")
            keys = (("BindRequest", namespace, name), ("PodGroup", namespace, group))
            own = [moment.objects[key] for key in keys if key in moment.objects]
            state = json.dumps(
                [
                    [each.get("message") for each in pod["status"].get("conditions", ())],
                    [each.get("status", {}).get("phase") for each in own],
                    [each.get("status", {}).get("schedulingConditions") for each in own],
                ]
            )
            if state in explained_so_far:
                continue
            explained_so_far.add(state)
            rest = [each for key, each in moment.objects.items() if key[0] in ("Node", "Queue")]
            document = explained([*rest, pod, *own], f"{namespace}/{name}", tmp_path)
            assert "unknown_refusal" not in str(codes(document)), state
            assert document["conclusion"].startswith(("the pod fails at", "the pod waits at"))
    assert len(explained_so_far) > 20


def test_the_kubelet_allocates_nothing_to_a_pod_that_kai_has_bound(tmp_path):
    objects = kai_player.after("two_fractions_on_two_gpus")
    steps = explained(objects, "team-a/multi-0", tmp_path)["steps"]
    by_name = {each["step"]: each for each in steps}
    assert by_name["request"]["outcome"] == "passed"
    assert "0.2 of the memory of a GPU, on each of 2 GPUs" in by_name["request"]["evidence"][0]
    assert "is bound to node node2, in GPU groups " in by_name["reserved"]["evidence"][0]
    assert "the kubelet starts a container only after" not in json.dumps(steps)
    reservation = next(
        each["metadata"]["name"]
        for each in objects
        if each["kind"] == "Pod" and each["metadata"]["namespace"] == "kai-resource-reservation"
    )
    text = json.dumps(explained(objects, f"kai-resource-reservation/{reservation}", tmp_path))
    assert "the kubelet allocates nothing" not in text


def without(objects, *kinds):
    return [each for each in objects if each["kind"] not in kinds]


def test_kinds_that_are_not_in_the_dump_are_needed_and_never_called_missing(tmp_path):
    objects = kai_player.after("a_bind_request_waits_for_the_binder")
    text = json.dumps(explained(without(objects, "BindRequest"), "team-a/train-0", tmp_path))
    assert "kubectl get bindrequests.scheduling.run.ai" in text
    assert "no_pod_group" not in text
    objects = kai_player.after(WAITING)
    document = explained(without(objects, "PodGroup"), pod_of(objects, "gang-inc"), tmp_path)
    assert "kubectl get podgroups.scheduling.run.ai" in json.dumps(document)
    assert "there is no PodGroup" not in json.dumps(document)
    document = explained(without(objects, "Queue"), "team-a/lost", tmp_path)
    assert codes(document)["quota"] == ["queue_missing"]


def test_the_bind_request_of_an_earlier_pod_of_the_name_is_not_the_pods(tmp_path):
    objects = copy.deepcopy(kai_player.after("a_bind_request_waits_for_the_binder"))
    (request,) = (each for each in objects if each["kind"] == "BindRequest")
    request["metadata"]["ownerReferences"][0]["uid"] = "00000000-0000-4000-8000-000000000000"
    request["status"] = {"phase": "Failed", "reason": "of another pod"}
    document = explained(objects, "team-a/train-0", tmp_path)
    assert "of another pod" not in json.dumps(document)
    assert codes(document)["reserved"] == ["not_scheduled"]


def test_a_pod_group_of_volcano_is_none_of_kais(tmp_path):
    objects = copy.deepcopy(kai_player.after(WAITING))
    for each in objects:
        if each["kind"] in ("PodGroup", "Queue"):
            each["apiVersion"] = "scheduling.volcano.sh/v1beta1"
    document = explained(objects, "team-a/over-limit", tmp_path)
    assert codes(document)["quota"] == ["queue_never_fits"]  # by the pod's own condition
    assert "Queue tight" not in json.dumps(document)


def test_two_dumps_of_the_same_objects_are_one(tmp_path):
    file = tmp_path / "dump.json"
    objects = kai_player.after(WAITING)
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    name = pod_of(objects, "gang-incomplete-")
    words = ["explain", "pod", name, "--from", str(file)]
    one, two = (CliRunner().invoke(main, [*words, *more]) for more in ([], ["--from", str(file)]))
    assert one.exit_code == two.exit_code == 0
    assert "2 of them exist" in " ".join(one.output.split())
    assert "2 of them exist" in " ".join(two.output.split())


def test_a_circle_of_queues_ends(tmp_path):
    objects = copy.deepcopy(kai_player.after(WAITING))
    for each in objects:
        if each["kind"] == "Queue" and each["metadata"]["name"] == "org":
            each["spec"]["parentQueue"] = "tight"
    document = explained(objects, "team-a/over-limit", tmp_path)
    assert codes(document)["quota"] == ["queue_never_fits"]


@given(st.text(max_size=200))
def test_any_text_is_some_cause_and_ends(text):
    for part in causes([Unschedulable("", text), Unschedulable("OverLimit", text)]):
        assert part.text
    assert binding_part(text).cause.reason


def test_many_reasons_are_shortened_and_a_long_message_costs_nothing(tmp_path):
    objects = copy.deepcopy(kai_player.after(WAITING))
    (pod,) = (each for each in objects if each["metadata"]["name"] == "too-large")
    reasons = "".join(f"{n} node(s) had untolerated taint {{key-{n}}}. \n" for n in range(1, 400))
    message = f"no nodes with enough resources were found: {reasons}{'9' * 20000} nodes"
    pod["status"]["conditions"][0]["message"] = message
    document = explained(without(objects, "PodGroup"), "team-a/too-large", tmp_path)
    nodes = next(each for each in document["steps"] if each["step"] == "nodes")
    assert nodes["reasons"][0]["code"] == "tainted_node"
    assert "reasons more" in nodes["evidence"][-1]
    assert len(nodes["evidence"]) < 10
    causes([Unschedulable("", "Resources were found for 1 pods " + "1 " * 20000)])


def test_a_text_that_nobody_knows_proves_no_quota(tmp_path):
    objects = copy.deepcopy(kai_player.after(WAITING))
    (pod,) = (each for each in objects if each["metadata"]["name"] == "over-limit")
    pod["status"]["conditions"][0]["message"] = "FutureReason: a text of a later version"
    document = explained(without(objects, "PodGroup"), "team-a/over-limit", tmp_path)
    outcomes = {each["step"]: each["outcome"] for each in document["steps"]}
    assert outcomes["quota"] == "not_checked"
    assert codes(document)["nodes"] == ["unknown_refusal"]
    assert "a text of a later version" in document["conclusion"]


def test_each_text_of_the_table_is_reached():
    """No pattern hides behind an earlier one: the recorded texts, and those of KAI's source."""
    texts = [
        "tight quota has reached the allowable limit of GPUs. Limit is 1 GPUs, currently 1 GPUs",
        "Non-preemptible workload is over quota. Workload requested 1 GPUs",
        "Queue 'a' does not exist",
        "Workload is within its preemption delay window (5m) and may not trigger evictions",
        "failed waiting for GPU reservation pod to allocate: a/b",
        "cluster is scaling up, could not create reservation pod",
        "failed to bind pod <a/b> to node <c>: conflict",
        "node is not a gpu node or the gpu memory count on the node was not synced yet, task: <a>",
        "node(s) didn't have enough resources: GPU memory",
        "node(s) didn't have enough resources: GPUs",
        "node(s) didn't have enough of mig profile: nvidia.com/mig-1g.5gb",
        "Unable to schedule pod",
        "node(s) didn't have enough resources: CPU cores",
        "node(s) didn't have enough resources: memory",
        "node(s) pod number exceeded",
        "node(s) didn't have enough resources: example.com/thing",
        "node(s) didn't match Pod's node affinity/selector",
        "node(s) had untolerated taint(s)",
        "node(s) didn't have free ports for the requested pod ports",
    ]
    reached = [
        next(number for number, (pattern, _) in enumerate(TEXTS) if pattern.search(text))
        for text in texts
    ]
    assert reached == list(range(len(TEXTS)))
