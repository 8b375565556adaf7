"""The scores for kube-scheduler: scaled among the nodes that are offered and take the pod."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.filter.node_scores import BEST_SCORE, extender_scores
from tests.scheduler.served import Served, query
from tests.scheduler.test_differential import limits, new_pod
from tests.scheduler.test_policies import NODE_POLICY, PIN
from tests.scheduler.test_promise import NODES

NAMES = [f"n{number}" for number in range(4)]
SYSTEMS = sorted(NODES)

suitabilities = st.lists(st.integers(0, 640).map(lambda part: part / 640), min_size=1, max_size=9)


@given(suitabilities)
def test_the_best_nodes_alone_have_the_best_score(suited):
    scores = extender_scores(suited)
    best = {each for each, score in scores.items() if score == BEST_SCORE}
    assert best == {max(suited)}


@given(suitabilities)
def test_a_node_that_suits_better_never_scores_less(suited):
    scores = extender_scores(suited)
    in_order = [scores[each] for each in sorted(set(suited))]
    assert in_order == sorted(in_order)
    assert {type(score) for score in in_order} == {int}
    assert 0 <= in_order[0] <= in_order[-1] <= BEST_SCORE


def test_a_difference_far_below_one_score_counts():
    """1 GiB of a node with 16 GPUs of 192 GiB."""
    share = float(Fraction(1, 16 * 192))
    assert extender_scores([0.5, 0.5 + share]) == {0.5: 0, 0.5 + share: 10}


def test_without_nodes_there_are_no_scores():
    assert extender_scores([]) == {}


def placed(served, system, count, **annotations):
    """The number of pods of a quarter of a GPU on each node, of the best nodes the last."""
    numbers = dict.fromkeys(NAMES, 0)
    for number in range(count):
        pod = new_pod(f"p{number}", limits(system, 1, 1), annotations=annotations)
        names, _ = served.filter(pod, NAMES)
        scores = served.scores(pod, names)
        best = [name for name in names if scores[name] == max(scores.values())]
        assert not served.bind(served.api.store(pod).ref, best[-1])
        served.show(pod.ref.name, served.api.pods[pod.ref.name])
        numbers[best[-1]] += 1
    return sorted(numbers.values(), reverse=True)


def with_nodes(served, system):
    for name in NAMES:
        served.cache.set_node(name, structs.replace(NODES[system], name=name))
    return served


@pytest.mark.parametrize("system", SYSTEMS)
def test_pods_fill_one_idle_node_after_another(system):
    with Served() as served:
        assert placed(with_nodes(served, system), system, 10) == [8, 2, 0, 0]


def test_hamis_annotation_spreads_the_same_pods():
    with Served() as served:
        spread = {NODE_POLICY: "spread"}
        assert placed(with_nodes(served, "hami"), "hami", 10, **spread) == [3, 3, 2, 2]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_node_that_does_not_take_the_pod_scores_nothing(system):
    """And the others are compared with each other alone."""
    with Served() as served:
        with_nodes(served, system)
        pins = {PIN[system]: "GPU-0"} if system in PIN else {}
        for number in range(5):
            pod = new_pod(f"p{number}", limits(system, 4 if number < 2 else 1, 1))
            assert not served.bind(served.api.store(pod).ref, "n0" if number < 2 else "n1")
            served.show(pod.ref.name, served.api.pods[pod.ref.name])
        pod = new_pod("scored", limits(system, 1, 1), annotations=pins)
        assert served.scores(pod, NAMES) == {"n0": 0, "n1": 10, "n2": 0, "n3": 0}
        assert served.scores(pod, ["n0", "n2", "n3"]) == {"n0": 0, "n2": 10, "n3": 10}


@pytest.mark.parametrize("system", SYSTEMS)
def test_filter_offers_the_best_node_only_where_nobody_asks_for_scores(system):
    with Served(best_node_only=True) as served:
        with_nodes(served, system)
        first = new_pod("first", limits(system, 1, 1))
        assert not served.bind(served.api.store(first).ref, "n2")
        served.show("first", served.api.pods["first"])
        answer = served.post("/filter", query(new_pod("second", limits(system, 1, 1)), NAMES))
        assert answer["NodeNames"] == ["n2"]
        assert not answer["FailedNodes"]  # kube-scheduler would preempt pods there
        assert not answer["FailedAndUnresolvableNodes"]


def test_filter_offers_a_node_where_pods_under_way_would_take_all():
    """They may not be bound, so the bind decides, as without the flag."""
    with Served(best_node_only=True) as served:
        with_nodes(served, "hami")
        for number in range(12):
            pod = new_pod(f"p{number}", limits("hami", 4, 1))
            answer = served.post("/filter", query(pod, NAMES[:2]))
            assert len(answer["NodeNames"]) == 1, number


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_a_pod_that_is_being_bound_counts_on_its_node(policy):
    """kube-scheduler asks for the next pod while it binds the one before."""
    asked, wish = limits("hami", 1, 1), {NODE_POLICY: policy}
    with Served() as served:
        with_nodes(served, "hami")
        first, second = (new_pod(name, asked, annotations=wish) for name in ("first", "second"))
        served.filter(first, NAMES)
        served.cache.note_bind(first.ref.uid, "n2")
        served.filter(second, NAMES)
        best, other = (10, 0) if policy == "binpack" else (0, 10)
        scores = served.scores(second, NAMES)
        assert scores.pop("n2") == best
        assert max(scores.values()) == other
        served.cache.note_unbound(first.ref.uid)
        assert set(served.scores(second, NAMES).values()) == {10}


@pytest.mark.parametrize(
    ("policy", "expected"), [("binpack", [8, 0, 0, 0]), ("spread", [2, 2, 2, 2])]
)
def test_pods_that_come_before_any_bind_are_placed_as_slow_ones_are(policy, expected):
    """kube-scheduler's requests to bind can come long after those for the next pods."""
    numbers = dict.fromkeys(NAMES, 0)
    with Served() as served:
        with_nodes(served, "hami")
        for number in range(8):
            wish = {NODE_POLICY: policy}
            pod = new_pod(f"p{number}", limits("hami", 1, 1), annotations=wish)
            names, _ = served.filter(pod, NAMES)
            scores = served.scores(pod, names)
            best = [name for name in names if scores[name] == 10]
            if number == 0:
                served.cache.note_bind(pod.ref.uid, best[-1])  # of equal nodes it takes any
            numbers[best[-1]] += 1
    assert sorted(numbers.values(), reverse=True) == expected
