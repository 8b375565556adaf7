"""What a real Kueue wrote, event by event, and what our commands make of it.

The record is that of tests/cluster/test_queues.py (tests/golden/queues).
"""

import json
import lzma
from functools import cache

import pytest
from click.testing import CliRunner

from tests.support.environment import ROOT
from tests.support.kueue_counts import counted_by_kueue, differences
from vgpu.inventory import Units
from vgpu.quota.queue_amounts import queue_numbers
from vgpu.quota.queue_line import AmountKind
from vgpu.quota.resources import MEMORY
from vgpu.quota.tree import QuotaLevel
from vgpucli.inspect.queues import queues_view
from vgpucli.inspect.read import from_files
from vgpucli.main import main

RECORD = ROOT / "tests" / "golden" / "queues" / "kueue-0.17.0.jsonl.xz"
CONFIG = "kueue-manager-config"


@cache
def record():
    return [json.loads(line) for line in lzma.decompress(RECORD.read_bytes()).splitlines()]


def key(obj):
    meta = obj["metadata"]
    return obj["kind"], meta.get("namespace", ""), meta["name"]


def states():
    """Each event with its step and the objects after it; the last of a step has its metrics."""
    objects = {}
    for entry in record():
        for number, (kind, obj) in enumerate(entry["events"], 1):
            if kind == "DELETED":
                objects.pop(key(obj), None)
            else:
                objects[key(obj)] = obj
            is_last = number == len(entry["events"])
            yield entry["step"], [*objects.values()], entry["series"] if is_last else None


def written(objects, folder):
    file = folder / "dump.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    return str(file)


def after(step, without=()):
    """The objects at the end of a step, but those of some kinds or names."""
    [objects] = [
        objects for name, objects, series in states() if name == step and series is not None
    ]
    return [obj for obj in objects if not {obj["kind"], obj["metadata"]["name"]} & {*without}]


def run(*words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(objects, folder):
    return json.loads(
        run("inspect", "--by", "queue", "-o", "json", "--from", written(objects, folder))
    )


def numbers(objects, folder):
    """What metrics have of the queues; a plan has all pods, and a dump may have none."""
    read = from_files((written(objects, folder),), queues=True)
    view, _ = queues_view(read, Units())
    found = queue_numbers(view.queues)
    assert found.left_out == 0
    return {
        (each.queue.level, each.queue.name, each.resource.flavor, each.resource.resource, kind): n
        for each in found.amounts
        for kind, n in each.amounts.items()
        if read.pods_read or kind is not AmountKind.HELD
    }


def shown_numbers(shown):
    """The same of the document."""
    return {
        (queue["kind"], queue["name"], quota["flavor"], quota["resource"], kind): value
        for queue in shown["queues"]
        for quota in queue["quotas"]
        for kind in AmountKind
        if (value := quota.get(kind, {}).get("value")) is not None
    }


def test_after_each_step_the_queues_are_those_of_kueues_status_and_metrics(tmp_path):
    steps = 0
    for step, objects, series in states():
        if not series:
            continue
        steps += 1
        shown = document(objects, tmp_path)
        assert differences(shown, counted_by_kueue(objects)) == [], step
        assert numbers(objects, tmp_path) == shown_numbers(shown), step
        amounts = {
            (queue["name"], quota["flavor"], quota["resource"]): quota
            for queue in shown["queues"]
            if queue["kind"] == "ClusterQueue"
            for quota in queue["quotas"]
        }
        fields = {
            "kueue_cluster_queue_resource_reservation": "used",
            "kueue_cluster_queue_nominal_quota": "nominal",
        }
        for name, queue, flavor, resource, value in series:
            if field := fields.get(name):
                assert amounts[queue, flavor, resource][field]["value"] == value, (step, queue)
    assert steps == 11


def test_after_each_event_what_the_pods_of_queues_hold_sums_over_the_tree(tmp_path):
    most = 0
    for step, objects, _ in states():
        read = from_files((written(objects, tmp_path),), queues=True)
        view, _ = queues_view(read, Units())
        tree = view.queues.tree
        for node in tree.nodes.values():
            children = tree.children(node.name)
            for flavor in ("", "t4"):
                own = node.held.get(flavor, {}).get(MEMORY, 0)
                below = sum(tree.held(each.name, flavor).get(MEMORY, 0) for each in children)
                assert tree.held(node.name, flavor).get(MEMORY, 0) == own + below, step
        roots = [node for node in tree.roots() if node.name.level is QuotaLevel.COHORT]
        most = max(most, *(tree.held(root.name, "t4").get(MEMORY, 0) for root in roots), 0)
    assert most == (2 * 4000 + 4 * 8000) * 2**20, "two jobs of a have run at the same time"


WAITING = [
    ("a_job_never_fits", "team-a/never", "queue_never_fits", "100 nvidia.com/gpu"),
    (
        "a_queue_reclaims_its_quota",
        "team-a/borrows",
        "queue_full",
        "2 free at Cohort org: 2 more needed",
    ),
    ("a_queue_is_drained", "team-b/reclaims", "queue_stopped", "stopPolicy HoldAndDrain"),
    (
        "a_strict_queue_has_a_head_that_does_not_fit",
        "team-c/head",
        "queue_full",
        "1 free at ClusterQueue c: 1 more needed",
    ),
    (
        "a_strict_queue_has_a_head_that_does_not_fit",
        "team-c/behind",
        "queue_behind",
        "is first in ClusterQueue c",
    ),
    (
        "a_queue_of_no_cluster_queue_and_an_inactive_workload",
        "team-c/lost",
        "queue_missing",
        "ClusterQueue nowhere does not exist",
    ),
    (
        "a_queue_of_no_cluster_queue_and_an_inactive_workload",
        "team-b/off",
        "workload_inactive",
        "spec.active",
    ),
]


@pytest.mark.parametrize(("step", "name", "code", "detail"), WAITING)
def test_a_suspended_job_is_explained_by_its_queue(tmp_path, step, name, code, detail):
    dump = written(after(step), tmp_path)
    explained = json.loads(run("explain", "workload", name, "-o", "json", "--from", dump))
    (reason,) = explained["steps"][0]["reasons"]
    assert reason["code"] == code
    assert detail in explained["conclusion"]


def test_who_has_borrowed_the_quota_of_a_queue_is_named(tmp_path):
    """b asks for its own nominal quota, of which a has a part."""
    objects = list(after("a_job_borrows"))
    objects += [
        each
        for each in after("a_queue_is_drained")
        if each["kind"] == "Workload" and each["metadata"]["name"].startswith("job-reclaims")
    ]
    dump = written(objects, tmp_path)
    (step,) = json.loads(
        run("explain", "workload", "team-b/reclaims", "-o", "json", "--from", dump)
    )["steps"]
    assert [reason["code"] for reason in step["reasons"]] == ["queue_full"]
    texts = [text for text in step["evidence"] if "of its own 4" in text]
    assert texts == [
        (
            "ClusterQueue b uses 0 of its own 4 nvidia.com/gpu of flavor t4; at least 2 are lent to"
            " others"
        ),
        (
            "ClusterQueue a uses 6 of its own 4 nvidia.com/gpu of flavor t4; 2 are borrowed from"
            " cohort ml"
        ),
    ]


def test_a_preempted_job_names_the_one_that_reclaimed_the_quota(tmp_path):
    dump = written(after("a_queue_reclaims_its_quota"), tmp_path)
    text = " ".join(run("explain", "workload", "team-a/borrows", "--from", dump).split())
    assert "was preempted by Workload team-b/job-reclaims" in text


def test_a_pod_with_kueues_gates_is_explained_by_its_queue_and_not_by_nodes(tmp_path):
    step = "a_plain_pod_is_admitted_and_another_waits"
    dump = written(after(step), tmp_path)
    explained = json.loads(run("explain", "pod", "team-a/waits", "-o", "json", "--from", dump))
    assert (
        "7 nvidia.com/gpu of flavor t4 requested, 1 free at Cohort org" in (explained["conclusion"])
    )
    steps = {each["step"]: each for each in explained["steps"]}
    assert [reason["code"] for reason in steps["quota"]["reasons"]] == ["queue_full"]
    assert steps["nodes"]["reasons"] == []
    assert steps["reserved"]["reasons"][0]["code"] == "gated"
    shown = json.loads(run("inspect", "-o", "json", "--from", dump))
    reasons = {each["pod"]["name"]: each["reason"] for each in shown["pending"]}
    assert reasons["waits"] == "gated"


def test_without_its_workload_a_gated_pod_names_what_was_not_read(tmp_path):
    step = "a_plain_pod_is_admitted_and_another_waits"
    dump = written(after(step, without={"Workload"}), tmp_path)
    text = " ".join(run("explain", "pod", "team-a/waits", "--from", dump).split())
    assert "scheduling gate kueue.x-k8s.io/admission, which Kueue sets and removes" in text
    assert "the Workload of the pod was not read: kubectl get workloads" in text
    assert "there are no Workloads in the dump" in text


STRICT = "a_strict_queue_has_a_head_that_does_not_fit"


@pytest.mark.parametrize(
    ("kinds", "name", "code", "detail"),
    [
        ({"ClusterQueue"}, "team-c/head", "queue_full", "insufficient unused quota"),
        ({"LocalQueue"}, "team-c/head", "queue_full", "insufficient unused quota"),
        ({"ClusterQueue"}, "team-c/behind", "", "needs ClusterQueue c: kubectl get clusterqueues"),
        (
            {"LocalQueue"},
            "team-c/behind",
            "",
            "needs LocalQueue team-c/main: kubectl get localqueues",
        ),
        ({"ClusterQueue"}, "team-b/reclaims", "queue_stopped", "ClusterQueueIsInactive"),
    ],
)
def test_of_a_queue_that_was_not_read_only_kueues_own_words_are_known(
    tmp_path, kinds, name, code, detail
):
    objects = after(STRICT, without=kinds)
    explained = json.loads(
        run("explain", "workload", name, "-o", "json", "--from", written(objects, tmp_path))
    )
    (step,) = explained["steps"]
    assert [reason["code"] for reason in step["reasons"]] == [code] * bool(code)
    assert detail in explained["conclusion"]
    assert "does not exist" not in json.dumps(explained)
    assert f"there are no {min(kinds)}s in the dump" in explained["notes"]


def test_an_error_names_the_workloads_as_not_read(tmp_path):
    dump = written(after(STRICT, without={"Workload"}), tmp_path)
    result = CliRunner().invoke(main, ("explain", "workload", "team-a/waits", "--from", dump))
    assert result.exit_code == 1
    assert "it is not known whether there is a Workload team-a/waits" in result.output
    assert "there are no Workloads in the dump" in result.output


@pytest.mark.parametrize("kind", ["LocalQueue", "ClusterQueue"])
def test_queues_that_were_not_read_are_no_remark_and_have_no_limit(tmp_path, kind):
    shown = document(after(STRICT, without={kind}), tmp_path)
    remarks = " ".join(shown["remarks"])
    assert "differ" not in remarks
    assert "does not exist" not in remarks
    by_name = {queue["name"]: queue for queue in shown["queues"]}
    of_team = by_name["team-a/main"]
    is_known = kind == "LocalQueue"
    assert of_team["parent"] == "a"
    limits = {quota["limit"]["value"] for quota in of_team["quotas"]}
    assert (limits == {None}) != is_known


def changed(objects, change):
    """A copy of the objects, after ``change`` of each."""
    objects = json.loads(json.dumps(objects))
    for obj in objects:
        change(obj)
    return objects


def of_queue(shown, name, amount):
    """An amount of a queue of a document, by resource."""
    (queue,) = (each for each in shown["queues"] if each["name"] == name)
    return {each["resource"]: each[amount] for each in queue["quotas"]}


def test_a_cluster_queue_that_cannot_be_read_makes_the_limits_of_its_cohort_unknown(tmp_path):
    def breaks(obj):
        if (obj["kind"], obj["metadata"]["name"]) == ("ClusterQueue", "b"):
            obj["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "9e99"

    objects = changed(after(STRICT), breaks)
    shown = document(objects, tmp_path)
    for name in ("org", "ml", "a", "team-a/main"):
        for amount in ("limit", "lent"):
            assert {each["value"] for each in of_queue(shown, name, amount).values()} == {None}
    sources = {each["source"] for each in of_queue(shown, "a", "limit").values()}
    assert sources == {"not all ClusterQueues were read"}
    dump = written(objects, tmp_path)
    explained = json.loads(run("explain", "workload", "team-c/head", "-o", "json", "--from", dump))
    assert "insufficient unused quota for nvidia.com/gpu" in explained["conclusion"]
    assert "0 free" not in json.dumps(explained)


def test_a_workload_that_cannot_be_read_is_a_note_with_its_namespace(tmp_path):
    def breaks(obj):
        if obj["kind"] == "Workload" and obj["metadata"]["name"].startswith("job-fits"):
            usage = obj["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
            usage["nvidia.com/gpu"] = "-1"

    notes = document(changed(after("its_pods_run"), breaks), tmp_path)["notes"]
    assert any(each.startswith("Workload team-a/job-fits-") for each in notes)


def test_whole_gpus_of_nvidias_plugin_are_held_and_their_memory_is_unknown(tmp_path):
    def whole(obj):
        marks = obj["metadata"].get("annotations", {})
        if obj["kind"] == "Node":
            obj["metadata"]["annotations"] = {}
            for field in ("capacity", "allocatable"):
                obj["status"][field]["nvidia.com/gpu"] = "8"
        if obj["kind"] == "Pod":
            for key in [each for each in marks if each.startswith("hami.io")]:
                del marks[key]
            for container in obj["spec"]["containers"]:
                for amounts in container.get("resources", {}).values():
                    for part in ("gpumem", "gpucores"):
                        amounts.pop(f"nvidia.com/{part}", None)

    shown = document(changed(after("its_pods_run"), whole), tmp_path)
    for name in ("team-a/main", "a", "ml"):
        held = {key: each["value"] for key, each in of_queue(shown, name, "held").items()}
        assert held == {"nvidia.com/gpu": 2, "nvidia.com/total-gpumem": None}
    assert {each["value"] for each in of_queue(shown, "b", "held").values()} == {0}


def test_without_pods_nothing_is_known_to_be_held(tmp_path):
    shown = document(after(STRICT, without={"Pod"}), tmp_path)
    held = [quota["held"] for queue in shown["queues"] for quota in queue["quotas"]]
    assert {(each["value"], each["source"]) for each in held} == {(None, "the pods were not read")}


def of_team_a(objects):
    """What a list of one namespace has, with what is in none."""
    return [each for each in objects if each["metadata"].get("namespace", "team-a") == "team-a"]


@pytest.mark.parametrize("kinds", [{"LocalQueue", "Workload", "Pod"}, {"LocalQueue"}])
def test_local_queues_of_one_namespace_prove_no_difference_of_counts(tmp_path, kinds):
    objects = after(STRICT)
    own = [each for each in objects if each["kind"] not in kinds or each in of_team_a(objects)]
    assert "differ" not in " ".join(document(own, tmp_path)["remarks"])


def test_a_queue_that_counts_another_amount_than_its_local_queues_is_a_remark(tmp_path):
    def counts_more(obj):
        if (obj["kind"], obj["metadata"]["name"]) == ("ClusterQueue", "c"):
            obj["status"]["flavorsReservation"][0]["resources"][0]["total"] = "7"

    remarks = document(changed(after(STRICT), counts_more), tmp_path)["remarks"]
    assert len([text for text in remarks if "Kueue's own counts differ" in text]) == 1


def test_of_a_namespace_only_its_own_remarks_and_findings_are_shown(tmp_path):
    dump = written(after("a_job_ends"), tmp_path)
    words = ("inspect", "--by", "queue", "-o", "json", "--from", dump)
    shown, every = (json.loads(run(*words, *more)) for more in (("-n", "team-c"), ()))
    assert {each["object"].partition("/")[0] for each in every["findings"]} >= {
        "Workload team-a",
        "Workload team-c",
    }
    assert {each["object"].partition("/")[0] for each in shown["findings"]} == {"Workload team-c"}
    assert not [text for text in shown["remarks"] if "team-a" in text or "ClusterQueue a" in text]
    text = run("inspect", "--by", "queue", "-n", "nobody", "--from", dump)
    assert text.startswith("No queue of namespace nobody was read.")
    assert "! " not in text


def test_queues_of_two_dumps_count_once(tmp_path):
    dump = written(after(STRICT), tmp_path)
    words = ("inspect", "--by", "queue", "-o", "json", "--from", dump)
    one, two = (json.loads(run(*words, *more)) for more in ((), ("--from", dump)))
    assert one["queues"] == two["queues"]
    assert one["remarks"] == two["remarks"]


def test_borrowing_and_a_stopped_queue_are_remarks(tmp_path):
    dump = written(after("a_queue_is_drained"), tmp_path)
    lines = run("inspect", "--by", "queue", "--from", dump).splitlines()
    text = "! ClusterQueue a uses 6 of its own 4 nvidia.com/gpu of flavor t4; 2 are borrowed"
    assert any(line.startswith(text) for line in lines)
    assert any(line.startswith("! ClusterQueue b admits nothing: Stopped") for line in lines)


def test_workloads_that_hold_quota_and_no_gpu_are_remarks(tmp_path):
    dump = written(after("a_job_ends"), tmp_path)
    lines = run("inspect", "--by", "queue", "--from", dump).splitlines()
    idle = [line.split() for line in lines if "[quota_reserved_idle]" in line]
    assert [(words[2].rpartition("-")[0], words[5]) for words in idle] == [
        ("team-a/job-borrows", "4"),
        ("team-c/job-head", "2"),
    ]


@pytest.mark.parametrize("is_annotated", [True, False])
def test_the_workload_of_a_jobset_holds_what_pods_of_its_jobs_hold(tmp_path, is_annotated):
    objects = json.loads(json.dumps(after("its_pods_run")))
    names = {}
    for obj in objects:
        for owner in obj["metadata"].get("ownerReferences", ()):
            if obj["kind"] == "Workload" and owner["kind"] == "Job":
                names[owner["uid"]] = obj["metadata"]["name"]
                owner["kind"], owner["uid"] = "JobSet", f"set-{owner['uid']}"
    for obj in objects:
        owners = obj["metadata"].get("ownerReferences", ())
        if obj["kind"] == "Pod" and owners and owners[0]["uid"] in names:
            marks = obj["metadata"].setdefault("annotations", {})
            marks.pop("kueue.x-k8s.io/workload", "")
            if is_annotated:
                marks["kueue.x-k8s.io/workload"] = names[owners[0]["uid"]]
    assert names
    assert not [text for text in document(objects, tmp_path)["remarks"] if "hold nothing" in text]


def test_a_quota_of_a_resource_that_nothing_can_have_is_a_remark(tmp_path):
    objects = json.loads(
        json.dumps(after("declare")).replace(
            '"name": "nvidia.com/gpu"', '"name": "nvidia.com/gpux"'
        )
    )
    lines = run("inspect", "--by", "queue", "--from", written(objects, tmp_path)).splitlines()
    unknown = [line for line in lines if "no node has it" in line]
    assert [line.split(":")[0] for line in unknown] == ["! nvidia.com/gpux"]


def test_only_the_queues_of_a_namespace_are_shown_with_what_is_above_them(tmp_path):
    dump = written(after("a_job_ends"), tmp_path)
    words = ("inspect", "--by", "queue", "-n", "team-c", "-o", "json", "--from", dump)
    names = [queue["name"] for queue in json.loads(run(*words))["queues"]]
    assert names == ["org", "hpc", "c", "team-c/main", "team-c/lost"]


def test_without_the_configuration_a_note_reports_amounts_before_transformation(tmp_path):
    objects = after("a_strict_queue_has_a_head_that_does_not_fit", without={CONFIG})
    shown = document(objects, tmp_path)
    assert any("transformations unknown" in note for note in shown["notes"])
    units = {
        quota["resource"]: quota["held"]
        for queue in shown["queues"]
        if queue["name"] == "a"
        for quota in queue["quotas"]
        if quota["flavor"]
    }
    assert units["nvidia.com/gpu"]["value"] == 2
    assert units["nvidia.com/total-gpumem"]["value"] is None


def test_a_dump_without_kueue_has_no_queue(tmp_path):
    kinds = {"ClusterQueue", "LocalQueue", "Cohort", "Workload", "ResourceFlavor"}
    objects = after("a_job_ends", without=kinds)
    assert document(objects, tmp_path)["queues"] == []
    text = run("inspect", "--by", "queue", "--from", written(objects, tmp_path))
    assert text.startswith("No queue of Kueue, Volcano or KAI Scheduler was read.")


def test_objects_of_the_older_version_are_read_alike(tmp_path):
    """v1beta1 names the cohort of a ClusterQueue otherwise, and the rest of what is read alike."""
    objects = after("a_queue_is_drained")
    older = json.loads(
        json.dumps(objects).replace("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
    )
    for obj in older:
        if obj["kind"] == "ClusterQueue":
            obj["spec"]["cohort"] = obj["spec"].pop("cohortName")
    assert document(older, tmp_path)["queues"] == document(objects, tmp_path)["queues"]
