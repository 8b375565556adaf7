"""What a node reads of its ResourceClaims at the API server, and how often."""

import json

import pytest

from tests.support import dra
from tests.support.answering_server import answer, serving, status
from vgpu.kube.kinds import RESOURCE_CLAIMS
from vgpu.model.facts import (
    DriverResourceClaim,
    HeldResourceClaim,
    KubeletSample,
    PreparedResourceClaim,
)
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaim
from vgpu.sources.resource_claims import AGAIN_SECONDS, ResourceClaimSource

UUID = "GPU-00000001-0000-4000-8000-000000000001"
GPU = ("gpu.nvidia.com", "gpu-1", "gpu-0")
NOT_FOUND = status(404, "NotFound")
FORBIDDEN = status(403, "Forbidden", "no right")
TRAIN = dra.resource_claim_json("train", dra.result(consumed="4Gi"))
HELD = HeldResourceClaim("ml", "web", "main", "train", ())


def prepared(name="train", uid=None):
    return PreparedResourceClaim(uid or f"uid-{name}", "ml", name, ("u1",), ())


def kubelet(*resource_claims, **fields):
    return KubeletSample({}, {}, resource_claims=resource_claims, **fields)


def decoded(item):
    return RESOURCE_CLAIMS.one(json.dumps(item).encode())


def slices(*devices):
    items = [dra.resource_slice(*devices)] if devices else []
    return answer({"metadata": {"resourceVersion": "1"}, "items": items})


OF_NODE = slices(dra.published("gpu-0", UUID))


class Reading:
    """A source of one node, whose kubelet and clock the test sets."""

    def __init__(self, cluster, server):
        self.now, self.seen, self.server = 0.0, None, server
        self._source = ResourceClaimSource(
            cluster, "gpu-1", lambda: self.seen, clock=lambda: self.now
        )

    def sample(self, seen, after=0.0, answers=()):
        self.now += after
        self.seen = seen
        self.server.answers += answers
        sample = self._source.sample(0.0)
        assert self.server.answers == []
        return sample

    @property
    def requests(self):
        return [path.partition("/resource.k8s.io/")[2] for _, path, _, _ in self.server.requests]


@pytest.fixture
def reading():
    with serving() as (cluster, server):
        yield Reading(cluster, server)


def test_a_node_without_resource_claims_asks_for_nothing(reading):
    assert reading.sample(None).resource_claims == ()
    assert reading.sample(kubelet()).resource_claims == ()
    assert reading.requests == []


def test_each_resource_claim_is_read_once_and_the_slices_of_the_node_once(reading):
    sample = reading.sample(kubelet(prepared()), answers=[OF_NODE, answer(TRAIN)])
    assert sample.resource_claims == (decoded(TRAIN),)
    assert sample.uuids == {GPU: UUID}
    assert reading.sample(kubelet(prepared()), after=10 * AGAIN_SECONDS) is sample
    assert reading.requests == ["v1/resourceslices", "v1/namespaces/ml/resourceclaims/train"]
    (query, *_) = [query for _, _, query, _ in reading.server.requests]
    assert query["fieldSelector"] == ["spec.nodeName=gpu-1"]
    assert reading.sample(kubelet()).resource_claims == ()  # no pod uses it any more


def test_pod_resources_alone_names_them_too(reading):
    seen = kubelet(held_resource_claims=(HELD,), dra_state_known=False)
    assert reading.sample(seen, answers=[OF_NODE, answer(TRAIN)]).resource_claims == (
        decoded(TRAIN),
    )


def test_another_resource_claim_of_that_name_is_not_it(reading):
    other = kubelet(prepared(uid="older"))
    assert reading.sample(other, answers=[OF_NODE, answer(TRAIN)]).resource_claims == ()


def test_a_device_that_is_published_later_is_found_later(reading):
    seen = kubelet(prepared())
    assert reading.sample(seen, answers=[slices(), answer(TRAIN), slices()]).uuids == {}
    assert reading.sample(seen, after=AGAIN_SECONDS - 1).uuids == {}
    assert reading.sample(seen, after=1, answers=[OF_NODE]).uuids == {GPU: UUID}


def test_a_server_of_an_older_version_is_asked_in_that_version(reading):
    reading.sample(kubelet(prepared()), answers=[NOT_FOUND, OF_NODE, answer(TRAIN)])
    assert [path.partition("/")[0] for path in reading.requests] == ["v1", "v1beta2", "v1beta2"]


def test_a_server_without_them_is_no_error_and_is_asked_rarely(reading):
    seen = kubelet(prepared())
    assert reading.sample(seen, answers=[NOT_FOUND] * 3).resource_claims == ()
    assert reading.sample(seen, after=AGAIN_SECONDS - 1).resource_claims == ()
    reading.sample(seen, after=1, answers=[NOT_FOUND] * 3)


def test_a_failure_of_one_is_a_rejection_and_is_tried_again(reading):
    seen = kubelet(prepared())
    sample = reading.sample(seen, answers=[OF_NODE, FORBIDDEN])
    (rejection,) = sample.rejections
    assert (rejection.object_name, rejection.reason) == (
        "ResourceClaim ml/train",
        Reason.FORBIDDEN,
    )
    again = reading.sample(seen, answers=[answer(TRAIN)])
    assert (again.resource_claims, again.rejections) == ((decoded(TRAIN),), ())


def test_without_the_slices_the_source_fails_and_is_asked_again(reading):
    seen = kubelet(prepared())
    with pytest.raises(SourceError, match="no right"):
        reading.sample(seen, answers=[FORBIDDEN])
    assert reading.sample(seen, answers=[OF_NODE, answer(TRAIN)]).resource_claims


LEFT = DriverResourceClaim(ResourceClaim("uid-train", "ml", "train", ()), "gpu.nvidia.com", {})
WITHOUT_STATE = {"dra_state_known": False}


@pytest.mark.parametrize("fields", [{}, WITHOUT_STATE])
def test_what_only_a_driver_has_is_read_again_until_it_is_gone(reading, fields):
    seen = kubelet(driver_resource_claims=(LEFT,), **fields)
    assert reading.sample(seen, answers=[OF_NODE, answer(TRAIN)]).gone == frozenset()
    assert reading.sample(seen, after=AGAIN_SECONDS, answers=[NOT_FOUND]).gone == {"uid-train"}


@pytest.mark.parametrize(
    "seen",
    [
        kubelet(prepared(), driver_resource_claims=(LEFT,)),
        kubelet(held_resource_claims=(HELD,), driver_resource_claims=(LEFT,), **WITHOUT_STATE),
    ],
)
def test_what_the_kubelet_has_too_is_read_once_whether_it_exists_or_not(reading, seen):
    assert reading.sample(seen, answers=[OF_NODE, NOT_FOUND]).gone == {"uid-train"}
    assert reading.sample(seen, after=AGAIN_SECONDS).gone == {"uid-train"}


def test_the_old_one_of_two_resource_claims_of_a_name_is_gone(reading):
    """The driver has not released a ResourceClaim, and a pod uses a new one of that name."""
    old = DriverResourceClaim(ResourceClaim("older", "ml", "train", ()), "gpu.nvidia.com", {})
    seen = kubelet(held_resource_claims=(HELD,), driver_resource_claims=(old,), **WITHOUT_STATE)
    sample = reading.sample(seen, answers=[OF_NODE, answer(TRAIN)])
    assert (sample.gone, sample.resource_claims) == ({"older"}, (decoded(TRAIN),))


def test_without_the_kubelets_state_other_pods_are_a_reason_to_read_again(reading):
    """Its users are in a ResourceClaim, and they say whose region of HAMi's driver it is."""
    web, new = PodRef("u1", "ml", "web"), PodRef("u2", "ml", "web")
    seen = KubeletSample({"u1": web}, {}, held_resource_claims=(HELD,), **WITHOUT_STATE)
    reading.sample(seen, answers=[OF_NODE, answer(TRAIN)])
    assert reading.sample(seen, after=AGAIN_SECONDS).resource_claims
    replaced = KubeletSample({"u2": new}, {}, held_resource_claims=(HELD,), **WITHOUT_STATE)
    assert reading.sample(replaced, answers=[answer(TRAIN)]).resource_claims
