"""Facts about KAI Scheduler on which vgpu relies, in what a real one wrote (tests/golden/kai)."""

import hashlib
import json

import pytest

from tests.support import kai_player

RESERVATIONS = "kai-resource-reservation"
UUID = "run.ai/reserve_for_gpu_index"
GROUP = "runai-gpu-group"


def groups_of(pod):
    labels = pod["metadata"].get("labels", {})
    return sorted(value for key, value in labels.items() if key.partition("/")[0] == GROUP)


def pods(objects, namespace=""):
    return [
        each
        for each in objects
        if each["kind"] == "Pod" and each["metadata"]["namespace"].startswith(namespace)
    ]


def gpus_by_group(objects):
    found = {}
    for pod in pods(objects, RESERVATIONS):
        (group,) = groups_of(pod)
        gpu = pod["metadata"]["annotations"].get(UUID)
        found.setdefault((pod["spec"]["nodeName"], group), []).append(gpu)
    return found


def test_a_reservation_pod_is_named_by_its_node_and_its_group_at_every_moment():
    for record in (kai_player.STORY, kai_player.RACE, kai_player.HAMICORE):
        for moment in kai_player.moments(record):
            _, pod = moment.event
            if pod["kind"] == "Pod" and pod["metadata"]["namespace"] == RESERVATIONS:
                (group,) = groups_of(pod)
                place = f"{pod['spec']['nodeName']}/{group}".encode()
                name = f"gpu-reservation-{hashlib.sha256(place).hexdigest()[:16]}"
                assert pod["metadata"]["name"] == name
                assert pod["metadata"]["labels"]["app"] == RESERVATIONS
                assert "ownerReferences" not in pod["metadata"]


def test_a_tenant_has_its_group_before_its_node_and_the_annotation_between():
    order = {}
    for moment in kai_player.moments():
        kind, pod = moment.event
        meta = pod["metadata"]
        if pod["kind"] != "Pod" or not meta["namespace"].startswith("team-") or kind == "DELETED":
            continue
        seen = order.setdefault(meta["uid"], [])
        marks = {
            "group": bool(groups_of(pod)),
            "received": "received-resource-type" in meta.get("annotations", {}),
            "node": bool(pod["spec"].get("nodeName")),
        }
        seen += [mark for mark, has in marks.items() if has and mark not in seen]
    assert ["group", "received", "node"] in order.values()
    assert ["received", "node"] in order.values()  # whole GPUs
    assert all(
        seen in (["group", "received", "node"], ["received", "node"], ["group"], [])
        for seen in order.values()
    )


@pytest.mark.parametrize("step", ["the_gpu_is_of_a_named_container", "the_kubelet_restarts"])
def test_the_gpu_of_a_group_is_in_the_annotation_the_checkpoint_the_config_map_and_the_container(
    step,
):
    objects = kai_player.after(step)
    gpus = gpus_by_group(objects)
    config_maps = {
        each["metadata"]["name"]: each.get("data") or {}
        for each in objects
        if each["kind"] == "ConfigMap"
    }
    for node, seen in kai_player.seen(step).items():
        entries = seen.checkpoint["Data"]["PodDeviceEntries"]
        by_uid = {
            entry["PodUID"]: [gpu for numa in entry["DeviceIDs"].values() for gpu in numa]
            for entry in entries
        }
        for pod in pods(objects):
            meta = pod["metadata"]
            if pod["spec"].get("nodeName") != node or not groups_of(pod):
                continue
            own = sorted(gpu for group in groups_of(pod) for gpu in gpus[node, group])
            if meta["namespace"] == RESERVATIONS:
                assert by_uid[meta["uid"]] == own
                continue
            assert meta["uid"] not in by_uid
            prefix = meta["annotations"]["runai/shared-gpu-configmap"]
            (data,) = (
                each
                for name, each in config_maps.items()
                if name.startswith(prefix) and not name.endswith("-evar")
            )
            assert sorted(data["NVIDIA_VISIBLE_DEVICES"].split(",")) == own
            shown = [
                variables["NVIDIA_VISIBLE_DEVICES"]
                for name, variables in seen.containers.items()
                if name.startswith(f"{meta['namespace']}/{meta['name']}/")
                and "NVIDIA_VISIBLE_DEVICES" in variables
            ]
            # right after a restart of its kubelet no log could be read
            assert shown == [data["NVIDIA_VISIBLE_DEVICES"]] or step == "the_kubelet_restarts"


def test_three_sizes_of_one_share_are_written():
    objects = kai_player.after("a_tenant_of_another_namespace_joins_by_memory")
    (request,) = (
        each
        for each in objects
        if each["kind"] == "BindRequest" and each["metadata"]["name"] == "infer-0"
    )
    assert request["spec"]["receivedGPU"] == {"count": 1, "portion": "0.27"}
    (group,) = (
        each
        for each in objects
        if each["kind"] == "PodGroup" and each["metadata"]["name"].startswith("pg-infer-0-")
    )
    assert group["status"]["resourcesStatus"] == {
        "allocated": {"nvidia.com/gpu": "266666667n"},
        "requested": {"run.ai/gpu.memory": "4096"},
    }
    limits = {
        each["metadata"]["name"].partition("-shared-gpu-")[0].rpartition("-")[0]: (
            each.get("data") or {}
        ).get("CUDA_DEVICE_MEMORY_LIMIT")
        for each in kai_player.after("a_node_lacks_its_label", record=kai_player.HAMICORE)
        if each["kind"] == "ConfigMap"
        and "-shared-gpu-" in each["metadata"]["name"]
        and not each["metadata"]["name"].endswith("-evar")
    }
    assert limits == {
        "half-0": "7680m",
        "mib-0": "4147m",
        "tiny-0": None,
        "pair-0": "3072m",
        "unlimited-0": None,
    }


def test_a_share_on_two_gpus_counts_once_as_allocated_and_twice_as_requested():
    objects = kai_player.after("two_fractions_on_two_gpus")
    (group,) = (
        each
        for each in objects
        if each["kind"] == "PodGroup" and each["metadata"]["name"].startswith("pg-multi-0-")
    )
    assert group["status"]["resourcesStatus"] == {
        "allocated": {"nvidia.com/gpu": "200m"},
        "requested": {"nvidia.com/gpu": "400m"},
    }
    (pod,) = (each for each in pods(objects) if each["metadata"]["name"] == "multi-0")
    assert GROUP not in pod["metadata"]["labels"]
    assert len(groups_of(pod)) == 2


def test_a_deleted_reservation_ends_the_tenants_of_its_group_at_the_next_binding():
    before = kai_player.after("a_reservation_is_deleted")
    reserved = {group for _, group in gpus_by_group(before)}
    orphans = {
        each["metadata"]["name"]
        for each in pods(before, "team-")
        if each["status"]["phase"] == "Running" and set(groups_of(each)) - reserved
    }
    assert orphans == {"train-0", "infer-0", "multi-0"}
    after = kai_player.after("its_tenants_are_deleted_at_the_next_binding")
    assert orphans.isdisjoint(each["metadata"]["name"] for each in pods(after))


def test_a_dead_reservation_keeps_its_annotation_and_gets_a_new_tenant():
    objects = kai_player.after("a_new_tenant_is_sent_to_a_dead_reservation")
    (dead,) = pods(objects, RESERVATIONS)
    assert (dead["status"]["phase"], dead["status"]["reason"]) == (
        "Failed",
        "UnexpectedAdmissionError",
    )
    (sent,) = (each for each in pods(objects) if each["metadata"]["name"] == "sent-0")
    assert sent["status"]["phase"] == "Running"
    assert groups_of(sent) == groups_of(dead)
    assert dead["metadata"]["annotations"][UUID].startswith("GPU-")


def test_in_a_race_a_tenant_runs_without_a_reservation_and_with_two_groups_to_its_name():
    objects = kai_player.after("the_tenant_is_bound", record=kai_player.RACE)
    assert pods(objects, RESERVATIONS) == []
    (tenant,) = pods(objects, "team-")
    assert tenant["status"]["phase"] == "Running"
    (request,) = (each for each in objects if each["kind"] == "BindRequest")
    assert request["status"]["phase"] == "Succeeded"
    assert request["spec"]["selectedGPUGroups"] != groups_of(tenant)


def test_the_webhook_refuses_what_no_scheduler_could_read():
    refused = {pod["metadata"]["name"]: message for pod, message in kai_player.refused()}
    assert [name for name, message in refused.items() if not message] == ["tiny"]  # 1e-3
    assert "cannot request both GPU and GPU memory" in refused["both"]
    assert "positive number smaller than 1.0" in refused["one"]
    assert "positive integer greater than 0" in refused["suffix"]


def test_the_record_names_nothing_of_the_machine():
    for record in (kai_player.STORY, kai_player.RACE, kai_player.HAMICORE):
        for moment in kai_player.moments(record):
            _, obj = moment.event
            if obj["kind"] == "Node":
                info = obj["status"].get("nodeInfo", {})
                assert not {"machineID", "systemUUID", "bootID", "kernelVersion"} & info.keys()
            assert "managedFields" not in json.dumps(obj["metadata"])
