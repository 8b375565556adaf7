"""The regions of HAMi's DRA driver: a folder for each ResourceClaim, and whose they are."""

import msgspec
import pytest

from tests.exporter.test_observation import answers, look
from tests.support.regions import a_region, place, write
from vgpu.model.facts import (
    HeldResourceClaim,
    KubeletSample,
    PreparedResourceClaim,
    RegionFile,
    ResourceClaimSample,
    ShimSample,
)
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason
from vgpu.model.resource_claims import ResourceClaim
from vgpu.schemes.registry import registry
from vgpu.sources.collector import Collector
from vgpu.sources.observation import Collectors
from vgpu.sources.samples import with_resource_claim_users
from vgpu.sources.shim import ShimSource

RESOURCE_CLAIM = "0f9b2a52-1c4d-4a50-9c5e-52d1f6a7b801"
POD = PodRef("u1", "ml", "web")
OTHER = PodRef("u2", "ml", "job")
GOOD = a_region("v1.2")


@pytest.fixture
def resource_claim_folder(tmp_path):
    root = tmp_path / "claims"
    root.mkdir()
    return root


def region_of(resource_claim_folder, resource_claim=RESOURCE_CLAIM):
    (resource_claim_folder / resource_claim).mkdir()
    path = resource_claim_folder / resource_claim / "5d7c.cache"
    write(path, GOOD)
    return path


def kubelet(*uses, pods=("u1",), resource_claim=RESOURCE_CLAIM):
    """The kubelet's data; each use is a pod and its container."""
    prepared = PreparedResourceClaim(resource_claim, "ml", "train", pods, ())
    held = tuple(
        HeldResourceClaim(pod.namespace, pod.name, container, "train", ())
        for pod, container in uses
    )
    named = {pod.uid: pod for pod in (POD, OTHER)}
    return KubeletSample(named, {}, resource_claims=(prepared,), held_resource_claims=held)


def test_the_region_of_a_resource_claim_is_read_beside_those_of_containers(
    tmp_path, resource_claim_folder
):
    root = tmp_path / "containers"
    root.mkdir()
    place(root, GOOD)
    path = region_of(resource_claim_folder)
    (resource_claim_folder / "not-a-claim").mkdir()
    sample = ShimSource([str(root)], resource_claim_roots=[str(resource_claim_folder)]).sample()
    assert len(sample.files) == 2
    assert sample.files[1] == RegionFile(str(path), "", "", GOOD, RESOURCE_CLAIM)
    assert [one.reason for one in sample.rejections] == [Reason.BAD_DIRECTORY_NAME]


def test_a_node_without_the_folder_has_the_sample_that_it_had(tmp_path, resource_claim_folder):
    """Neither a rejection nor an error: only HAMi's DRA driver makes it."""
    none = str(tmp_path / "none")
    without = ShimSource([none], required=False).sample()
    assert (
        ShimSource([none], required=False, resource_claim_roots=[f"{none}-either"]).sample()
        == without
    )
    path = region_of(resource_claim_folder)
    alone = ShimSource(
        [none], required=False, resource_claim_roots=[str(resource_claim_folder)]
    ).sample()
    assert [file.path for file in alone.files] == [str(path)]
    assert registry().resource_claim_roots == ("/usr/local/vgpu/claims",)


@pytest.mark.parametrize(
    ("seen", "place"),
    [
        (kubelet((POD, "main")), ("u1", "main")),
        (kubelet((POD, "main"), (OTHER, "main")), ("u1", "main")),  # another pod's of that name
        (kubelet((POD, "main"), resource_claim="another"), None),  # no pod uses it any more
        (kubelet(), None),
        (None, None),
    ],
)
def test_it_is_of_the_only_container_that_uses_the_resource_claim(
    resource_claim_folder, seen, place
):
    region_of(resource_claim_folder)
    sample = ShimSource(
        [], required=False, resource_claim_roots=[str(resource_claim_folder)]
    ).sample()
    joined = with_resource_claim_users(sample, seen)
    assert [(file.pod_uid, file.container) for file in joined.files] == ([place] if place else [])
    assert joined.rejections == ()


def test_of_several_containers_it_is_nobodys(resource_claim_folder):
    path = region_of(resource_claim_folder)
    sample = ShimSource(
        [], required=False, resource_claim_roots=[str(resource_claim_folder)]
    ).sample()
    for seen in (
        kubelet((POD, "main"), (POD, "side")),
        kubelet((POD, "main"), (OTHER, "main"), pods=("u1", "u2")),
    ):
        joined = with_resource_claim_users(sample, seen)
        assert joined.files == ()
        (rejection,) = joined.rejections
        assert (rejection.object_name, rejection.reason) == (str(path), Reason.AMBIGUOUS)


def at_api_server(*pods):
    return ResourceClaimSample(
        (ResourceClaim(RESOURCE_CLAIM, "ml", "train", (), reserved_for=pods),)
    )


def without_state(*uses):
    return msgspec.structs.replace(kubelet(*uses), resource_claims=(), dra_state_known=False)


def test_without_the_kubelets_state_the_api_server_has_the_uid_of_the_resource_claim(
    resource_claim_folder,
):
    path = region_of(resource_claim_folder)
    sample = ShimSource(
        [], required=False, resource_claim_roots=[str(resource_claim_folder)]
    ).sample()
    alone, both = without_state((POD, "main")), without_state((POD, "main"), (OTHER, "main"))
    (file,) = with_resource_claim_users(sample, alone, at_api_server(POD)).files
    assert (file.pod_uid, file.container) == ("u1", "main")
    for seen, api in ((alone, at_api_server(OTHER)), (alone, None), (None, at_api_server(POD))):
        assert with_resource_claim_users(sample, seen, api) == ShimSample(())
    (rejection,) = with_resource_claim_users(sample, both, at_api_server(POD, OTHER)).rejections
    assert (rejection.object_name, rejection.reason) == (str(path), Reason.AMBIGUOUS)
    state = kubelet(
        (POD, "main"), resource_claim="another"
    )  # where it is known, the kubelet decides
    assert with_resource_claim_users(sample, state, at_api_server(POD)).files == ()


@pytest.mark.parametrize(
    ("seen", "api"), [(kubelet((POD, "main")), None), (without_state((POD, "main")), POD)]
)
def test_an_observation_has_it_under_its_container(resource_claim_folder, seen, api):
    region_of(resource_claim_folder)
    source = ShimSource([], required=False, resource_claim_roots=[str(resource_claim_folder)])
    on = Collectors(
        shim=Collector("shim", lambda _: source.sample()),
        kubelet=Collector("kubelet", answers(seen)),
        resource_claims=api and Collector("dra", answers(at_api_server(api))),
    )
    (file,) = look(on).shim.files
    assert (file.pod_uid, file.container) == ("u1", "main")
