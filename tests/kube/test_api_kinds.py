"""A kind and a verb are a row each; raw objects are copied whole or not at all."""

import json

import msgspec
import pytest

from tests.support.answering_server import answer, serving, status
from tests.support.environment import ROOT
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.list_watch import ListWatch
from vgpu.kube import kinds, wire
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.documents import EventType
from vgpu.kube.kinds import KINDS, NODES, PODS, SHARE_PODS
from vgpu.kube.verbs import VERBS, ApiVerb
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, RawObject
from vgpu.model.reasons import SourceError
from vgpu.program.own_packages import PACKAGES

# ---------------------------------------------------------------- kinds


class ClaimFields(wire.ObjectFields, frozen=True):
    """What a program keeps of a new kind."""

    metadata: wire.Meta
    size: int = 0


CLAIMS = ApiKind(
    "Claim",
    "example.com/v1",
    "claims",
    Decoders.of(ClaimFields),
    lambda claim, _: (claim.metadata.name, claim.size),
    optional=True,
)


def claim(name, **fields):
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "7"}
    return {"kind": "Claim", "metadata": meta, **fields}


def line(type_, content):
    text = content if isinstance(content, str) else json.dumps(content)
    return f'{{"type":"{type_}","object":{text}}}\n'.encode()


def listed(*items):
    texts = (each if isinstance(each, str) else json.dumps(each) for each in items)
    return answer(f'{{"metadata":{{"resourceVersion":"5"}},"items":[{",".join(texts)}]}}'.encode())


def test_a_kind_is_one_row():
    """Its objects are got, listed and watched, and one that cannot be read costs itself."""
    watched = answer(line("ADDED", claim("c", size=3)), Content_Length=None, Connection="close")
    answers = (
        answer(claim("a", size=1)),
        status(404, "NotFound"),
        listed(claim("a", size=1), claim("b", size="x")),
        watched,
        status(404, "NotFound"),
    )
    with serving(*answers) as (cluster, server):
        assert cluster.get(CLAIMS, "ns", "a") == ("a", 1)
        assert cluster.find(CLAIMS, "ns", "b") is None
        claims = ListWatch(cluster, CLAIMS, namespace="ns")
        (whole, malformed), version = claims.list()
        assert (whole, malformed.title, version) == (("a", 1), "Claim ns/b", "5")
        (event,) = claims.watch(version)
        assert (event.type, event.object) == (EventType.ADDED, ("c", 3))
        assert claims.list() == ([], "")
    root = "/apis/example.com/v1/namespaces/ns/claims"
    paths = [path for _, path, _, _ in server.requests]
    assert paths == [f"{root}/a", f"{root}/b", root, root, root]


def test_each_kind_stands_once_in_the_table():
    rows = {row.name: row for row in vars(kinds).values() if isinstance(row, ApiKind)}
    assert {row.name for row in KINDS} == rows.keys()
    assert len({(row.api_version, row.plural) for row in KINDS}) == len(KINDS) == len(rows)


# ---------------------------------------------------------------- raw objects


def test_a_raw_object_is_every_byte_of_it_by_every_way_in():
    meta = '{"name":"a","namespace":"ns","uid":"u","resourceVersion":"7"}'
    text = f'{{"kind":"SharePod", "metadata":{meta},"spec":{{"x":1.50,"y":[null]}}}}'
    watched = answer(line("MODIFIED", text), Content_Length=None, Connection="close")
    with serving(answer(text.encode()), listed(text), watched) as (cluster, _):
        alone = cluster.get(SHARE_PODS.raw(), "ns", "a")
        (page,) = cluster.pages(SHARE_PODS.raw())
        (event,) = cluster.watch(SHARE_PODS.raw(), "5")
    assert alone == RawObject(PodRef("u", "ns", "a"), "7", msgspec.Raw(text.encode()))
    assert (page.objects, event.object) == ((alone,), alone)


@pytest.mark.parametrize("depth", [61, 300, 20_000])
def test_an_object_that_may_have_been_cut_is_not_copied(depth):
    """The decoder gives up what is nested without end: the rest of it is no copy."""
    sound = {"kind": "SharePod", "metadata": {"name": "a", "namespace": "ns"}}
    deep = json.dumps(sound | {"metadata": {"name": "deep", "namespace": "ns"}, "spec": 0})
    deep = deep.replace('"spec": 0', '"spec":' + "[" * depth + "]" * depth)
    watched = answer(line("ADDED", deep), Content_Length=None, Connection="close")
    with serving(listed(sound, deep), watched, answer(deep.encode())) as (cluster, _):
        (page,) = cluster.pages(SHARE_PODS.raw())
        (event,) = cluster.watch(SHARE_PODS.raw(), "5")
        with pytest.raises(SourceError, match=r"ns/deep: .*too deeply"):
            cluster.get(SHARE_PODS.raw(), "ns", "deep")
    assert [each.ref.name for each in page.objects] == ["a"]
    assert [each.ref.name for each in page.malformed] == ["deep"]
    assert isinstance(event.object, MalformedObject)


# ---------------------------------------------------------------- verbs

BINDING = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"a": "b"}},
    "target": {"kind": "Node", "name": "gpu-1"},
}
OBJECT = {"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "7"}}
NO_FINALIZERS = [{"op": "test", "path": "/metadata/uid", "value": "u"}]


@pytest.mark.parametrize(
    ("verb", "kind", "namespace", "body", "request_"),
    [
        (
            ApiVerb("create", "POST", "binding"),
            PODS,
            "ns",
            BINDING,
            "POST /api/v1/namespaces/ns/pods/p/binding application/json",
        ),
        (
            ApiVerb("create", "POST", names_object=False),
            PODS,
            "ns",
            OBJECT,
            "POST /api/v1/namespaces/ns/pods application/json",
        ),
        (
            ApiVerb("update", "PUT", "status"),
            SHARE_PODS,
            "ns",
            OBJECT,
            "PUT /apis/kubeshare.nthu/v1/namespaces/ns/sharepods/p/status application/json",
        ),
        (
            ApiVerb("patch", "PATCH", content_type="application/json-patch+json"),
            NODES,
            "",
            NO_FINALIZERS,
            "PATCH /api/v1/nodes/p application/json-patch+json",
        ),
    ],
    ids=["binding with annotations", "create", "status", "finalizers"],
)
def test_a_verb_is_one_row(verb, kind, namespace, body, request_):
    with serving(answer({}, 201), status(409, "Conflict")) as (cluster, server):
        cluster.send(verb, kind, namespace, "p", body)
        with pytest.raises(ClusterError):  # sent once
            cluster.send(verb, kind, namespace, "p", body, dry_run=True)
        assert cluster.requests == {(verb.word, "201"): 1, (verb.word, "409"): 1}
    for (method, path, _, sent), content_type in zip(server.requests, server.types, strict=True):
        assert f"{method} {path} {content_type}" == request_
        assert json.loads(sent) == body
    assert [query for _, _, query, _ in server.requests] == [{}, {"dryRun": ["All"]}]


def test_only_kubeshares_controllers_delete_and_only_exact_pods():
    """They delete pods that they have created; everybody else evicts."""
    users = {
        file.relative_to(ROOT).parts[0]
        for top in PACKAGES
        for file in (ROOT / top).rglob("*.py")
        if "delete_pod(" in file.read_text()
    }
    assert users == {"vgpu", "kubeshare"}
    with serving(answer({})) as (cluster, server):
        cluster.delete_pod(PodRef("uid-p", "ns", "p"))
    ((method, path, query, body),) = server.requests
    assert (method, path, query) == ("DELETE", "/api/v1/namespaces/ns/pods/p", {})
    assert json.loads(body)["preconditions"] == {"uid": "uid-p"}
    assert [verb.word for verb in VERBS if verb.method == "DELETE"] == ["delete"]
