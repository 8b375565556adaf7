"""The pods that Allocate may be for: the kubelet sends only the number of devices."""

import pytest

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.candidates import Claims, candidates, no_candidate
from deviceplugin.reasons import BindRefusal
from tests.deviceplugin.allocation_values import (
    GPUS,
    INIT,
    NUMBER,
    ROLE,
    SIDECAR,
    A,
    B,
    assignment,
    claimed,
    made,
    pod,
    replace,
    running,
    share,
)
from vgpu.model.names import ContainerKind, Phase, PodRef
from vgpu.model.objects import MIRROR, Container, ContainerState, Pod, Status
from vgpu.schemes.gpushare.annotations import ASSIGNED, CHANGED_AT, INDEX
from vgpu.schemes.gpushare.node import NAMES

APP = ContainerKind.APP
EMPTY = AllocationState.of(GPUS)
TIME = "volcano.sh/vgpu-time"
BIND_TIME = "volcano.sh/bind-time"

CLAIMS = Claims(ROLE.codec)


def promised(uid, at, *shares, **fields):
    """A pod that the scheduler promised its devices at this time."""
    return pod(uid, *shares, annotations={TIME: str(at)}, **fields)


def found(*pods, allocation_state=EMPTY, count=1, **options):
    """(UID, container) of the candidates, in their order."""
    listed = candidates(CLAIMS, pods, allocation_state, NUMBER, count, **options)
    return [(one.pod.ref.uid, one.container) for one in listed]


def refusal_text(*pods, allocation_state=EMPTY, count=1):
    return str(no_candidate(CLAIMS, pods, allocation_state, NUMBER, count))


def bound(one, *containers, allocation_state=EMPTY):
    """The allocation state with these containers of the pod bound."""
    allocation_state = allocation_state.admitted(one, claimed(one), 1.0)
    for container in containers:
        answer = assignment(one, container, f"{one.ref.uid}-{container}")
        allocation_state = allocation_state.bound(answer, one, ROLE.codec.requests(one), 2.0)
    return allocation_state


def test_who_was_promised_first_comes_first():
    assert found(promised("p", 30), promised("q", 10), promised("r", 20)) == [
        ("q", "main"),
        ("r", "main"),
        ("p", "main"),
    ]


def test_only_just_so_many_devices_match():
    two = promised("q", 10, share(A, 1), share(B, 1))
    assert found(promised("p", 30), two, count=2) == [("q", "main")]


def test_with_equal_times_the_older_pod_comes_first_and_then_the_name_decides():
    pods = (
        promised("p", 10, name="c", created_at=5.0),
        promised("q", 10, name="b", created_at=6.0),
        promised("r", 10, name="a", created_at=6.0),
    )
    assert [uid for uid, _ in found(*pods)] == ["p", "r", "q"]


def test_without_a_time_the_age_of_the_pod_counts():
    bare = pod("p", created_at=15.0)
    bare = replace(bare, annotations={k: v for k, v in bare.annotations.items() if k != TIME})
    bare = replace(bare, annotations={k: v for k, v in bare.annotations.items() if k != BIND_TIME})
    assert [uid for uid, _ in found(promised("r", 20), bare, promised("q", 10))] == ["q", "p", "r"]


def test_what_cannot_be_read_is_a_candidate_and_comes_last():
    pods = (
        pod("p", annotations={"volcano.sh/vgpu-ids-new": "nonsense"}, created_at=1.0),
        replace(pod("q", created_at=2.0), annotations={}),
        promised("r", 99),
    )
    assert [uid for uid, _ in found(*pods)] == ["r", "q", "p"]


def test_a_failed_pod_is_none():
    assert not found(pod("p", annotations={"volcano.sh/bind-phase": "failed"}))


@pytest.mark.parametrize("state", ["Failed", "Succeeded"])
def test_a_pod_that_is_over_is_none(state):
    assert not found(pod("p", state=state))


def test_a_pod_that_is_being_deleted_may_still_be_asked_for():
    assert found(pod("p", deleted_at=1.0)) == [("p", "main")]


@pytest.mark.parametrize(
    "fields",
    [{"deleted_at": 1.0}, {"annotations": {MIRROR: "ab" * 16}}],
    ids=["deleted", "called a mirror"],
)
def test_who_will_hardly_be_asked_for_comes_after_all_who_wait(fields):
    odd = pod("p", **fields)
    odd = replace(odd, annotations={**odd.annotations, TIME: "10"})
    late = replace(pod("q"), annotations={})  # nobody has promised it anything yet
    assert [uid for uid, _ in found(odd, late)] == ["q", "p"]
    assert [uid for uid, _ in found(odd, running(late))] == ["p", "q"]


def test_for_whom_answers_were_made_in_vain_comes_after_all_who_wait():
    pods = (promised("p", 10), promised("q", 20), promised("r", 30))
    assert [uid for uid, _ in found(*pods, unlikely={"p"})] == ["q", "r", "p"]


def test_a_static_pod_of_which_one_container_was_asked_for_comes_first_all_the_same():
    two = made("p", [("main", APP, (share(A, 2),)), ("side", APP, (share(B, 2),))])
    uid = "ab" * 16
    two = replace(two, annotations={**two.annotations, TIME: "99", MIRROR: uid})
    first = found(promised("q", 10), two, answered={(uid, "main")})[0]
    assert first == ("p", "side")


def test_the_kubelet_asks_for_the_init_list_first():
    one = made(
        "p",
        [
            ("main", APP, (share(A, 2),)),
            ("side", APP, (share(B, 2),)),
            ("fetch", INIT, (share(A, 1),)),
            ("proxy", SIDECAR, (share(A, 1),)),
        ],
    )
    assert [name for _, name in found(one)] == ["fetch", "proxy", "main", "side"]


def test_an_unfinished_pod_comes_first():
    two = made("p", [("main", APP, (share(A, 2),)), ("side", APP, (share(B, 2),))])
    two = replace(two, annotations={**two.annotations, TIME: "99"})
    assert found(promised("q", 10), two, allocation_state=bound(two, "main")) == [
        ("p", "side"),
        ("q", "main"),
        ("p", "main"),  # only a kubelet without memory would ask for it again
    ]


def test_what_the_kubelet_has_an_answer_for_is_not_waiting():
    pods = (promised("p", 10), promised("q", 20))
    assert found(*pods, answered={("p", "main")}) == [("q", "main"), ("p", "main")]


def test_who_has_started_may_only_be_asked_for_again():
    pods = (running(promised("p", 10)), promised("q", 20))
    assert found(*pods) == [("q", "main"), ("p", "main")]
    assert [one.again for one in candidates(CLAIMS, pods, EMPTY, NUMBER, 1)] == [False, True]


@pytest.mark.parametrize(
    "status",
    [
        Status("main", ContainerState.TERMINATED),
        Status("main", ContainerState.WAITING, restarts=1),
        Status("main", ContainerState.WAITING, id="id-1"),
    ],
)
def test_one_that_ran_once_has_started(status):
    (only,) = candidates(CLAIMS, [pod("p", statuses=(status,))], EMPTY, NUMBER, 1)
    assert only.again


def test_the_originals_success_does_not_matter_as_long_as_nothing_has_started():
    """It was killed after the API server was written, and before the kubelet had the answer."""
    served = pod("p", phase=Phase.ASSIGNED, statuses=(Status("main", ContainerState.WAITING),))
    assert served.annotations["volcano.sh/bind-phase"] == "success"
    (only,) = candidates(CLAIMS, [served], EMPTY, NUMBER, 1)
    assert not only.again


def test_gpushares_retry_finds_the_pod_that_is_assigned_already():
    adapter = GpushareAdapter()

    def waiting(uid, assigned, at):
        annotations = {INDEX: "0", ASSIGNED: assigned, CHANGED_AT: f"{at}000000000"}
        containers = (Container("main", {NAMES.memory: 4}),)
        return Pod(
            PodRef(uid, "team", uid),
            node="node-1",
            annotations=annotations,
            containers=containers,
            phase="Pending",
            created_at=float(at),
        )

    pods = (waiting("new", "false", 20), waiting("again", "true", 10))
    listed = candidates(Claims(adapter.codec), pods, EMPTY, NAMES.memory, 4)
    assert [one.pod.ref.uid for one in listed] == ["again", "new"]


def test_another_resource_has_no_candidates():
    assert not candidates(CLAIMS, [pod("p")], EMPTY, "aliyun.com/gpu-mem", 1)


# ---------------------------------------------------------------- when there is none


def test_the_refusal_names_the_request_and_who_comes_near():
    failed = pod("d", annotations={"volcano.sh/bind-phase": "failed"})
    text = refusal_text(pod("b"), failed, count=2)
    assert no_candidate(CLAIMS, (), EMPTY, NUMBER, 2).why is BindRefusal.NO_CANDIDATE
    assert text == (
        "2 of volcano.sh/vgpu-number were requested on node node-1; waiting there:"
        " team/pod-b wants 1 (container main), team/pod-d has failed; none wants 2"
    )


def test_where_no_pod_waits_the_refusal_reports_it():
    started = running(pod("p"))
    text = "3 of volcano.sh/vgpu-number were requested on node node-1; no pod waits there"
    assert refusal_text(started, count=3) == text
    assert "on this node; no pod" in refusal_text(count=3)


def test_the_refusal_does_not_grow_with_the_pods():
    pods = [pod(f"p{n:03}") for n in range(200)]
    assert "and 196 more; none wants 2" in refusal_text(*pods, count=2)
    assert len(refusal_text(*pods, count=2)) < 400
