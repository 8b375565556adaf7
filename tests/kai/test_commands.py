"""The commands on what a real KAI Scheduler wrote: each reads its dumps, and they agree."""

import pytest

from tests.kai.kai_dumps import document, is_reservation, objects_of, printed
from tests.support import kai_player
from vgpu.model.units import MIB

RECORDS = (kai_player.STORY, kai_player.RACE, kai_player.HAMICORE)
UNKNOWN = "on an unknown GPU"


@pytest.mark.parametrize("record", RECORDS)
def test_each_command_reads_the_last_step_of_each_record(tmp_path, record):
    objects = objects_of(kai_player.steps(record)[-1], record)
    pod = next(each["metadata"]["name"] for each in objects if each["kind"] == "Pod"
               and each["metadata"]["namespace"] == "team-a")  # fmt: skip
    for words in (
        ("inspect",),
        ("inspect", "--by", "namespace"),
        ("explain", "node", "node2"),
        ("explain", "pod", f"team-a/{pod}"),
        ("reconcile", "plan"),
        ("doctor",),
    ):
        assert document(objects, tmp_path, *words)["apiVersion"], words


DELETED = objects_of("a_reservation_is_deleted")
HEALTHY = objects_of()


def test_explain_knows_the_gpus_of_tenants_as_inspect_does(tmp_path):
    for words in (("inspect",), ("explain", "node", "node2"), ("inspect", "--by", "namespace")):
        for objects in (HEALTHY, DELETED):
            assert UNKNOWN not in printed(objects, tmp_path, *words), words
    (node,) = [each for each in document(HEALTHY, tmp_path, "inspect")["nodes"] if each["devices"]]
    for device in node["devices"]:
        gpu = printed(HEALTHY, tmp_path, "explain", "gpu", f"node2/{device['uuid']}")
        assert UNKNOWN not in gpu


def test_a_share_that_a_config_map_shows_is_counted_once(tmp_path):
    whole = document(DELETED, tmp_path, "inspect")
    (room,) = whole["rooms"]
    assert room["devices"] == sum(len(node["devices"]) for node in whole["nodes"]) == 2
    groups = document(DELETED, tmp_path, "inspect", "--by", "namespace")
    (team,) = [each for each in groups["groups"] if each["name"] == "team-a"]
    assert team["requested"]["memoryBytes"] == team["assigned"]["memoryBytes"] > 15000 * MIB


@pytest.mark.parametrize("name", ["team-a/train-0", "team-a/multi-0", "team-b/infer-0"])
def test_each_pod_of_a_group_is_explained_with_its_conflict(tmp_path, name):
    explained = document(DELETED, tmp_path, "explain", "pod", name)
    (reserved,) = [each for each in explained["steps"] if each["step"] == "reserved"]
    assert [each["code"] for each in reserved["reasons"]] == ["group_unreserved"]
    assert "fails at step reserved" in explained["conclusion"]
    assert "which is gone or being deleted" in str(explained["steps"])


def test_explain_node_names_the_conflicts_of_its_groups(tmp_path):
    assert "remark group_unreserved" in printed(DELETED, tmp_path, "explain", "node", "node2")


def test_a_part_that_is_printed_as_zero_is_a_remark_of_a_pod_that_runs(tmp_path):
    objects = objects_of("a_node_lacks_its_label", kai_player.HAMICORE)
    explained = document(objects, tmp_path, "explain", "pod", "team-b/tiny-0")
    assert {each["outcome"] for each in explained["steps"]} == {"passed"}
    assert explained["conclusion"].startswith("the pod runs; KAI Scheduler prints")
    assert "at least 0.01" in explained["advice"]


def test_the_resource_of_a_node_of_kai_is_known(tmp_path):
    explained = document(HEALTHY, tmp_path, "explain", "node", "node2")
    (plugin,) = [each for each in explained["steps"] if each["step"] == "plugin"]
    assert (plugin["outcome"], plugin["evidence"]) == ("passed", ["nvidia.com/gpu: 3"])


def reservations(objects):
    return [each["metadata"] for each in objects if is_reservation(each)]


def test_a_reservation_pod_is_explained_with_its_tenants(tmp_path):
    name = f"kai-resource-reservation/{reservations(HEALTHY)[0]['name']}"
    text = " ".join(printed(HEALTHY, tmp_path, "explain", "pod", name).split())
    assert "it keeps GPU-" in text
    assert "team-a/multi-0" in text
    assert "never delete it" in text
    assert "keeps a GPU for other pods" in text
    assert "not checked" not in text


def test_the_tenants_of_a_reservation_pod_that_is_being_deleted_are_warned(tmp_path):
    objects = objects_of()
    for metadata in reservations(objects):
        metadata["deletionTimestamp"] = "2026-11-28T20:40:00Z"
    found = document(objects, tmp_path, "inspect")["conflicts"]
    assert {each["type"] for each in found} == {"group_unreserved"}
    assert all("is being deleted" in each["detail"] for each in found)
    explained = document(objects, tmp_path, "explain", "pod", "team-a/train-0")
    assert "fails at step reserved" in explained["conclusion"]
    plan = document(objects, tmp_path, "reconcile", "plan")
    assert plan["actions"] == []
    assert {each["reason"] for each in plan["findings"]} == {"group_unreserved"}


def test_fit_names_the_scheduler_of_a_pod_that_it_cannot_place(tmp_path):
    text = " ".join(printed(HEALTHY, tmp_path, "fit", "--pod", "team-a/train-0").split())
    assert "the pod is one of KAI Scheduler, by runai-gpu-group" in text


def test_an_unknown_size_is_not_shown_as_zero(tmp_path):
    objects = objects_of("a_node_lacks_its_label", kai_player.HAMICORE)
    text = printed(objects, tmp_path, "inspect")
    assert "the memory of 1 GPU is unknown" in text
    assert "?/?" in text
    without_nodes = [each for each in HEALTHY if each["kind"] != "Node"]
    text = " ".join(printed(without_nodes, tmp_path, "inspect").split())
    assert "2 GPUs, of unknown memory" in text
    assert "0.0 GiB free of 0.0 GiB" not in text
    assert "of 0 units" not in text
