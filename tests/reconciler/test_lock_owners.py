"""Owners of locks that are in no list are asked for by name, and never taken for gone unasked."""

import pytest

from reconciler.observe.cluster import ListingObserver
from reconciler.observe.dump import DumpObserver
from reconciler.observe.owners import MOST_ASKED, LockOwnerReader, named_owners
from tests.reconciler.fake_client import BUSY, NOT_FOUND, UNREACHABLE
from tests.reconciler.samples import CODECS_IN_USE, NOW, lock, node, pod, unbound
from vgpu.inventory import Units
from vgpu.kube.documents import ObjectPage
from vgpu.model.reasons import Reason, SourceError

STRANGER = pod("stranger", "hami", claim=None)


class Api:
    """Pods by name; those that cannot be read raise."""

    def __init__(self, **known):
        self.known = known
        self.asked = []

    def pod(self, namespace, name):
        self.asked.append(name)
        found = self.known.get(name, NOT_FOUND)
        if isinstance(found, Exception):
            raise found
        return found


def ask(api, *names):
    return LockOwnerReader(api.pod).ask([("ml", name) for name in names])


def test_who_is_named_by_a_lock_is_known_once_and_in_order():
    nodes = [
        node(f"gpu-{at}", annotations=lock(pod(name, "hami"))) for at, name in enumerate("bab")
    ]
    assert named_owners(nodes, CODECS_IN_USE) == (("ml", "a"), ("ml", "b"))
    assert named_owners([node("gpu-1", annotations=lock(style="volcano"))], CODECS_IN_USE) == ()


def test_one_exists_or_does_not():
    answer = ask(Api(a=STRANGER), "a", "b")
    assert answer.known == {("ml", "a"): STRANGER, ("ml", "b"): None}
    assert answer.note == ""


def test_one_that_cannot_be_read_is_not_known_and_the_others_are():
    broken = SourceError(Reason.MALFORMED, "pod", "ml/a: phase")
    answer = ask(Api(a=broken), "a", "b")
    assert answer.known == {("ml", "b"): None}
    assert answer.note == "not all owners of node locks are known: ml/a: phase"


@pytest.mark.parametrize("error", [BUSY, UNREACHABLE])
def test_a_server_that_does_not_answer_is_not_asked_on(error):
    api = Api(a=error)
    answer = ask(api, "a", "b")
    assert (answer.known, api.asked) == ({}, ["a"])
    assert str(error) in answer.note


def test_of_too_many_the_next_ones_have_their_turn_at_the_next_look():
    api = Api()
    owners = [("ml", f"{number:03}") for number in range(MOST_ASKED + 20)]
    asking = LockOwnerReader(api.pod)
    first = asking.ask(owners)
    assert len(first.known) == MOST_ASKED
    assert "20 are left for later" in first.note
    second = asking.ask(owners)
    assert {*first.known, *second.known} == {*owners}
    assert asking.ask([]).known == {}


class Server(Api):
    """A cluster of one locked node."""

    server = "https://api"

    def __init__(self, *pods, **known):
        super().__init__(**known)
        self._pods = pods

    def pods(self):
        yield ObjectPage(self._pods)

    def node_pages(self):
        yield ObjectPage((node("gpu-1", annotations=lock(pod("owner", "hami"))),))

    def sharepod_pages(self):
        yield ObjectPage(())

    def unhealthy_gpus(self):
        return {}

    def object_text(self, *parts):
        raise AssertionError(f"nobody needs {parts}")

    def config_map(self, *parts):
        raise AssertionError(f"nobody needs {parts}")


def test_a_look_asks_for_those_that_its_list_lacks_and_for_nobody_else():
    server = Server(unbound("owner", "hami"))
    assert ListingObserver(server, Units()).view(NOW).snapshot.lock_owners == {}
    assert server.asked == []
    server = Server(owner=STRANGER)
    seen = ListingObserver(server, Units()).view(NOW).snapshot
    assert seen.lock_owners == {("ml", "owner"): STRANGER}
    assert seen.pods == ()


def test_a_dump_knows_of_all_its_pods(tmp_path):
    import json

    from tests.support import sample_cluster as sample

    locked = sample.volcano_node("gpu-1", 1)
    locked["metadata"]["annotations"] |= lock(pod("owner", "hami"))
    cpu = sample.pod("owner", "gpu-1")
    for items, name in ((([locked, cpu]), "owner"), ([locked, sample.pod("x")], None)):
        content = json.dumps(sample.dump(items)).encode()
        owners = DumpObserver(content, "dump", Units()).view(sample.NOW).snapshot.lock_owners
        ((_, found),) = owners.items()
        assert (found and found.ref.name) == name
