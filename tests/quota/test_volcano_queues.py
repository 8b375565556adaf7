"""Volcano's Queues: the tree, what refuses a pod, and what a version or a plugin does not count."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.quota.volcano_samples import (
    MEMORY,
    NUMBER,
    PERCENTAGE,
    group,
    held,
    queue,
    scheduler,
    waiting,
)
from tests.support import sample_cluster as sample
from vgpucli.main import main


def run(folder, items, *words):
    path = folder / "dump.json"
    path.write_text(json.dumps(sample.dump([sample.volcano_node("gpu-1", 1), *items])))
    os.utime(path, (sample.NOW, sample.NOW))
    result = CliRunner().invoke(main, [*words, "--from", str(path), "-o", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def by_queue(folder, *items):
    return run(folder, items, "inspect", "--by", "queue")


def explained(folder, *items, name="ml/waits"):
    document = run(folder, items, "explain", "pod", name)
    (reserved,) = (step for step in document["steps"] if step["step"] == "reserved")
    return document, [each["code"] for each in reserved["reasons"]], reserved["evidence"]


def amounts(document, name, resource=MEMORY):
    (shown,) = (each for each in document["queues"] if each["name"] == name)
    (quota,) = (each for each in shown["quotas"] if each["resource"] == resource)
    return {field: each["value"] for field, each in quota.items() if isinstance(each, dict)}


REFUSED = "queue resource quota insufficient: insufficient volcano.sh/vgpu-memory"


def full_queue(version="v1.14.1", message=REFUSED, allocated=16000, *plugins):
    """The queue of two GPUs that shows more than it may have, and a pod that it refuses."""
    own = {MEMORY: str(allocated), NUMBER: "2"} if allocated else {NUMBER: "2"}
    return (
        queue("root"),
        queue("research", capability={MEMORY: "10000"}, allocated=own),
        group("trains", "research", "Running"),
        held("trains", "trains", (1, 2), 8000),
        group("waits", "research", message=message, number=1, memory=4000),
        waiting("waits", "waits", sample.volcano_limits(4000)),
        *scheduler(version, *(plugins or ("capacity",))),
    )


@pytest.mark.parametrize("message", [REFUSED, ""])
def test_a_pod_that_its_queue_refuses_has_the_queue_the_resource_and_the_limit(tmp_path, message):
    document, codes, evidence = explained(tmp_path, *full_queue(message=message))
    assert codes == ["queue_full"]
    (quota,) = (step for step in document["steps"] if step["step"] == "quota")
    assert "queue research of Volcano counts the pod: see step reserved" in quota["evidence"]
    assert (
        "queue research has 8000 of 10000 volcano.sh/vgpu-memory by Volcano's check, which counts"
        " each container once, and 16000 by its status, which counts each GPU, and PodGroup"
        " ml/waits requests 4000" in document["conclusion"]
    )
    assert "16000 of it by PodGroup ml/trains" in evidence
    assert any("Volcano's scheduler 1.14 with capacity" in text for text in evidence)


def test_the_holders_and_the_others_are_what_the_status_counts(tmp_path):
    items = [
        queue("research", capability={NUMBER: "9"}, allocated={NUMBER: "9"}),
        group("waits", "research"),
        waiting("waits", "waits", sample.volcano_limits(1000, number=2)),
    ]
    for number in range(1, 8):
        items += [
            group(f"job-{number}", "research", "Running"),
            held(f"pod-{number}", f"job-{number}", (1,), 1000),
        ]
    document, codes, evidence = explained(tmp_path, *items)
    assert codes == ["queue_full"]
    assert (
        "has 9 of 9 volcano.sh/vgpu-number allocated, and the pod requests 2"
        in (document["conclusion"])
    )
    parts = [int(text.split()[0]) for text in evidence if " of it by " in text]
    assert sum(parts) == 9
    assert len(parts) == 6


def test_before_1_13_a_limit_of_memory_refuses_nothing_and_is_a_finding(tmp_path):
    items = full_queue("v1.12.2", "", 0)
    _, codes, evidence = explained(tmp_path, *items)
    assert codes == ["pod_group_waits"]
    assert not any("requests 4000" in text for text in evidence)
    document = by_queue(tmp_path, *items)
    (found,) = (each for each in document["findings"] if each["code"] == "limit_ignored")
    assert (
        found["text"] == "Queue research limits volcano.sh/vgpu-memory, which Volcano 1.12 ignores"
    )
    assert amounts(document, "research")["limit"] is None


def test_without_a_plugin_that_compares_no_queue_refuses(tmp_path):
    _, codes, _ = explained(tmp_path, *full_queue("v1.14.1", "", 16000, "gang"))
    assert codes == ["pod_group_waits"]


def tree(*plugins, hierarchy=False, version="v1.14.1"):
    return (
        queue("root"),
        queue(
            "org",
            capability={NUMBER: "4"},
            deserved={NUMBER: "3"},
            guarantee={NUMBER: "1"},
            allocated={NUMBER: "3"},
        ),
        queue("team", "org", capability={NUMBER: "8"}, allocated={NUMBER: "1"}),
        queue("other", "org", allocated={NUMBER: "2"}),
        group("job", "other", "Running"),
        held("runs", "job", (1, 2), 4000),
        group("waits", "team"),
        waiting("waits", "waits", sample.volcano_limits(1000, number=2)),
        *scheduler(version, *plugins, hierarchy=hierarchy),
    )


def test_a_queue_above_refuses_only_where_the_plugin_compares_it(tmp_path):
    document, codes, _ = explained(tmp_path, *tree("capacity", hierarchy=True))
    assert codes == ["queue_full"]
    assert (
        "queue org, above queue team, has 3 of 4 volcano.sh/vgpu-number allocated, and the pod"
        " requests 2" in document["conclusion"]
    )
    for plugins in (("proportion",), ("capacity",)):
        _, codes, _ = explained(tmp_path, *tree(*plugins))
        assert codes == ["pod_group_waits"]


def test_the_tree_shows_limit_deserved_guarantee_and_what_is_allocated_and_held(tmp_path):
    document = by_queue(tmp_path, *tree("capacity", hierarchy=True))
    names = [(each["name"], each["parent"], each["depth"]) for each in document["queues"]]
    assert names == [("root", "", 0), ("org", "root", 1), ("other", "org", 2), ("team", "org", 2)]
    assert document["system"] == "Volcano"
    of_org, of_team = (amounts(document, name, NUMBER) for name in ("org", "team"))
    assert (of_org["limit"], of_org["nominal"], of_org["guaranteed"]) == (4, 3, 1)
    assert (of_org["used"], of_org["held"]) == (3, 2)
    assert (of_team["limit"], of_team["used"], of_team["held"]) == (4, 1, 0)
    assert amounts(document, "root", NUMBER)["limit"] is None
    assert "Volcano's scheduler 1.14 with capacity with hierarchy" in document["notes"][-1]


def test_what_the_plugin_does_not_use_is_a_remark(tmp_path):
    document = by_queue(tmp_path, *tree("proportion"))
    assert amounts(document, "team", NUMBER)["limit"] == 8
    remarks = " ".join(document["remarks"])
    assert "Queue org has spec.deserved, which Volcano's scheduler does not use" in remarks
    assert "Queue team is below Queue org, whose limits do not hold for it" in remarks


def test_the_two_counts_of_a_queue_are_a_finding(tmp_path):
    document = by_queue(tmp_path, *full_queue())
    (found,) = (each for each in document["findings"] if each["code"] == "two_counts")
    assert found["object"] == "Queue research"
    assert "shows 16000 volcano.sh/vgpu-memory" in found["text"]
    assert "compares 8000 against the limit of 10000" in found["text"]
    assert amounts(document, "research")["held"] == 16000


@pytest.mark.parametrize("limits", [{NUMBER: 1}, {NUMBER: 1, PERCENTAGE: 50}])
def test_a_request_without_an_amount_of_memory_counts_zero(tmp_path, limits):
    items = (
        queue("research", capability={MEMORY: "10000"}, allocated={NUMBER: "1", MEMORY: "9000"}),
        group("job", "research", "Running"),
        held("runs", "job", (1,), 9000, limits),
        *scheduler("v1.14.1", "capacity"),
    )
    codes = {each["code"]: each["text"] for each in by_queue(tmp_path, *items)["findings"]}
    assert "counts 0 volcano.sh/vgpu-memory in Queue research" in codes["counts_zero"]
    assert "pod ml/runs" in codes["counts_zero"]


def test_where_pods_of_the_status_are_missing_it_is_compared_with_nothing(tmp_path):
    items = [each for each in full_queue() if each["metadata"]["name"] != "trains"]
    document = by_queue(tmp_path, *items)
    assert [each["code"] for each in document["findings"]] == []


def test_without_the_scheduler_its_plugins_and_its_version_are_unknown(tmp_path):
    items = [each for each in tree("capacity") if each["kind"] not in ("Deployment", "ConfigMap")]
    document = by_queue(tmp_path, *items)
    assert "Volcano's scheduler of unknown version, plugins unknown" in document["notes"][-1]
    assert not document["remarks"]


def test_queues_of_volcano_stand_beside_those_of_another_group(tmp_path):
    of_kai = queue("kai", capability={NUMBER: "4"}) | {"apiVersion": "scheduling.run.ai/v2"}
    document = by_queue(tmp_path, *tree("capacity"), of_kai)
    systems = {each["name"]: each["system"] for each in document["queues"]}
    assert (systems["kai"], systems["team"]) == ("KAI Scheduler", "Volcano")


def test_a_closed_queue_and_a_missing_parent_are_remarks(tmp_path):
    items = queue("old", state="Closed"), queue("lost", "nowhere")
    remarks = by_queue(tmp_path, *items)["remarks"]
    assert "Queue old admits nothing: it is Closed" in remarks
    assert "Queue lost: its parent nowhere does not exist" in remarks


def test_queues_whose_parents_are_a_cycle_end(tmp_path):
    items = (
        queue("a", "b", capability={NUMBER: "1"}),
        queue("b", "a", capability={NUMBER: "2"}),
        group("waits", "a"),
        waiting("waits", "waits", sample.volcano_limits(1000, number=2)),
    )
    assert {each["name"] for each in by_queue(tmp_path, *items)["queues"]} >= {"a", "b"}
    assert explained(tmp_path, *items)[1] == ["queue_full"]


def test_only_the_queues_of_a_namespace_are_shown_with_those_above(tmp_path):
    items = tree("capacity", hierarchy=True)
    document = run(tmp_path, items, "inspect", "--by", "queue", "-n", "ml")
    assert [each["name"] for each in document["queues"]] == ["root", "org", "other", "team"]
    assert run(tmp_path, items, "inspect", "--by", "queue", "-n", "x")["queues"] == []


def test_the_queues_of_a_namespace_are_also_those_that_its_pods_name(tmp_path):
    items = [each for each in tree("capacity", hierarchy=True) if each["kind"] != "PodGroup"]
    for each in items:
        if each["kind"] == "Pod":
            each["metadata"]["annotations"] |= {"scheduling.volcano.sh/queue-name": "team"}
    items += [queue("else", parent="nowhere")]
    document = run(tmp_path, items, "inspect", "--by", "queue", "-n", "ml")
    assert [each["name"] for each in document["queues"]] == ["root", "org", "team"]
    assert document["remarks"] == []


def test_without_pod_groups_what_is_held_and_what_waits_is_unknown(tmp_path):
    items = [each for each in full_queue() if each["kind"] != "PodGroup"]
    document = by_queue(tmp_path, *items)
    own = amounts(document, "research")
    assert (own["used"], own["held"], own["waiting"]) == (16000, None, None)
    assert "there are no PodGroups in the dump" in document["notes"]
    assert document["findings"] == []


def test_a_queue_that_cannot_be_read_is_a_note(tmp_path):
    broken = queue("broken") | {"spec": "x"}
    notes = by_queue(tmp_path, *full_queue(), broken)["notes"]
    assert any(note.startswith("Queue broken cannot be read") for note in notes)


def test_the_same_dump_twice_counts_once(tmp_path):
    once = by_queue(tmp_path, *full_queue())
    words = ("inspect", "--by", "queue", "--from", str(tmp_path / "dump.json"))
    twice = run(tmp_path, full_queue(), *words)
    assert {key: once[key] for key in ("queues", "findings", "notes")} == {
        key: twice[key] for key in ("queues", "findings", "notes")
    }


GUARANTEED = (
    queue("root"),
    queue("ml", capability={NUMBER: "7"}, guarantee={NUMBER: "1"}),
    queue("other", guarantee={NUMBER: "15"}),
    queue("free"),
)


def limit_of(document, name):
    (shown,) = (each for each in document["queues"] if each["name"] == name)
    (quota,) = (each for each in shown["quotas"] if each["resource"] == NUMBER)
    return quota["limit"]["value"], quota["limit"]["source"]


@pytest.mark.parametrize("plugin", ["capacity", "proportion"])
def test_what_others_are_guaranteed_lowers_a_limit(tmp_path, plugin):
    """The node has 20: 4 are nobody's, and 1 is guaranteed to the queue itself."""
    document = by_queue(tmp_path, *GUARANTEED, *scheduler("v1.14.1", plugin))
    assert limit_of(document, "ml")[0] == 5
    assert limit_of(document, "other")[0] == 19
    assert limit_of(document, "ml")[1] == "computed: 20 on the nodes, without 15 of other queues"


def test_a_limit_that_guarantees_may_lower_names_what_was_not_read(tmp_path):
    amount, source = limit_of(by_queue(tmp_path, *GUARANTEED), "ml")
    assert amount == 7
    assert source.endswith("guarantees of other queues may lower it: plugins unknown")


def test_with_hierarchy_what_is_guaranteed_below_a_queue_is_taken_of_its_limit(tmp_path):
    queues = (
        queue("root"),
        queue("org", capability={NUMBER: "8"}),
        queue("ml", "org", guarantee={NUMBER: "1"}),
        queue("other", "org", guarantee={NUMBER: "5"}),
        queue("beside"),
    )
    document = by_queue(tmp_path, *queues, *scheduler("v1.14.1", "capacity", hierarchy=True))
    assert limit_of(document, "ml")[0] == 3
    assert limit_of(document, "other")[0] == 7
    assert limit_of(document, "org")[0] == 8
