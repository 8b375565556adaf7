"""The pods that would have to end bring their namespace back, and none of them ends for nothing."""

from hypothesis import given
from hypothesis import strategies as st

from tests.quota.test_check import quotas, usages
from vgpu.quota.check import overruns, relief
from vgpu.quota.declarations import Declarations, DeclaredLimit
from vgpu.quota.limits import resolve
from vgpu.quota.resources import GPUS, MEMORY
from vgpu.quota.usage import NamespaceUsage, PodUsage

pods = st.lists(usages, max_size=10).map(
    lambda all_usages: [(f"pod-{number}", usage) for number, usage in enumerate(all_usages)]
)


def used_by(pods, without):
    used = NamespaceUsage()
    for uid, usage in pods:
        if uid not in without:
            used.set(uid, usage)
    return used.by_model


@given(quotas, pods, st.frozensets(st.sampled_from([f"pod-{number}" for number in range(10)])))
def test_without_them_no_limit_is_exceeded_and_each_of_them_is_needed(quota, pods, leaving):
    chosen = relief(quota, pods, leaving)
    assert leaving.isdisjoint(chosen)
    ended = leaving | {*chosen}
    assert not [*overruns(quota, used_by(pods, ended))]
    for uid in chosen:
        assert [*overruns(quota, used_by(pods, ended - {uid}))]


def test_pods_come_in_their_order_and_larger_ones_spare_smaller_ones():
    quota = resolve("a", Declarations((DeclaredLimit(MEMORY, 10, "here"),)))
    sizes = {"first": 1, "other": 0, "second": 2, "large": 9, "last": 4}
    pods = [(uid, PodUsage({"": {MEMORY: size, GPUS: 1}})) for uid, size in sizes.items()]
    assert relief(quota, pods) == ("large",), "the first two are not needed beside it"
    assert relief(quota, pods, frozenset({"large"})) == ()
