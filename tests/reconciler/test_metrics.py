"""The reconciler's own metrics: what is counted, what is absent, and how little of it there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from reconciler.cycle import SEEING, Cycle, Ending, Stage
from reconciler.metrics import NAMESPACES, TABLES, ReconcilerMetrics
from reconciler.model import ActionResult, Scope
from reconciler.plan import make_plan
from reconciler.policy import Limits, Mode, Policy
from reconciler.reasons import ActionOutcome, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.schedule import Missed
from tests.quota.trees import asking
from tests.reconciler.samples import (
    CODECS_IN_USE,
    NOW,
    SHARE,
    assumed,
    node,
    pod,
    prestart_failed,
    refused,
    replace,
    snapshot,
)
from tests.support.metrics_lint import lint
from vgpu.kube.kueue_kinds import ClusterQueue, Cohort, LocalQueue, Reserved
from vgpu.kube.volcano_kinds import PodGroup, Queue
from vgpu.metrics.render import Format
from vgpu.model.declared_quota import DeclaredQuota, QuotaResource
from vgpu.model.objects import Namespace
from vgpu.quota.kueue_config import KueueConfig
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.limits import cluster_quotas
from vgpu.quota.queue_amounts import MOST_QUEUES
from vgpu.quota.queue_line import AmountKind
from vgpu.quota.volcano_scheduler import VolcanoScheduler
from vgpu.quota.volcano_tree import VolcanoObjects

SICK = snapshot(
    refused(pod("sick-0")),
    refused(pod("sick-1")),
    prestart_failed(pod("sick-2")),
    assumed("bare-0", kind=None),
    node("gpu-1"),
)


def planned(seen=SICK, **policy):
    return make_plan(seen, Policy(**policy), ReconcilerState(), CODECS_IN_USE)[0]


def cycle(ending=Ending.PLANNED, began=NOW, plan=None, **fields):
    return Cycle(began, ending, plan, **fields)


def series(numbers):
    """Samples by name and labels."""
    text = numbers.render().body(Format.TEXT).decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_format(text)
        for sample in family.samples
    }


@pytest.fixture
def numbers():
    return ReconcilerMetrics(Scope.CLUSTER, Mode.APPLY)


def test_the_tables_follow_our_rules_and_have_no_label_for_a_pod_or_a_node():
    assert lint(TABLES) == []
    labels = {label for table in TABLES for label in table.labels}
    labels |= {label for table in TABLES for family in table.families for label in family.extra}
    assert not labels & {"pod", "node", "uid", "name", "owner"}
    families = [family for table in TABLES for family in table.families]
    of_namespaces = {family.name for family in families if "namespace" in family.extra}
    assert of_namespaces == {family.name for family in NAMESPACES.families}


def test_namespaces_have_what_they_wait_for_their_team_and_their_quota(numbers):
    annotations = {"vgpu.dev/quota-gpus": "3"}
    spaces = (Namespace("ml", {"team": "vision"}, annotations),)
    sight = snapshot(
        pod("a"),
        pod("waits", node="", claim=None),
        quota_namespaces=spaces,
        quotas=cluster_quotas(spaces, (), None),
    )
    numbers.note(cycle(plan=planned(sight)))
    samples = series(numbers)
    assert samples["vgpu_reconcile_namespace_info", "ml", "vision"] == 1
    assert samples["vgpu_reconcile_waiting_pods", "ml"] == 1
    assert samples["vgpu_reconcile_waiting_memory_bytes", "ml"] == SHARE
    assert samples["vgpu_reconcile_quota_used", "gpus", "ml"] == 1
    assert samples["vgpu_reconcile_quota_limit", "gpus", "ml"] == 3


GPU = QuotaResource("t4", "nvidia.com/gpu")
KUEUE = KueueObjects(
    (ClusterQueue("a", "ml", {GPU: DeclaredQuota(4)}, {GPU: Reserved(6, 2)}),),
    (LocalQueue("team", "main", "a", {GPU: Reserved(6)}),),
    (Cohort("ml", "", {GPU: DeclaredQuota(8)}),),
    workloads=(asking("main", 3),),
    config=KueueConfig(),
    is_read=True,
)
IN_QUEUE = pod("a", labels={"kueue.x-k8s.io/queue-name": "main"}, namespace="team")
HELD = ((IN_QUEUE, {"gpus": 2, "memory": 5, "cores": 0}),)


def of_queues(numbers, kueue, held=HELD, **fields):
    numbers.note(cycle(plan=planned(snapshot(IN_QUEUE, kueue=kueue, held=held, **fields))))
    return {key: value for key, value in series(numbers).items() if "_queue" in key[0]}


def test_queues_have_their_amounts_by_resource_flavor_and_kind(numbers):
    name, a = "vgpu_reconcile_queue_quota", ("ClusterQueue", "a", "nvidia.com/gpu", "t4")
    found = of_queues(numbers, KUEUE)
    amounts = {
        kind: found.get((name, *sorted((*a, kind))))
        for kind in ("limit", "nominal", "borrowed", "lent", "used", "held", "waiting")
    }
    assert amounts == {
        "limit": 12,
        "nominal": 4,
        "borrowed": 2,
        "lent": 0,
        "used": 6,
        "held": 0,
        "waiting": 3,
    }
    whose = sorted(("LocalQueue", "team/main", "nvidia.com/gpu", "t4", "used"))
    assert found[name, *whose] == 6
    assert found["vgpu_reconcile_queue_waiting_workloads", *sorted(("Cohort", "ml"))] == 1
    assert found["vgpu_reconcile_queues_left_out",] == 0


def test_what_pods_hold_of_a_queue_without_a_known_flavor_has_an_empty_one(numbers):
    labels = sorted(("ClusterQueue", "a", "nvidia.com/gpu", "held"))
    assert of_queues(numbers, KUEUE)["vgpu_reconcile_queue_quota", *labels] == 2


NUMBER, OF_VOLCANO = "volcano.sh/vgpu-number", VolcanoScheduler(frozenset({"capacity"}), problem="")
VOLCANO = VolcanoObjects(
    (
        Queue("root", "Open"),
        Queue("ml", "Open", {NUMBER: "4"}, {NUMBER: "3"}, "", {NUMBER: "2"}, {NUMBER: "1"}),
    ),
    (PodGroup("team", "waits", "ml", phase="Pending", requests={NUMBER: "2"}),),
    OF_VOLCANO,
)
IN_VOLCANO = pod("v", annotations={"scheduling.volcano.sh/queue-name": "ml"}, namespace="team")


def amounts_of(found, *labels):
    """The amounts of one queue and resource, by their kind."""
    return {
        kind: value
        for kind in AmountKind
        if (value := found.get(("vgpu_reconcile_queue_quota", *sorted((*labels, kind)))))
        is not None
    }


def test_queues_of_volcano_have_their_amounts_beside_those_of_kueue(numbers):
    held = (*HELD, (IN_VOLCANO, {"gpus": 2}))
    found = of_queues(numbers, KUEUE, held, volcano=VOLCANO)
    assert amounts_of(found, "Queue", "ml", NUMBER) == {
        "limit": 4,
        "nominal": 2,
        "guaranteed": 1,
        "used": 3,
        "held": 2,
        "waiting": 2,
    }
    assert found["vgpu_reconcile_queue_waiting_workloads", *sorted(("Queue", "ml"))] == 1
    assert found["vgpu_reconcile_queue_waiting_workloads", *sorted(("Cohort", "ml"))] == 1


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"scheduler": VolcanoScheduler()}, {"limit"}),
        ({"unread": frozenset({"PodGroup"}), "groups": ()}, {"held", "waiting"}),
    ],
)
def test_an_amount_of_volcano_that_is_assumed_or_not_read_has_no_series(numbers, fields, missing):
    found = of_queues(numbers, KueueObjects(), (), volcano=replace(VOLCANO, **fields))
    kinds = amounts_of(found, "Queue", "ml", NUMBER).keys()
    assert kinds == {"limit", "nominal", "guaranteed", "used", "held", "waiting"} - missing
    named = [key for key in found if "workloads" in key[0]]
    assert bool(named) == ("waiting" in kinds)


@pytest.mark.parametrize(
    ("kind", "fields", "missing"),
    [
        ("Workload", {"workloads": ()}, "waiting"),
        ("Cohort", {"cohorts": ()}, "limit"),
        ("ClusterQueue", {"cluster_queues": ()}, "limit"),
    ],
)
def test_an_amount_that_was_not_read_has_no_series(numbers, kind, fields, missing):
    found = of_queues(numbers, replace(KUEUE, unread=frozenset({kind}), **fields))
    of_local = [key for key in found if "LocalQueue" in key]
    assert of_local
    assert not [key for key in of_local if missing in key]


def test_no_queue_is_no_series_and_queues_beyond_the_maximum_are_counted(numbers):
    assert of_queues(numbers, KueueObjects()) == {}
    many = replace(
        KUEUE, local_queues=tuple(LocalQueue("t", f"q{n}", "a") for n in range(MOST_QUEUES))
    )
    found = of_queues(numbers, many, ())
    assert found["vgpu_reconcile_queues_left_out",] == 3
    named = {key for key in found if key[0] == "vgpu_reconcile_queue_waiting_workloads"}
    assert len(named) == MOST_QUEUES
    assert {"ClusterQueue", "Cohort"} <= {label for key in named for label in key}


def test_every_rule_and_every_reason_has_a_number_even_if_it_is_zero(numbers):
    numbers.note(cycle(plan=planned()))
    samples = series(numbers)
    assert {rule: samples["vgpu_reconcile_findings", rule] for rule in Rule} == {
        **dict.fromkeys(Rule, 0),
        Rule.REFUSED: 2,
        Rule.PRESTART_FAILED: 1,
        Rule.ASSUMED_EXPIRED: 1,
    }
    assert {skip: samples["vgpu_reconcile_skipped", skip] for skip in SkipReason} == {
        **dict.fromkeys(SkipReason, 0),
        SkipReason.BARE_POD: 1,
    }
    assert samples["vgpu_reconcile_planned_actions", "refused", "tidying"] == 2
    assert samples["vgpu_reconcile_planned_actions", "prestart_failed", "recovery"] == 1
    assert samples["vgpu_reconcile_subjects", "Pod"] == 4
    assert samples["vgpu_reconcile_breaker_tripped",] == 0
    assert samples["vgpu_reconcile_breaker_wanted_actions",] == 2


def test_a_tripped_breaker_is_reported(numbers):
    numbers.note(cycle(plan=planned(limits=Limits(breaker=0.0, breaker_floor=0))))
    samples = series(numbers)
    assert samples["vgpu_reconcile_breaker_tripped",] == 1
    assert samples["vgpu_reconcile_breaker_allowed_actions",] == 0
    assert samples["vgpu_reconcile_skipped", "breaker_tripped"] == 3


def test_actions_are_counted_by_rule_and_outcome_over_all_cycles(numbers):
    plan = planned()
    outcomes = (ActionOutcome.DONE, ActionOutcome.DONE, ActionOutcome.BLOCKED_BY_PDB)
    results = tuple(map(ActionResult, plan.actions, outcomes))
    for _ in range(2):
        numbers.note(cycle(Ending.PARTLY, plan=plan, results=results))
    found = {
        key[1:]: number for key, number in series(numbers).items() if "actions_total" in key[0]
    }
    assert sum(found.values()) == 6
    assert found["done", "refused"] + found.get(("done", "prestart_failed"), 0) == 4
    assert series(numbers)["vgpu_reconcile_cycles_total", "partly"] == 2


@pytest.mark.parametrize("ending", [Ending.BLIND, Ending.STANDBY])
def test_without_a_plan_nothing_of_an_older_one_is_reported(numbers, ending):
    numbers.note(cycle(plan=planned(), seconds={Stage.OBSERVE: 1.0}))
    numbers.note(cycle(ending, NOW + 60))
    samples = series(numbers)
    plan_families = ("subjects", "findings", "planned", "skipped", "breaker")
    assert not [
        key
        for key in samples
        if key[0].startswith(tuple(f"vgpu_reconcile_{each}" for each in plan_families))
    ]
    assert ("vgpu_reconcile_cycle_duration_seconds",) not in samples
    assert samples["vgpu_reconcile_last_cycle_timestamp_seconds",] == NOW + 60
    assert samples["vgpu_reconcile_last_success_timestamp_seconds",] == NOW


def test_before_the_first_cycle_there_are_counters_and_nothing_else(numbers):
    samples = series(numbers)
    assert {key: number for key, number in samples.items() if "_total" not in key[0]} == {
        ("vgpu_reconcile_info", "apply", "cluster"): 1,
        ("vgpu_build_info",): 1,
    }
    assert samples["vgpu_reconcile_cycles_total", "blind"] == 0
    assert samples["vgpu_reconcile_missed_cycles_total", "still_running"] == 0


def test_the_duration_of_a_cycle_is_reported_whole_and_by_stage(numbers):
    numbers.note(cycle(seconds={Stage.OBSERVE: 1.5, Stage.PLAN: 0.25}))
    samples = series(numbers)
    assert samples["vgpu_reconcile_cycle_duration_seconds",] == 1.75
    assert samples["vgpu_reconcile_stage_duration_seconds", "observe"] == 1.5


def test_missed_cycles_leadership_and_requests_are_reported():
    led = [True]
    numbers = ReconcilerMetrics(
        Scope.CLUSTER,
        Mode.PLAN,
        leads=lambda: led[0],
        requests=lambda: {("list", "200"): 3, ("create", "0"): 1},
    )
    numbers.note_missed(Missed.STILL_RUNNING)
    samples = series(numbers)
    assert samples["vgpu_reconcile_missed_cycles_total", "still_running"] == 1
    assert samples["vgpu_reconcile_leader",] == 1
    assert samples["vgpu_reconcile_api_requests_total", "200", "list"] == 3
    led[0] = False
    assert series(numbers)["vgpu_reconcile_leader",] == 0


def test_without_an_election_nobody_is_called_leader(numbers):
    assert ("vgpu_reconcile_leader",) not in series(numbers)


@given(st.lists(st.sampled_from(Ending), max_size=20))
def test_counters_are_the_sum_of_all_cycles_and_the_last_success_never_lies(endings):
    numbers = ReconcilerMetrics(Scope.NODE, Mode.APPLY)
    for number, ending in enumerate(endings):
        numbers.note(cycle(ending, float(number)))
    samples = series(numbers)
    counted = {ending: samples["vgpu_reconcile_cycles_total", ending] for ending in Ending}
    assert counted == {ending: endings.count(ending) for ending in Ending}
    successes = [number for number, ending in enumerate(endings) if ending in SEEING]
    last = samples.get(("vgpu_reconcile_last_success_timestamp_seconds",))
    assert last == (successes[-1] if successes else None)


def test_both_formats_are_read_by_prometheus_own_parsers(numbers):
    numbers.note(cycle(plan=planned()))
    page = numbers.render()
    assert len(list(openmetrics(page.body(Format.OPENMETRICS).decode()))) > 10
    assert len(list(text_format(page.body(Format.TEXT).decode()))) > 10
