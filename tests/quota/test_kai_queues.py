"""Queues of KAI Scheduler in the tree of quotas: what a real KAI wrote, and made-up queues."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.quota.volcano_samples import queue as volcano_queue
from tests.support import kai_player
from tests.support import sample_cluster as sample
from tests.support.kai_pods import LABEL_MIB, kai_node, replaced, tenant
from vgpu.inventory import Units
from vgpu.kube.kai_groups import KaiGroup, KaiQueue, KaiQuota
from vgpu.model.objects import Container
from vgpu.quota.kai_tree import GPU, GPU_MEMORY, KaiQueues
from vgpu.quota.queue_amounts import queue_numbers
from vgpu.quota.queue_line import AmountKind
from vgpu.quota.queues import QueueSystems, all_queues
from vgpucli.inspect.queues import queues_view
from vgpucli.inspect.read import from_files
from vgpucli.main import main

STORY = "the_gpu_is_of_a_named_container"


def written(objects, folder):
    path = folder / "dump.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    os.utime(path, (sample.NOW, sample.NOW))
    return str(path)


def by_queue(objects, folder, *words):
    words = ("inspect", "--by", "queue", "-o", "json", "--from", written(objects, folder), *words)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shown(document, name, resource=GPU, system="KAI Scheduler"):
    """The amounts of a queue, by their kind."""
    (found,) = (q for q in document["queues"] if (q["name"], q["system"]) == (name, system))
    (quota,) = (each for each in found["quotas"] if each["resource"] == resource)
    return {kind: each["value"] for kind, each in quota.items() if isinstance(each, dict)}


def test_queues_have_what_a_real_kai_wrote_and_what_their_pods_hold(tmp_path):
    """Two shares of 0.2 on two GPUs: 0.4 are held and requested, and KAI has 0.2 allocated."""
    document = by_queue(kai_player.after(STORY), tmp_path)
    of_team, of_org = shown(document, "team-a"), shown(document, "org")
    assert (of_team["used"], of_team["held"], of_team["requested"]) == (700, 900, 900)
    assert (of_team["nominal"], of_team["limit"]) == (1000, None)
    assert shown(document, "tight")["limit"] == 300
    # 4096 MiB of 15360 are 0.2667 GPUs, and KAI requests them in MiB.
    assert shown(document, "team-b")["used"] == 467
    assert shown(document, "team-b", GPU_MEMORY)["requested"] == 4096
    assert shown(document, "team-b", GPU_MEMORY)["used"] is None
    of_teams = [shown(document, name)["held"] for name in ("team-a", "team-b", "tight", "small")]
    assert of_org["held"] == sum(of_teams)
    assert (of_org["used"], document["system"]) == (1167, "KAI Scheduler")
    weights = {quota["overQuotaWeight"] for q in document["queues"] for quota in q["quotas"]}
    assert weights == {1, None}


def test_what_waits_is_of_pod_groups_that_have_nothing(tmp_path):
    document = by_queue(kai_player.after("a_bind_request_waits_for_the_binder"), tmp_path)
    of_team = shown(document, "team-a")
    assert (of_team["used"], of_team["waiting"], of_team["requested"]) == (0, 500, 500)
    (found,) = (each for each in document["queues"] if each["name"] == "org")
    assert found["waitingWorkloads"] == 1


def test_metrics_have_the_amounts_of_the_document(tmp_path):
    objects = kai_player.after(STORY)
    document = by_queue(objects, tmp_path)
    view, _ = queues_view(from_files((written(objects, tmp_path),), queues=True), Units())
    found = {
        (each.queue.name, each.resource.resource, kind.value): amount
        for each in queue_numbers(view.queues).amounts
        for kind, amount in each.amounts.items()
    }
    assert found == {
        (q["name"], quota["resource"], kind): each["value"]
        for q in document["queues"]
        for quota in q["quotas"]
        for kind, each in quota.items()
        if isinstance(each, dict) and each["value"] is not None
    }


def test_a_queue_of_volcano_of_the_same_name_is_another_one(tmp_path):
    own = volcano_queue("team-a", capability={"volcano.sh/vgpu-number": "3"})
    document = by_queue([own, *kai_player.after(STORY)], tmp_path)
    assert document["system"] == "KAI Scheduler, Volcano"
    assert shown(document, "team-a", "volcano.sh/vgpu-number", "Volcano")["limit"] == 3
    assert shown(document, "team-a")["nominal"] == 1000


@pytest.mark.parametrize(
    ("missing", "name", "unknown"),
    [
        ("PodGroup", "team-a", {"held", "waiting"}),
        ("org", "tight", {"limit"}),
    ],
)
def test_what_was_not_read_is_unknown(tmp_path, missing, name, unknown):
    objects = [
        each
        for each in kai_player.after(STORY)
        if missing not in (each["kind"], each["metadata"]["name"])
    ]
    amounts = shown(by_queue(objects, tmp_path), name)
    known = {"nominal", "used", "requested", "held", "waiting"}
    known |= {"limit"} if name == "tight" else set()
    assert {kind for kind, value in amounts.items() if value is not None} == known - unknown


def test_a_namespace_has_its_queues_with_those_above(tmp_path):
    document = by_queue(kai_player.after(STORY), tmp_path, "-n", "team-b")
    assert [each["name"] for each in document["queues"]] == ["org", "team-b"]


# ---------------------------------------------------------------- made-up queues


def lines(queues, groups=(), held=(), node=None):
    """The amounts of each queue by its name and the resource."""
    found = all_queues(
        QueueSystems(kai=KaiQueues(tuple(queues), tuple(groups))), held, {}, [node] if node else []
    )
    return {
        (node.name.name, line.resource.resource): line.amounts
        for _, node in found.tree.walk()
        for line in found.lines(node)
    }


def test_limits_are_the_least_on_the_path_and_zero_is_a_limit():
    top = KaiQueue("top", quotas={"gpu": KaiQuota(-1, 0.5)})
    quotas = {"gpu": KaiQuota(0.7, 2), "cpu": KaiQuota(1500, -1), "memory": KaiQuota(0, 3)}
    below = KaiQueue("below", "top", quotas=quotas)
    found = lines([top, below, KaiQueue("none", quotas={"gpu": KaiQuota()})])
    limits = {key: each[AmountKind.LIMIT].value for key, each in found.items()}
    nominal = {key: each[AmountKind.NOMINAL].value for key, each in found.items()}
    assert (limits["below", GPU], nominal["below", GPU], nominal["top", GPU]) == (500, 700, None)
    assert (limits["none", GPU], nominal["none", GPU]) == (0, 0)
    assert (limits["below", "cpu"], nominal["below", "cpu"]) == (None, 1500)
    assert limits["below", "memory"] == 3_000_000


IN_QUEUE = {"kai.scheduler/queue": "ml"}


def of_queue(pod, **fields):
    return replaced(pod, {"labels": {**pod.labels, **IN_QUEUE}, **fields})


@pytest.mark.parametrize(
    ("pod", "gpus", "parts"),
    [
        (of_queue(tenant("a", ("g0", "g1"), "0.3")), 2, 600),
        (of_queue(tenant("a", ("g0",), "", str(LABEL_MIB // 4))), 1, 250),
        (of_queue(tenant("a", ("g0",), "x")), 1, None),
        (of_queue(tenant("a"), annotations={}, containers=(Container("c"),)), 2, 2000),
        (
            of_queue(
                tenant("a"),
                annotations={},
                containers=(Container("c", {"nvidia.com/mig-3g.40gb": 2}),),
            ),
            2,
            6000,
        ),
    ],
)
def test_pods_hold_what_the_scheduler_of_kai_counts(pod, gpus, parts):
    queues = [KaiQueue("ml", quotas={"gpu": KaiQuota(1, -1)})]
    found = lines(queues, held=[(pod, {"gpus": gpus})], node=kai_node(LABEL_MIB, 2))
    assert found["ml", GPU][AmountKind.HELD].value == parts


def test_the_queue_of_a_pod_is_that_of_its_group():
    pod = of_queue(tenant("a", ("g0",), "0.5"))
    pod = replaced(pod, {"annotations": {**pod.annotations, "pod-group-name": "pg"}})
    queues = [KaiQueue(name, quotas={"gpu": KaiQuota(1, -1)}) for name in ("ml", "other")]
    group = KaiGroup(pod.ref.namespace, "pg", "other")
    found = lines(queues, [group], [(pod, {"gpus": 1})], kai_node(LABEL_MIB, 1))
    assert found["other", GPU][AmountKind.HELD].value == 500
    assert found["ml", GPU][AmountKind.HELD].value == 0


def test_parents_that_are_a_circle_are_roots():
    found = lines([KaiQueue("a", "b", quotas={"gpu": KaiQuota(1, 2)}), KaiQueue("b", "a")])
    assert found["a", GPU][AmountKind.LIMIT].value == 2000
