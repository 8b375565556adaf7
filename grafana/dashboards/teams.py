"""Teams and namespaces: what they request, hold, use and leave idle, and their quotas."""

from typing import Final

from msgspec import structs

from grafana.dashboards import choices, links
from grafana.dashboards.model import (
    NONE_IS_BETTER,
    NONE_IS_GOOD,
    Colour,
    Column,
    Dashboard,
    GrafanaUnit,
    PanelQuery,
    PanelRow,
    TablePanel,
    bars,
    graph,
    stat,
)
from grafana.dashboards.selecting import CLUSTER, TEAM, hours, largest, or_zero, with_team
from grafana.recording import QUEUE_LEVEL, QUOTA
from grafana.settings import QUOTA_NEAR_RATIO
from vgpu.model.units import GIB
from vgpu.schemes.limit_ways import NOT_ENFORCED

NO_TEAMS: Final = (
    "no reconciler of the cluster reads Namespaces, no exporter is scraped, or no recording rules"
    " are loaded"
)
NO_RECONCILER: Final = "no reconciler of the cluster is scraped, or no recording rules are loaded"
NO_QUOTAS: Final = (
    "no namespace has a quota of shared GPUs, or no reconciler of the cluster reads Namespaces"
)
NO_QUEUES: Final = (
    "there are no queues of Kueue, Volcano or KAI, or the configuration of the cluster's reconciler"
    " does not have queues: true"
)
QUEUE: Final = "cluster, kind, queue, resource, flavor"
"""Labels of an amount of a queue."""

WITHOUT_TEAM: Final = "Namespaces without a team are one line."
UNMEASURED: Final = (
    "Held memory whose use is not measured, such as reserved memory, is neither used nor idle, and"
    " in no part."
)
UNENFORCED: Final = (
    f'"{NOT_ENFORCED.capitalize()}" is held memory to which nothing limits its container.'
)
SHOWN: Final = 12
"""Maximum number of teams in a graph, which shows the largest."""


def called(expr: str, label: str = "team", name: str = "(no team)") -> str:
    """``expr`` with a name for people where the label is empty."""
    return f'label_replace({expr}, "{label}", "{name}", "{label}", "")'


def of_team(metric: str) -> str:
    """A record of the selected teams."""
    return f"cluster_team:{metric}:sum{{{TEAM}}}"


def of_namespace(metric: str, operation: str = "sum") -> str:
    """A record of the namespaces of the selected teams, with their team."""
    return called(with_team(f"cluster_namespace:{metric}:{operation}{{{CLUSTER}}}"))


HELD: Final = of_team("vgpu_container_memory_allocated_bytes")
USED: Final = of_team("vgpu_container_memory_used_bytes")
IDLE: Final = of_team("vgpu_container_memory_unused_bytes")
USED_OF_HELD: Final = of_team("vgpu_container_memory_used_of_allocated_bytes")
MEASURED: Final = f"({USED_OF_HELD} + {IDLE})"
"""The held memory whose use is measured: parts of what is held are parts of this."""

GPUS: Final = of_team("vgpu_gpus_allocated")
GPUS_USED: Final = of_team("vgpu_container_sm_utilization_ratio")
WAITING: Final = of_team("vgpu_reconcile_waiting_memory_bytes")
WAITING_PODS: Final = of_team("vgpu_reconcile_waiting_pods")
REQUESTED: Final = f"({HELD} + {WAITING}) or {HELD} or {WAITING}"
"""What pods hold and what waiting pods request: of a team with one of them, this one."""

NO_PRICES: Final = (
    "no prices are loaded (`vgpu bill rules`), no exporter is scraped, or no recording rules are"
    " loaded"
)
IN_CURRENCY: Final = "Amounts are in the currency of the price table."


def _cost(which: str) -> str:
    record = f"cluster_namespace_team_model:vgpu_cost_{which}_per_hour:sum"
    return f"sum by (cluster, team) ({record}{{{TEAM}}})"


COST: Final = _cost("held")
COST_USED: Final = _cost("used")

LIMIT: Final = "cluster_namespace_resource_model:vgpu_quota_limit:max"
USED_OF: Final = "cluster_namespace_resource_model:vgpu_quota_used:max"
OF_LIMIT: Final = with_team(f"{USED_OF}{{{CLUSTER}}} / ({LIMIT} > 0)")
QUOTA_STEPS: Final = ((None, Colour.GOOD), (QUOTA_NEAR_RATIO, Colour.ODD), (1.0001, Colour.BAD))
"""A limit that is reached is not exceeded."""


def columns(*of_teams: Column) -> tuple[Column, ...]:
    """The columns, with a name for the namespaces of no team."""
    return tuple(structs.replace(column, expr=called(column.expr)) for column in of_teams)


def lines(expr: str) -> tuple[PanelQuery, ...]:
    """A line for each of the largest teams."""
    return (PanelQuery(called(largest(SHOWN, "cluster, team", expr)), "{{team}}"),)


def of_limit(expr: str) -> str:
    """An expression of limits with their team and GPU model."""
    return called(called(with_team(expr)), "model", "all")


def of_queue(amount: str) -> str:
    """An amount of each queue but LocalQueues and Cohorts, by resource and flavor."""
    record = f"{QUEUE_LEVEL}:vgpu_reconcile_queue_quota:max"
    which = f'kind=~"ClusterQueue|Queue.*", amount="{amount}"'
    return f"{record}{{{CLUSTER}, {which}}}"


def idle_quota() -> str:
    """What its system counts of each queue and its pods do not hold."""
    used, held = (f"max by ({QUEUE}) ({of_queue(amount)})" for amount in ("used", "held"))
    return f"clamp_min({used} - {held}, 0)"


def quotas(title: str, about: str, which: str, unit: GrafanaUnit) -> TablePanel:
    """A table of the limits of some resources; ``which`` is their matcher."""
    used, limit = (f"{record}{{{CLUSTER}, {which}}}" for record in (USED_OF, LIMIT))
    part = of_limit(f"{used} / ({LIMIT} > 0)")
    return TablePanel(
        title,
        f"{about} The scheduler counts, with its reservations; without it the reconciler does.",
        {
            "cluster": "Cluster",
            "team": "Team",
            "namespace": "Namespace",
            "resource": "Resource",
            "model": "GPU model",
        },
        (
            Column("Used", of_limit(used), unit),
            Column("Limit", of_limit(limit), unit),
            Column("Used of limit", part, GrafanaUnit.RATIO, steps=QUOTA_STEPS),
        ),
        "Used of limit",
        NO_QUOTAS,
        width=12,
        links={"Namespace": links.NAMESPACE},
    )


SUMMARY: Final = PanelRow(
    "Summary",
    (
        stat(
            "GPUs held",
            "GPUs that containers of the selected teams were allocated: of each share the mean of"
            " its parts of cores and memory.",
            GrafanaUnit.COUNT,
            f"sum({GPUS})",
            NO_TEAMS,
        ),
        stat(
            "Memory held", "Allocated to containers.", GrafanaUnit.BYTES, f"sum({HELD})", NO_TEAMS
        ),
        stat(
            "Memory used",
            "As the driver reports it, of containers that hold a share.",
            GrafanaUnit.BYTES,
            f"sum({USED})",
            NO_TEAMS,
        ),
        stat(
            "Memory idle",
            f"Allocated and not used: nobody else can have it. {UNMEASURED}",
            GrafanaUnit.BYTES,
            f"sum({IDLE})",
            NO_TEAMS,
            link=links.runbook("VgpuMemoryUnused"),
        ),
        stat(
            "Waiting pods",
            "Pods that request shares and that no node has or is reserved for.",
            GrafanaUnit.COUNT,
            f"sum({WAITING_PODS})",
            NO_RECONCILER,
            steps=NONE_IS_BETTER,
        ),
        stat(
            "Exceeded quotas",
            "Limits of namespaces that are exceeded now.",
            GrafanaUnit.COUNT,
            or_zero(
                f"count({with_team(f'{USED_OF}{{{CLUSTER}}} > {LIMIT}')})",
                with_team(f"{USED_OF}{{{CLUSTER}}}"),
            ),
            NO_QUOTAS,
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuQuotaExceeded"),
        ),
    ),
)

NOW: Final = PanelRow(
    "Teams",
    (
        TablePanel(
            "Requested, held, used and idle",
            "Each team now. Requested is what pods hold and what waiting pods request. Idle is"
            f" allocated and not used. {UNMEASURED} {UNENFORCED} {WITHOUT_TEAM}",
            {"cluster": "Cluster", "team": "Team"},
            columns(
                Column("Requested", REQUESTED, GrafanaUnit.BYTES),
                Column("Held", HELD, GrafanaUnit.BYTES),
                Column("Used", USED, GrafanaUnit.BYTES),
                Column("Idle", IDLE, GrafanaUnit.BYTES),
                Column(
                    NOT_ENFORCED.capitalize(),
                    of_team("vgpu_container_memory_not_enforced_bytes"),
                    GrafanaUnit.BYTES,
                ),
                Column(
                    "Used of held",
                    f"{USED_OF_HELD} / ({MEASURED} > 0)",
                    GrafanaUnit.RATIO,
                    bar=True,
                ),
                Column("GPUs held", GPUS),
                Column("GPUs used", GPUS_USED),
                Column("Waiting pods", WAITING_PODS, steps=NONE_IS_BETTER),
                Column("Waiting GPUs", of_team("vgpu_reconcile_waiting_gpus")),
            ),
            "Held",
            NO_TEAMS,
        ),
        TablePanel(
            "GPU-hours and GiB-hours of teams",
            "What each team has held in the selected time range, also if it holds nothing now: GPUs"
            " allocated, memory allocated, and memory allocated and not used, each times hours."
            f" {WITHOUT_TEAM}",
            {"cluster": "Cluster", "team": "Team"},
            columns(
                Column("GPU-hours", hours(GPUS)),
                Column("GPU-hours used", hours(GPUS_USED)),
                Column("GiB-hours", hours(f"{HELD} / {GIB}")),
                Column("Unused GiB-hours", hours(f"{IDLE} / {GIB}")),
                Column(
                    "Unused part",
                    f"{hours(IDLE)} / ({hours(MEASURED)} > 0)",
                    GrafanaUnit.RATIO,
                    bar=True,
                ),
            ),
            "Unused GiB-hours",
            NO_TEAMS,
        ),
    ),
)

OVER_TIME: Final = PanelRow(
    "Over time",
    (
        graph(
            "Memory held over time",
            f"The {SHOWN} teams that hold the most now.",
            GrafanaUnit.BYTES,
            lines(HELD),
            NO_TEAMS,
        ),
        graph(
            "Memory allocated and not used",
            f"The {SHOWN} teams with the most now.",
            GrafanaUnit.BYTES,
            lines(IDLE),
            NO_TEAMS,
        ),
        graph(
            "GPUs held and used",
            "Of all selected teams. Used is the utilisation of containers: 1 is one whole GPU.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(f"sum({GPUS})", "held"),
                PanelQuery(f"sum({GPUS_USED})", "used"),
            ),
            NO_TEAMS,
        ),
        graph(
            "Memory that waiting pods request",
            f"The {SHOWN} teams that wait for the most now.",
            GrafanaUnit.BYTES,
            lines(WAITING),
            NO_RECONCILER,
        ),
    ),
)

MONEY: Final = PanelRow(
    "Money",
    (
        graph(
            "Price of an hour by team",
            f"Of the GPUs held. The {SHOWN} teams with the highest price now. {IN_CURRENCY}",
            GrafanaUnit.COUNT,
            lines(COST),
            NO_PRICES,
        ),
        graph(
            "Price of an hour, held and used",
            f"Of all selected teams. What is not used of what is held is held idle. {IN_CURRENCY}",
            GrafanaUnit.COUNT,
            (PanelQuery(f"sum({COST})", "held"), PanelQuery(f"sum({COST_USED})", "used")),
            NO_PRICES,
        ),
        TablePanel(
            "Cost of teams",
            "Each team's price now, for an hour, and its cost in the selected time range. The bill"
            f" of closed days is exact; this follows its rule. {IN_CURRENCY} {WITHOUT_TEAM}",
            {"cluster": "Cluster", "team": "Team"},
            columns(
                Column("Per hour", COST),
                Column("Used per hour", COST_USED),
                Column("Cost", hours(COST)),
                Column("Used", hours(COST_USED)),
            ),
            "Cost",
            NO_PRICES,
        ),
    ),
)

QUOTAS: Final = PanelRow(
    "Quotas",
    (
        quotas(
            "Memory quotas of namespaces",
            "Each limit of memory with what pods hold of it.",
            'resource="memory"',
            GrafanaUnit.BYTES,
        ),
        quotas(
            "Other quotas of namespaces",
            "Each other limit, in the unit of its resource: GPUs, thousandths of a GPU's cores, or"
            " units of an extended resource.",
            'resource!="memory"',
            GrafanaUnit.COUNT,
        ),
        graph(
            "Used of quotas",
            f"The {SHOWN} limits of which the most is used now.",
            GrafanaUnit.RATIO,
            (
                PanelQuery(
                    called(largest(SHOWN, QUOTA, OF_LIMIT), "model", "all"),
                    "{{namespace}} {{resource}} {{model}}",
                ),
            ),
            NO_QUOTAS,
            width=24,
        ),
        TablePanel(
            "Queues of teams",
            "Each quota of each ClusterQueue, and of each Queue of Volcano and KAI, in the unit of"
            " its resource: what it can have at most, what its system counts, what its pods hold by"
            " the allocation records, and what workloads without quota request. Used above held is"
            " quota of pods that do not run.",
            {
                "cluster": "Cluster",
                "kind": "Kind",
                "queue": "Queue",
                "resource": "Resource",
                "flavor": "Flavor",
            },
            (
                Column("Limit", of_queue("limit")),
                Column("Used", of_queue("used")),
                Column("Held", of_queue("held")),
                Column("Waiting", of_queue("waiting"), steps=NONE_IS_BETTER),
            ),
            "Waiting",
            NO_QUEUES,
            width=24,
        ),
        graph(
            "Quota of queues without running pods",
            f"Used as its system counts, without what pods hold: the {SHOWN} largest now.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    largest(SHOWN, QUEUE, idle_quota()),
                    "{{queue}} {{resource}} {{flavor}}",
                ),
            ),
            NO_QUEUES,
            width=24,
        ),
    ),
)

NAMESPACES: Final = PanelRow(
    "Namespaces of the teams",
    (
        TablePanel(
            "Namespaces",
            "Each namespace of the selected teams now. Click on a name for its workloads.",
            {"cluster": "Cluster", "team": "Team", "namespace": "Namespace"},
            (
                Column(
                    "Held",
                    of_namespace("vgpu_container_memory_allocated_bytes"),
                    GrafanaUnit.BYTES,
                ),
                Column("Used", of_namespace("vgpu_container_memory_used_bytes"), GrafanaUnit.BYTES),
                Column(
                    "Idle", of_namespace("vgpu_container_memory_unused_bytes"), GrafanaUnit.BYTES
                ),
                Column(
                    NOT_ENFORCED.capitalize(),
                    of_namespace("vgpu_container_memory_not_enforced_bytes"),
                    GrafanaUnit.BYTES,
                ),
                Column("GPUs held", of_namespace("vgpu_gpus_allocated")),
                Column("GPUs used", of_namespace("vgpu_container_sm_utilization_ratio")),
                Column(
                    "Waiting pods",
                    of_namespace("vgpu_reconcile_waiting_pods", "max"),
                    steps=NONE_IS_BETTER,
                ),
            ),
            "Idle",
            NO_TEAMS,
            links={"Namespace": links.NAMESPACE},
        ),
        bars(
            "Idle memory by namespace",
            "The ten namespaces with the most memory that is allocated and not used.",
            GrafanaUnit.BYTES,
            (
                PanelQuery(
                    f"sort_desc(topk(10, {of_namespace('vgpu_container_memory_unused_bytes')}))",
                    "{{namespace}}",
                ),
            ),
            NO_TEAMS,
            width=24,
            height=7,
        ),
    ),
)

TEAMS: Final = Dashboard(
    "vgpu-teams",
    "vgpu / Teams",
    "Teams and namespaces: shared GPUs requested, held, used and idle, hours, and quotas.",
    (choices.CLUSTER, choices.TEAM),
    (SUMMARY, NOW, OVER_TIME, MONEY, QUOTAS, NAMESPACES),
    "24h",
)
