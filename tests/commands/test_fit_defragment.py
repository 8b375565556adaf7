"""`vgpu fit --defragment`: whose pods the plan evicts, and what it shows."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from vgpucli.main import main


def owner(kind, name, group="apps/v1"):
    return {"apiVersion": group, "kind": kind, "name": name, "uid": name, "controller": True}


def pod(name, on, gpu, memory, *, priority=0, kind="ReplicaSet", **options):
    group = "batch/v1" if kind == "Job" else "apps/v1"
    if kind:
        options["owner"] = owner(kind, name, group)
    made = sample.volcano_pod(name, on, gpu, memory, **options)
    made["spec"]["priority"] = priority
    return made


def budget(name, allowed, app="web"):
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    }


NODES = (sample.volcano_node("gpu-1", 1), sample.volcano_node("gpu-2", 3))
"""Two GPUs of 46068 MiB each."""

WEB = {"labels": {"app": "web"}}
ITEMS = (
    *NODES,
    pod("a", "gpu-1", 1, 30000),
    pod("b", "gpu-1", 2, 30000),
    pod("c", "gpu-2", 3, 18000, **WEB),
    pod("d", "gpu-2", 4, 20000, kind=""),
    budget("web", 1),
)
"""40000 MiB are free on no GPU; without c they are, and c fits beside d."""

OF_40_GB = ("--request", "volcano.sh/vgpu-number=1", "--request", "volcano.sh/vgpu-memory=40000")


def run(*words):
    result = CliRunner().invoke(main, ("fit", *words, "--defragment"))
    assert result.exit_code == 0, result.output
    return result.output


def plan(*words):
    return json.loads(run(*words, *OF_40_GB, "-o", "json"))["defragmentation"]


def evicted(*words):
    """The planned evictions, with the nodes of their replacements; None without a plan."""
    found = plan(*words)
    names = {each["name"]: each["target"] for each in found["evictions"]}
    return names if found["fits"] else None


def test_the_pod_whose_replacement_fits_elsewhere_is_evicted(source):
    found = plan(*source, "--pods", "1")
    assert found["fits"]
    assert found["complete"]
    (eviction,) = found["evictions"]
    assert (eviction["name"], eviction["node"], eviction["budget"]) == ("c", "gpu-2", "web")
    assert (eviction["ownerKind"], eviction["ownerName"]) == ("ReplicaSet", "c")
    assert eviction["target"] == "gpu-2"
    assert found["nodes"][0]["name"] == "gpu-2"
    assert (found["evictable"], found["obstacles"]) == (3, {"bare_pod": 1})


def test_the_text_has_the_plan_and_those_that_are_not_evicted(dump):
    text = run(*dump, *OF_40_GB, "--pods", "1")
    assert "Defragmentation plan: after 1 eviction 1 pod fits. Nothing was evicted." in text
    assert "ml/c   gpu-2  ReplicaSet c  0         gpu-2" in text
    assert "The wanted pods then go to gpu-2 (1)." in text
    assert "Create them before the evictions" not in text
    assert "  1 pod: no controller would recreate the pod\n" in text


def test_replacements_that_would_take_the_freed_gpus_are_reported(tmp_path):
    small = pod("c", "gpu-2", 3, 16000)
    path = dumped(tmp_path, (*ITEMS[:2], pod("a", "gpu-1", 1, 30000), *ITEMS[3:4], small))
    assert not plan(*path, "--pods", "2")["anyOrder"]
    assert "Create them before the evictions" in run(*path, *OF_40_GB, "--pods", "2")


def test_nothing_is_evicted_for_pods_that_fit_already(dump):
    assert "Defragmentation plan: no eviction is needed." in run(
        *dump,
        "--request",
        "volcano.sh/vgpu-number=1",
        "--pods",
        "1",
        *OF_40_GB[2:3],
        "volcano.sh/vgpu-memory=1000",
    )


def test_a_pod_without_another_place_is_evicted_only_for_a_more_important_one(dump):
    assert evicted(*dump, "--pods", "2") is None
    assert "No defragmentation plan was found after which 2 pods fit." in run(
        *dump, *OF_40_GB, "--pods", "2"
    )
    found = plan(*dump, "--pods", "2", "--priority", "1")
    assert found["fits"]
    refusals = [each["refusal"] for each in found["evictions"] if not each["target"]]
    assert len(refusals) == 1
    assert "no GPU has enough free memory" in refusals[0]


@pytest.mark.parametrize(
    ("c", "others", "reason"),
    [
        (pod("c", "gpu-2", 3, 16000, priority=1), (), "higher_priority"),
        (pod("c", "gpu-2", 3, 16000, kind="Job"), (), "job_pod"),
        (pod("c", "gpu-2", 3, 16000, kind="DaemonSet"), (), "daemon_set_pod"),
        (pod("c", "gpu-2", 3, 16000, kind="Unknown"), (), "owner_kind"),
        (pod("c", "gpu-2", 3, 16000, namespace="kube-system"), (), "protected_namespace"),
        (pod("c", "gpu-2", 3, 16000, **WEB), (budget("none", 0),), "disruption_budget"),
        (
            pod("c", "gpu-2", 3, 16000, **WEB),
            (budget("one", 1), budget("two", 1)),
            "several_budgets",
        ),
        (
            pod("c", "gpu-2", 3, 16000),
            ({**budget("bad", 1), "status": {"disruptionsAllowed": "x"}},),
            "budget_unread",
        ),
    ],
)
def test_who_is_not_evicted(tmp_path, c, others, reason):
    """Without c there is no plan: the others' replacements have no place of their size."""
    items = (
        *NODES,
        pod("a", "gpu-1", 1, 45000, kind=""),
        pod("b", "gpu-1", 2, 20000, kind=""),
        c,
        pod("d", "gpu-2", 4, 45000, kind=""),
    )
    words = (*dumped(tmp_path, (*items, *others)), "--pods", "1")
    assert evicted(*words) is None
    assert plan(*words)["obstacles"][reason] == 1
    free = pod("c", "gpu-2", 3, 16000, **WEB)
    assert evicted(
        *dumped(tmp_path, (*items[:4], free, *items[5:], budget("web", 1))), "--pods", "1"
    )


def test_a_budget_counts_all_evictions_of_the_plan(tmp_path):
    items = (
        *NODES,
        pod("a", "gpu-1", 1, 16000, **WEB),
        pod("b", "gpu-1", 2, 20000, kind=""),
        pod("c", "gpu-2", 3, 16000, **WEB),
        pod("d", "gpu-2", 4, 20000, kind=""),
    )
    two = (*dumped(tmp_path, (*items, budget("web", 2))), "--pods", "2")
    assert evicted(*two).keys() == {"a", "c"}
    one = (*dumped(tmp_path, (*items, budget("web", 1))), "--pods", "2")
    assert evicted(*one) is None
    assert len(evicted(*one[:-1], "1")) == 1


def test_a_dump_without_budgets_has_a_note(tmp_path):
    words = (*OF_40_GB, "--pods", "1", "--defragment")
    without = CliRunner().invoke(main, ("fit", *dumped(tmp_path, ITEMS[:-1]), *words))
    assert "note: there are no PodDisruptionBudgets in the dump" in without.stderr
    with_one = CliRunner().invoke(main, ("fit", *dumped(tmp_path, ITEMS), *words))
    assert "PodDisruptionBudgets" not in with_one.output


def test_the_less_important_of_pods_without_another_place_is_evicted(tmp_path):
    items = (
        *NODES,
        *(pod(f"p{gpu}", "gpu-1", gpu, 40000, priority=5) for gpu in (1, 2)),
        pod("p3", "gpu-2", 3, 40000, priority=3),
        pod("p4", "gpu-2", 4, 40000, priority=4),
    )
    words = (*dumped(tmp_path, items), "--pods", "1", "--priority", "5")
    assert evicted(*words) == {"p3": ""}


def test_a_quota_is_no_reason_to_evict(tmp_path):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"hard": {"requests.volcano.sh/vgpu-number": "0"}},
    }
    found = plan(*dumped(tmp_path, (*ITEMS, quota)), "--pods", "1")
    assert (found["fits"], found["evictable"]) == (False, 0)


def test_whole_gpus_are_freed_by_the_gpu_with_the_fewest_pods(tmp_path):
    """Pods of all GPUs together are too many for a search of all their sets."""
    healthy = (True,) * 4
    pods = [
        pod(f"p{gpu}-{number}", "gpu-1", 1 + gpu, 4000)
        for gpu in range(4)
        for number in range(3 if gpu == 2 else 6)
    ]
    items = (sample.volcano_node("gpu-1", 1, healthy), *pods)
    words = ("--request", "volcano.sh/vgpu-number=1", "--request", "volcano.sh/vgpu-memory=46000")
    output = run(*dumped(tmp_path, items), *words, "--pods", "1", "-o", "json")
    found = json.loads(output)["defragmentation"]
    assert {each["name"] for each in found["evictions"]} == {"p2-0", "p2-1", "p2-2"}
    assert all(each["target"] for each in found["evictions"])
