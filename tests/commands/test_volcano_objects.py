"""Volcano's objects from the API server: as far as the rights go."""

from tests.quota.volcano_samples import MEMORY, group, queue
from tests.support.answering_server import answer, serving, status
from vgpucli.explain.read import volcano_for
from vgpucli.volcano_objects import volcano_at

NOT_FOUND = status(404, "NotFound")
FORBIDDEN = status(403, "Forbidden", "no right")


def listed(*items):
    return answer({"metadata": {"resourceVersion": "1"}, "items": list(items)})


QUEUE = queue("research", capability={MEMORY: "10k"}, guarantee={MEMORY: "1k"})
GROUP = group("job", "research", memory=4000)


def test_a_server_without_volcano_is_asked_for_its_queues_alone():
    with serving(NOT_FOUND) as (cluster, server):
        volcano = volcano_at(cluster)
    assert len(server.requests) == 1
    assert not volcano.has_queues
    assert volcano.notes == ()


def test_what_may_be_listed_is_read():
    with serving(listed(QUEUE), listed(GROUP)) as (cluster, _):
        volcano = volcano_at(cluster)
    assert volcano.queue("research").capability == {MEMORY: "10k"}
    assert volcano.queue("research").guarantee == {MEMORY: "1k"}
    assert volcano.groups[0].requests == {MEMORY: "4000"}
    assert volcano.unread == frozenset()


def test_without_the_right_to_list_groups_those_of_the_namespace_are_read():
    with serving(listed(QUEUE), FORBIDDEN, listed(GROUP)) as (cluster, server):
        volcano = volcano_at(cluster, "ml")
    assert "/namespaces/ml/podgroups" in server.requests[-1][1]
    assert [each.name for each in volcano.groups] == ["job"]
    assert volcano.unread == {"PodGroup"}
    assert volcano.notes == ("PodGroups of other namespaces than ml were not read",)


def test_with_the_right_to_get_alone_the_group_of_the_pod_and_its_queue_are_read():
    answers = (FORBIDDEN, FORBIDDEN, FORBIDDEN, answer(GROUP), answer(QUEUE))
    with serving(*answers) as (cluster, _):
        volcano = volcano_for(cluster, lambda: None, "ml", "job")
    assert [each.name for each in volcano.groups] == ["job"]
    assert [each.name for each in volcano.queues] == ["research"]
    assert volcano.scheduler.plugins is None


def test_without_any_right_nothing_is_known():
    with serving(*[FORBIDDEN] * 4) as (cluster, _):
        volcano = volcano_for(cluster, lambda: None, "ml", "job")
    assert not volcano.groups
    assert not volcano.queues
