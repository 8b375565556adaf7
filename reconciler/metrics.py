"""The reconciler's own metric families, and the numbers behind them.

To add a metric, add a row to a table; ``docs/metrics.md`` is generated from them. No metric here
has a label for a pod or a node: there are too many of them.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from reconciler.cycle import SEEING, Cycle, Ending, Stage
from reconciler.model import NamespaceDemand, Plan, Scope
from reconciler.model import ObjectKind as Subject
from reconciler.policy import Mode
from reconciler.reasons import ActionOutcome, Rule, SkipReason
from reconciler.schedule import Missed
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType
from vgpu.metrics.process_families import BUILD_INFO, NODE_TOKEN, PROCESS, WEB
from vgpu.metrics.render import Exposition, Renderer
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.quota.check import Overrun
from vgpu.quota.queue_amounts import MOST_QUEUES
from vgpu.quota.resources import CORES, GPUS, MEMORY
from vgpu.quota.tree import QuotaName
from vgpu.schemes.registry import registry

GAUGE, COUNTER = MetricType.GAUGE, MetricType.COUNTER

Requests = Mapping[tuple[str, str], int]
"""Requests to the API server, by verb and HTTP status."""


class ReconcilerView(msgspec.Struct, frozen=True):
    """All numbers at one time.

    Attributes:
        plan: the newest; None while there is none, or while another reconciler leads.
        cycles: number of cycles by ending.
        actions: by rule and outcome.
        missed: cycles that were due and did not take place.
        seconds: of the newest cycle, by stage.
        last_cycle, last_success: begin of the last such cycle, unix seconds; None before the first.
        leads: None if there is no election.
        scope, mode: as this process runs.
        requests: to the API server.
        build, own: see :mod:`vgpu.metrics.process_families`.
    """

    plan: Plan | None
    cycles: Mapping[Ending, int]
    actions: Mapping[tuple[Rule, ActionOutcome], int]
    missed: Mapping[Missed, int]
    seconds: Mapping[Stage, float]
    last_cycle: float | None
    last_success: float | None
    leads: bool | None
    scope: Scope
    mode: Mode
    requests: Requests
    build: Mapping[str, str]
    own: Mapping[str, float]


# ---------------------------------------------------------------- the tables

_EXAMINED: Final = (Subject.POD, Subject.SHARE_POD, Subject.NODE, Subject.FOLDER)


def _of_plan(count: Callable[[Plan], Labelled]) -> Callable[[ReconcilerView], Labelled]:
    """Numbers of the newest plan; none without one."""
    return lambda view: {} if view.plan is None else count(view.plan)


def _found(plan: Plan) -> Labelled:
    counts = Counter(entry.finding.rule for entry in plan.entries)
    return {(rule.value,): counts[rule] for rule in Rule}


def _wanted(plan: Plan) -> Labelled:
    counts = Counter((entry.finding.rule, entry.finding.effect) for entry in plan.actions)
    return {(rule.value, effect.value): count for (rule, effect), count in counts.items()}


def _skipped(plan: Plan) -> Labelled:
    counts = Counter(entry.skip for entry in plan.skipped)
    return {(skip.value,): counts[skip] for skip in SkipReason}


def _unconfirmed(plan: Plan) -> Labelled:
    counts = Counter(doubt.row.name for doubt in plan.unit_doubts)
    return {(row.name,): counts[row.name] for row in registry().rows if row.unit}


def _of_namespaces(
    value: Callable[[NamespaceDemand], float],
) -> Callable[[ReconcilerView], Labelled]:
    return _of_plan(lambda plan: {(each.name,): value(each) for each in plan.namespaces})


def _of_limits(value: Callable[[Overrun], float]) -> Callable[[ReconcilerView], Labelled]:
    """A number of each limit of a quota."""
    return _of_plan(
        lambda plan: {
            (each.name, limit.limit.resource, limit.limit.model): value(limit)
            for each in plan.namespaces
            for limit in each.limits
        }
    )


_QUEUE: Final = ("kind", "queue")
"""No label ``namespace``: of a queue without one, a scrape job could write that of the target."""


def _queue(name: QuotaName) -> tuple[str, str]:
    """The labels of a queue."""
    return (name.level.value, name.name)


def _queue_amounts(plan: Plan) -> Labelled:
    return {
        (*_queue(each.queue), each.resource.resource, each.resource.flavor, kind.value): amount
        for each in plan.queues.amounts
        for kind, amount in each.amounts.items()
    }


def _one_row(title: str, *families: Family, note: str = "") -> FamilyTable:
    return FamilyTable(title, lambda view: (view,), (), lambda _: (), families, note)


PLAN: Final = _one_row(
    "The newest plan",
    Family(
        "vgpu_reconcile_subjects",
        GAUGE,
        "Objects that were examined, by kind.",
        _of_plan(
            lambda plan: {(kind.value,): plan.object_counts.get(kind, 0) for kind in _EXAMINED}
        ),
        ("kind",),
    ),
    Family(
        "vgpu_reconcile_findings",
        GAUGE,
        "Objects with a finding, by the first rule that reports them; each counts once.",
        _of_plan(_found),
        ("rule",),
    ),
    Family(
        "vgpu_reconcile_planned_actions",
        GAUGE,
        "Findings with a planned action; effect recovery gives a failed workload another chance,"
        " tidying removes what has been replaced, repair corrects allocation records.",
        _of_plan(_wanted),
        ("rule", "effect"),
    ),
    Family(
        "vgpu_reconcile_skipped",
        GAUGE,
        "Findings that are skipped although a rule would act, by the first reason that applies.",
        _of_plan(_skipped),
        ("reason",),
    ),
    Family(
        "vgpu_reconcile_notes",
        GAUGE,
        "Notes on what could not be read or was assumed; the log has them.",
        lambda view: None if view.plan is None else len(view.plan.notes),
    ),
    Family(
        "vgpu_reconcile_unit_unconfirmed_nodes",
        GAUGE,
        "Nodes whose data contradicts the unit of memory in force, so that sizes of shares on them"
        " may all be wrong by the same factor; the log has the units that would fit.",
        _of_plan(_unconfirmed),
        ("scheme",),
    ),
    Family(
        "vgpu_reconcile_breaker_tripped",
        GAUGE,
        "1 if more objects need an action than are allowed at once, so that nothing is done.",
        lambda view: None if view.plan is None else int(view.plan.breaker.tripped),
    ),
    Family(
        "vgpu_reconcile_breaker_wanted_actions",
        GAUGE,
        "Objects that need an action; tidying and repairs of one rule in one namespace count once.",
        lambda view: None if view.plan is None else view.plan.breaker.wanted,
    ),
    Family(
        "vgpu_reconcile_breaker_allowed_actions",
        GAUGE,
        "Objects that may need an action before the circuit breaker trips.",
        lambda view: None if view.plan is None else view.plan.breaker.allowed,
    ),
    note="Only of the reconciler that leads.",
)

_LIMIT: Final = ("namespace", "resource", "model")

NAMESPACES: Final = _one_row(
    "Namespaces with shared GPUs",
    Family(
        "vgpu_reconcile_namespace_info",
        GAUGE,
        "Always 1; the team that the Namespace names by its label (team_key).",
        _of_plan(lambda plan: {(each.name, each.team): 1 for each in plan.namespaces}),
        ("namespace", "team"),
    ),
    Family(
        "vgpu_reconcile_waiting_pods",
        GAUGE,
        "Pods that request shares and that no node has or is reserved for.",
        _of_namespaces(lambda each: each.waiting_pods),
        ("namespace",),
    ),
    Family(
        "vgpu_reconcile_waiting_gpus",
        GAUGE,
        "Shares that these pods request: GPUs that their containers would see.",
        _of_namespaces(lambda each: each.waiting[GPUS]),
        ("namespace",),
    ),
    Family(
        "vgpu_reconcile_waiting_memory_bytes",
        GAUGE,
        "Memory that these pods request, without what they leave to the size of the GPU.",
        _of_namespaces(lambda each: each.waiting[MEMORY]),
        ("namespace",),
        unit="bytes",
    ),
    Family(
        "vgpu_reconcile_waiting_core_ratio",
        GAUGE,
        "Cores that these pods request; 1 is all cores of one GPU.",
        _of_namespaces(lambda each: each.waiting[CORES] / WHOLE_DEVICE_MILLI),
        ("namespace",),
        unit="ratio",
    ),
    Family(
        "vgpu_reconcile_quota_limit",
        GAUGE,
        "A quota of a namespace, in the unit of its resource: bytes of memory, thousandths of a"
        " GPU's cores, GPUs, or units of an extended resource.",
        _of_limits(lambda each: each.limit.amount),
        _LIMIT,
    ),
    Family(
        "vgpu_reconcile_quota_used",
        GAUGE,
        "What pods hold of a quota, in the same unit.",
        _of_limits(lambda each: each.used),
        _LIMIT,
    ),
    Family(
        "vgpu_reconcile_quota_unreadable",
        GAUGE,
        "Declarations of a quota that cannot be read.",
        _of_plan(
            lambda plan: {
                (each.name,): each.unreadable for each in plan.namespaces if each.unreadable
            }
        ),
        ("namespace",),
    ),
    note="Only of the reconciler of the cluster that leads. A series per namespace, or per limit.",
)

QUEUES: Final = _one_row(
    "Queues",
    Family(
        "vgpu_reconcile_queue_quota",
        GAUGE,
        "An amount of a queue, in the unit of its resource: what it can have at most (limit), its"
        " own quota (nominal), what nobody else may take (guaranteed), what of its quota is"
        " borrowed and lent, what its system counts (used, requested), what its pods hold by the"
        " allocation records (held), and what waits. An unknown amount has no series. The flavor is"
        " Kueue's, and empty where it is unknown or may be any.",
        _of_plan(_queue_amounts),
        (*_QUEUE, "resource", "flavor", "amount"),
    ),
    Family(
        "vgpu_reconcile_queue_waiting_workloads",
        GAUGE,
        "Workloads without quota, of the queue and of all below it.",
        _of_plan(
            lambda plan: {
                _queue(name): number for name, number in plan.queues.waiting_workloads.items()
            }
        ),
        _QUEUE,
    ),
    Family(
        "vgpu_reconcile_queues_left_out",
        GAUGE,
        f"Queues without series, since there are more than {MOST_QUEUES:,}; those above others come"
        " first.",
        lambda view: (
            view.plan.queues.left_out
            if view.plan is not None and view.plan.queues.is_read
            else None
        ),
    ),
    note="Only of the reconciler of the cluster that leads, with `queues: true` in its"
    " configuration. Of Kueue, Volcano (kind `Queue`) and KAI Scheduler (kind"
    " `Queue.scheduling.run.ai`). The name of a LocalQueue is `<namespace>/<name>`.",
)

CYCLES: Final = _one_row(
    "Cycles",
    Family(
        "vgpu_reconcile_actions_total",
        COUNTER,
        "Actions tried, by rule and outcome.",
        lambda view: {
            (rule.value, outcome.value): count for (rule, outcome), count in view.actions.items()
        },
        ("rule", "outcome"),
    ),
    Family(
        "vgpu_reconcile_cycles_total",
        COUNTER,
        "Cycles, by result.",
        lambda view: {(ending.value,): view.cycles.get(ending, 0) for ending in Ending},
        ("result",),
    ),
    Family(
        "vgpu_reconcile_missed_cycles_total",
        COUNTER,
        "Cycles that were due and were skipped or not finished, by reason.",
        lambda view: {(reason.value,): view.missed.get(reason, 0) for reason in Missed},
        ("reason",),
    ),
    Family(
        "vgpu_reconcile_cycle_duration_seconds",
        GAUGE,
        "Duration of the newest cycle.",
        lambda view: sum(view.seconds.values()) if view.seconds else None,
        unit="seconds",
    ),
    Family(
        "vgpu_reconcile_stage_duration_seconds",
        GAUGE,
        "Duration of each stage of the newest cycle.",
        lambda view: {(stage.value,): seconds for stage, seconds in view.seconds.items()},
        ("stage",),
        unit="seconds",
    ),
    Family(
        "vgpu_reconcile_last_cycle_timestamp_seconds",
        GAUGE,
        "Start of the newest cycle, in unix time.",
        lambda view: view.last_cycle,
        unit="timestamp",
    ),
    Family(
        "vgpu_reconcile_last_success_timestamp_seconds",
        GAUGE,
        "Start of the newest cycle that had a plan and wrote its audit, in unix time.",
        lambda view: view.last_success,
        unit="timestamp",
    ),
)

SELF: Final = _one_row(
    "The reconciler itself",
    Family(
        "vgpu_reconcile_info",
        GAUGE,
        "Always 1; the scope (cluster or node) and the mode (plan or apply).",
        lambda view: {(view.scope.value, view.mode.value): 1},
        ("scope", "mode"),
    ),
    Family(
        "vgpu_reconcile_leader",
        GAUGE,
        "1 if this process is the leader, 0 if another one is (--leader-elect).",
        lambda view: None if view.leads is None else int(view.leads),
    ),
    Family(
        "vgpu_reconcile_api_requests_total",
        COUNTER,
        "Requests to the API server; code 0 means that no answer came.",
        lambda view: view.requests,
        ("verb", "code"),
    ),
    BUILD_INFO,
)

TABLES: Final = (PLAN, NAMESPACES, QUEUES, CYCLES, SELF, WEB, NODE_TOKEN, PROCESS)

# ---------------------------------------------------------------- the numbers


class ReconcilerMetrics:
    """Counts cycles and their actions. Safe to use from several threads."""

    def __init__(
        self,
        scope: Scope,
        mode: Mode,
        *,
        leads: Callable[[], bool] | None = None,
        requests: Callable[[], Requests] = dict,
        build: Mapping[str, str] | None = None,
        own: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """``leads`` None is no election; the others return numbers that are counted elsewhere."""
        self._scope = scope
        self._mode = mode
        self._leads = leads
        self._requests = requests
        self._build = build or {}
        self._own = own
        self._lock = threading.Lock()
        self._renderer = Renderer(TABLES)
        self._newest: Cycle | None = None
        self._last_success: float | None = None
        self._cycles: Counter[Ending] = Counter()
        self._actions: Counter[tuple[Rule, ActionOutcome]] = Counter()
        self._missed: Counter[Missed] = Counter()

    def note(self, cycle: Cycle) -> None:
        """Count a cycle that has ended."""
        with self._lock:
            self._newest = cycle
            self._cycles[cycle.ending] += 1
            for result in cycle.results:
                self._actions[result.entry.finding.rule, result.outcome] += 1
            if cycle.ending in SEEING:
                self._last_success = cycle.began

    def note_missed(self, reason: Missed) -> None:
        """Count a cycle that did not take place."""
        with self._lock:
            self._missed[reason] += 1

    def render(self) -> Exposition:
        """The current page."""
        with self._lock:
            return self._renderer.render(self._view())

    def _view(self) -> ReconcilerView:
        newest = self._newest
        return ReconcilerView(
            plan=newest.plan if newest else None,
            cycles=self._cycles,
            actions=self._actions,
            missed=self._missed,
            seconds=newest.seconds if newest else {},
            last_cycle=newest.began if newest else None,
            last_success=self._last_success,
            leads=None if self._leads is None else self._leads(),
            scope=self._scope,
            mode=self._mode,
            requests=self._requests(),
            build=self._build,
            own=self._own(),
        )
