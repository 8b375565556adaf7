"""When a list counts as whole, and what becomes of a kind that may not be read."""

import pytest

from reconciler.observe.cluster import labels_of
from reconciler.observe.kinds import TRIES, ListedKinds, Seen, whole
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import ObjectPage
from vgpu.model.names import PodRef
from vgpu.model.objects import Namespace, Node, Pod

FORBIDDEN = ClusterError(403, "Forbidden", 'cannot list resource "nodes"')
NOT_FOUND = ClusterError(404, "NotFound", "the server could not find the requested resource")
BUSY = ClusterError(500, "InternalError", "etcd is away")
EXPIRED = ClusterError(410, "Expired", "too old")


def node_page(version, *names):
    return ObjectPage(tuple(map(Node, names)), resource_version=version)


def lists(*answers):
    """Gives one answer after another: pages, or an error after some pages."""
    remaining = iter(answers)

    def pages():
        for page in next(remaining):
            if isinstance(page, Exception):
                raise page
            yield page

    return pages


def test_pages_of_one_version_are_a_whole_list():
    pages, note = whole("nodes", lists([node_page("7", "a"), node_page("7", "b")]))
    assert [page.objects[0].name for page in pages] == ["a", "b"]
    assert not note


def test_a_list_whose_rest_is_of_a_later_time_is_read_again():
    torn, sound = [node_page("7", "a"), node_page("9", "b")], [node_page("9", "a", "b")]
    pages, note = whole("nodes", lists(torn, sound))
    assert pages == tuple(sound)
    assert not note


def test_a_list_that_expires_on_the_way_is_read_again():
    pages, note = whole("nodes", lists([node_page("7", "a"), EXPIRED], [node_page("9", "a")]))
    assert [page.resource_version for page in pages] == ["9"]
    assert not note


def test_a_list_that_is_torn_each_time_is_not_whole():
    torn = [node_page("7", "a"), node_page("9", "b")]
    pages, note = whole("nodes", lists(*[torn] * TRIES))
    assert len(pages) == 2
    assert f"{TRIES} times" in note


def test_a_list_that_expires_each_time_is_not_whole():
    pages, note = whole("nodes", lists(*[[node_page("7", "a"), EXPIRED]] * TRIES))
    assert pages == ()
    assert note


def test_another_failure_is_not_hidden():
    with pytest.raises(ClusterError) as caught:
        whole("nodes", lists([node_page("7", "a"), BUSY]))
    assert caught.value is BUSY


class Server:
    """An API server of four lists; each is a list of pages, or an error."""

    def __init__(self, pods=(), nodes=(), share_pods=(), namespaces=(), resource_quotas=()):
        self._lists = {
            "pods": pods,
            "nodes": nodes,
            "share_pods": share_pods,
            "namespaces": namespaces,
            "resourcequotas": resource_quotas,
        }

    def _pages(self, kind):
        if isinstance(self._lists[kind], Exception):
            raise self._lists[kind]
        yield from self._lists[kind]

    def pods(self):
        return self._pages("pods")

    def node_pages(self):
        return self._pages("nodes")

    def sharepod_pages(self):
        return self._pages("share_pods")

    def pages(self, kind):
        return self._pages(kind.plural)


POD = Pod(PodRef("u", "ml", "web"))


def test_what_is_read_in_full_is_complete():
    server = Server([ObjectPage((POD,))], [node_page("7", "a")], [ObjectPage(())])
    kinds = ListedKinds(server)
    assert kinds.pods() == Seen((POD,))
    assert [node.name for node in kinds.nodes().objects] == ["a"]
    assert kinds.share_pods().complete


def test_where_kubeshare_is_not_installed_no_share_pods_are_all():
    assert ListedKinds(Server(share_pods=NOT_FOUND)).share_pods() == Seen()


@pytest.mark.parametrize("kind", ["nodes", "share_pods", "namespaces", "resource_quotas"])
def test_a_kind_that_may_not_be_read_is_not_seen_and_the_missing_right_is_reported(kind):
    seen = getattr(ListedKinds(Server(**{kind: FORBIDDEN})), kind)()
    assert not seen.complete
    assert not seen.objects
    assert FORBIDDEN.message in seen.note


def test_without_the_right_to_read_pods_nothing_can_be_judged():
    with pytest.raises(ClusterError, match="Forbidden"):
        ListedKinds(Server(pods=FORBIDDEN)).pods()


@pytest.mark.parametrize("kind", ["pods", "nodes", "share_pods", "namespaces", "resource_quotas"])
def test_a_server_that_fails_is_an_error(kind):
    with pytest.raises(ClusterError, match="InternalError"):
        getattr(ListedKinds(Server(**{kind: BUSY})), kind)()


def test_labels_of_namespaces_are_known_only_if_all_are_seen():
    namespace = Namespace("ml", {"team": "ml"})
    assert labels_of(Seen((namespace,))) == {"ml": {"team": "ml"}}
    assert labels_of(Seen((namespace,), "the watch is silent")) == {}
