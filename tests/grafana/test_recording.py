"""The recording rules add up what dashboards ask for, in two clusters at once."""

import re

import pytest

from grafana.recording import BY_NAMESPACE, GROUPS, MISSING, PRICE, QUEUE_LEVEL, WAITING
from tests.grafana.promtool import inputs, passes, renamed
from tests.support.defects import no_defects

RECORDS = [rule for group in GROUPS for rule in group.rules]

PARENT, LEFT, RIGHT, WHOLE, ODD = "GPU-0", "MIG-1", "MIG-2", "GPU-3", "GPU-4"
TOTAL = {PARENT: 100, LEFT: 40, RIGHT: 40, WHOLE: 80, ODD: 80}
ALLOCATED = {LEFT: 30, RIGHT: 0, WHOLE: 120}
"""The whole GPU is oversold; a share of unknown size is on the odd one."""


def of(name, values):
    return {f'vgpu_gpu_{name}{{uuid="{uuid}"}}': f"{value}x5" for uuid, value in values.items()}


def share(name, namespace, pod, value, uuid=WHOLE):
    who = f'namespace="{namespace}",pod="{pod}",container="main",pod_uid="{pod}",uuid="{uuid}"'
    return {f"vgpu_container_{name}{{{who}}}": f"{value}x5"}


def limited(namespace, pod, state):
    who = f'namespace="{namespace}",pod="{pod}",container="main",pod_uid="{pod}"'
    return {f'vgpu_container_limit_state{{{who},state="{state}"}}': "1x5"}


def waiting(namespace, amount):
    return {f'{name}{{namespace="{namespace}"}}': f"{amount}x5" for name, _ in WAITING}


def limit(program, namespace, resource, used):
    labels = f'{{namespace="{namespace}",resource="{resource}"}}'
    return {
        f"vgpu_{program}_quota_used{labels}": f"{used}x5",
        f"vgpu_{program}_quota_limit{labels}": "9x5",
    }


def of_queue(kind, name, used):
    who = f'kind="{kind}",queue="{name}",resource="nvidia.com/gpu",flavor="t4"'
    return {f'vgpu_reconcile_queue_quota{{{who},amount="used"}}': f"{used}x5"}


NODE = {
    f'vgpu_gpu_info{{uuid="{PARENT}",model="H100"}}': "1x5",
    f'vgpu_gpu_info{{uuid="{LEFT}",model="H100",parent_uuid="{PARENT}"}}': "1x5",
    f'vgpu_gpu_info{{uuid="{RIGHT}",model="H100",parent_uuid="{PARENT}"}}': "1x5",
    f'vgpu_gpu_info{{uuid="{WHOLE}",model="H100"}}': "1x5",
    f'vgpu_gpu_info{{uuid="{ODD}",model="H100"}}': "1x5",
    **of("memory_total_bytes", TOTAL),
    **of("memory_used_bytes", {PARENT: 50, LEFT: 20, RIGHT: 0, WHOLE: 60, ODD: 5}),
    **of("memory_allocated_bytes", ALLOCATED),
    **of("memory_unattributed_bytes", {PARENT: 30, LEFT: 2, RIGHT: 0, WHOLE: 3, ODD: 1}),
    **of("core_allocated_ratio", {LEFT: 0.5, WHOLE: 1}),
    **of("shares_allocated", {LEFT: 1, WHOLE: 3}),
    **of("power_usage_watts", {PARENT: 300, WHOLE: 200}),
    **of("utilization_ratio", {WHOLE: 0.5, ODD: 0.5}),
    "vgpu_gpus": "3x5",
    "vgpu_gpus_expected": "4x5",
    **share("memory_allocated_bytes", "team", "train", 100),
    **share("memory_used_bytes", "team", "train", 60),
    **share("memory_allocated_bytes", "team", "over", 20),
    **share("memory_used_bytes", "team", "over", 25),
    **share("memory_allocated_bytes", "lab", "promised", 30, LEFT),
    **share("memory_used_bytes", "team", "replica", 7),
    **share("core_allocated_ratio", "team", "train", 0.5),
    **share("core_allocated_ratio", "team", "over", 0.5),
    **share("sm_utilization_ratio", "team", "train", 0.4),
    **limited("team", "train", "missing"),
    **limited("team", "over", "in_place"),
    **limited("lab", "promised", "none_by_design"),
    'vgpu_container_info{pod_uid="a",scheme="volcano",phase="assigned"}': "1x5",
    'vgpu_container_info{pod_uid="b",scheme="volcano",phase="assumed"}': "1x5",
    'vgpu_container_info{pod_uid="c",scheme="volcano",phase="released"}': "1x5",
    'vgpu_container_info{pod_uid="d",scheme="gaia",phase="assigned"}': "1x5",
    'vgpu_allocation_conflicts{type="overcommitted"}': "1x5",
    'vgpu_plugin_info{scheme="volcano",mode="cdi"}': "1x5",
    'vgpu_plugin_info{scheme="gaia",mode="cdi"}': "1x5",
    'vgpu_plugin_resource_devices{resource="volcano.sh/vgpu-number",health="healthy"}': "9x5",
    'vgpu_plugin_resource_devices{resource="volcano.sh/vgpu-number",health="unhealthy"}': "1x5",
    "vgpu_extender_ready": "0x5",
    "vgpu_kubeshare_ready": "1x5",
    "vgpu_token_ready": "0x5",
    'vgpu_reconcile_info{scope="cluster",mode="plan"}': "1x5",
    'vgpu_reconcile_info{scope="node",mode="plan"}': "1x5",
    'vgpu_reconcile_namespace_info{namespace="team",team="vision"}': "1x5",
    'vgpu_reconcile_namespace_info{namespace="lab"}': "1x5",
    **waiting("team", 3),
    **waiting("lab", 1),
    **limit("extender", "team", "memory", 5),
    **limit("reconcile", "team", "memory", 6),
    **limit("reconcile", "lab", "gpus", 1),
    **of_queue("ClusterQueue", "a", 6),
    **of_queue("LocalQueue", "lab/main", 4),
}
"""The scheduler's number of a quota is newer than the reconciler's."""

SUMS = {
    "vgpu_gpu_memory_total_bytes": 240,  # the instances, not the GPU that they are of
    "vgpu_gpu_memory_used_bytes": 85,
    "vgpu_gpu_memory_allocated_bytes": 150,
    "vgpu_gpu_memory_unallocated_bytes": 50,  # 10 + 40, none of the oversold, none of the odd
    "vgpu_container_memory_unused_bytes": 40,  # who is over its limit makes up for nobody
    "vgpu_gpu_memory_unattributed_bytes": 6,
    "vgpu_gpu_core_allocated_ratio": 1.5,
    "vgpu_gpu_shares_allocated": 4,
    "vgpu_gpu_power_usage_watts": 500,
}
LEVELS = {
    "cluster:vgpu_gpu_utilization_ratio:avg": {"": 0.5},
    "cluster:vgpu_gpus:sum": {"": 3},
    "cluster:vgpu_gpus_expected:sum": {"": 4},
    "cluster_scheme:vgpu_containers:count": {'scheme="volcano"': 2, 'scheme="gaia"': 1},
    "cluster_type:vgpu_allocation_conflicts:sum": {'type="overcommitted"': 1},
    "cluster:vgpu_reconcilers:count": {"": 1},
    "cluster:vgpu_plugins:count": {"": 2},
    "cluster:vgpu_extenders:count": {"": 1},
    "cluster:vgpu_kubeshare_controllers:count": {"": 1},
    "cluster:vgpu_token_daemons:count": {"": 1},
    "cluster_resource_health:vgpu_plugin_resource_devices:sum": {
        'resource="volcano.sh/vgpu-number",health="healthy"': 9,
        'resource="volcano.sh/vgpu-number",health="unhealthy"': 1,
    },
    "cluster_namespace:vgpu_container_memory_allocated_bytes:sum": {
        'namespace="team"': 120,
        'namespace="lab"': 30,
    },
    "cluster_namespace:vgpu_container_memory_used_bytes:sum": {'namespace="team"': 92},
    "cluster_namespace:vgpu_container_memory_used_of_allocated_bytes:sum": {'namespace="team"': 85},
    "cluster_namespace:vgpu_container_memory_unused_bytes:sum": {'namespace="team"': 40},
    "cluster_namespace:vgpu_container_memory_not_enforced_bytes:sum": {
        'namespace="team"': 100,
        'namespace="lab"': 30,
    },
    "cluster_namespace:vgpu_container_core_allocated_ratio:sum": {'namespace="team"': 1},
    "cluster_namespace:vgpu_gpus_allocated:sum": {
        'namespace="team"': 1,  # of 0.875 and 0.375, whose sum is above 1
        'namespace="lab"': 30 / 40,  # without cores
    },
    "cluster_namespace:vgpu_container_sm_utilization_ratio:sum": {'namespace="team"': 0.4},
    **{f"cluster:{name}:sum": {"": value} for name, value in SUMS.items()},
    "cluster_namespace_resource_model:vgpu_quota_used:max": {
        'namespace="team",resource="memory"': 5,
        'namespace="lab",resource="gpus"': 1,
    },
    "cluster_namespace_resource_model:vgpu_quota_limit:max": {
        'namespace="team",resource="memory"': 9,
        'namespace="lab",resource="gpus"': 9,
    },
    f"{QUEUE_LEVEL}:vgpu_reconcile_queue_quota:max": {
        'kind="ClusterQueue",queue="a",resource="nvidia.com/gpu",flavor="t4",amount="used"': 6,
        'kind="LocalQueue",queue="lab/main",resource="nvidia.com/gpu",flavor="t4",amount="used"': 4,
    },
    **{
        f"cluster_namespace:{name}:max": {'namespace="team"': 3, 'namespace="lab"': 1}
        for name, _ in WAITING
    },
    **{f"cluster_team:{name}:sum": {'team="vision"': 3, "": 1} for name, _ in WAITING},
}
COSTS = {
    "cluster_namespace_team_model:vgpu_cost_held_per_hour:sum": {
        'namespace="team",team="vision",model="H100"': 2,
        'namespace="lab",model="H100"': 1.5,
    },
    "cluster_namespace_team_model:vgpu_cost_used_per_hour:sum": {
        # (0.4 of cores + 0.75 of memory) / 2 / 1.25 * 2; the other's use of cores is unknown
        'namespace="team",team="vision",model="H100"': 0.92,
    },
}
LEVELS |= COSTS
PRICES = {f'{PRICE}{{model="H100",currency="EUR"}}': "2x5", f'{PRICE}{{model="A10"}}': "9x5"}
OF_TEAM = {'namespace="team"': 'team="vision"', 'namespace="lab"': ""}
LEVELS |= {
    f"cluster_team:{name}:sum": {
        OF_TEAM[labels]: value for labels, value in LEVELS[f"cluster_namespace:{name}:sum"].items()
    }
    for name, *_ in BY_NAMESPACE
}
ONCE = {*COSTS, *(f"cluster_team:{name}:sum" for name, _ in WAITING)}
"""Records that have each reconciler's numbers, or each GPU, once, and are no sums of nodes."""
QUOTIENTS = ("vgpu_gpus_allocated", "vgpu_cost_")

INSTANCE = {
    "instance:vgpu_gpu_utilization_ratio:avg": 0.5,
    "instance:vgpu_gpus_missing:max": 1,
    **{f"instance:{name}:sum": value for name, value in SUMS.items()},
}

CLUSTERS = ("north", "south")
NODES = 2


def fleet(of_node):
    """Two clusters of two such nodes each; in one of them only, there is a ``node`` label."""
    series = []
    for cluster in CLUSTERS:
        for number in range(NODES):
            target = {"cluster": cluster, "job": "vgpu", "instance": f"node-{number}"}
            named = {"node": f"n{number}"} if cluster == "north" else {}
            series += inputs(of_node, **target, **named)
    return series


def sample(record, value, *labels):
    return {"labels": f"{record}{{{','.join(filter(None, labels))}}}", "value": value}


def expected():
    """Of each record, its samples; sums of a cluster are those of its nodes."""
    found = {}
    for record, value in INSTANCE.items():
        found[record] = [
            sample(
                record,
                value,
                f'cluster="{cluster}",job="vgpu",instance="node-{number}"',
                f'node="n{number}"' if cluster == "north" else "",
            )
            for cluster in CLUSTERS
            for number in range(NODES)
        ]
    for record, values in LEVELS.items():
        times = 1 if record.endswith((":avg", ":max")) or record in ONCE else NODES
        found[record] = [
            sample(record, value * times, f'cluster="{cluster}"', labels)
            for cluster in CLUSTERS
            for labels, value in values.items()
        ]
    return found


@pytest.mark.parametrize("of_node", [NODE, renamed(NODE)], ids=["honor_labels", "exported_"])
def test_sums_are_right_and_apart_by_cluster(tmp_path, of_node):
    tests = [
        {"expr": record, "eval_time": "4m", "exp_samples": samples}
        for record, samples in expected().items()
        if not any(name in record for name in QUOTIENTS)
    ]
    tests += [  # quotients
        {
            "expr": f"round({record}, 0.001)",
            "eval_time": "4m",
            "exp_samples": [
                {**each, "labels": each["labels"].removeprefix(record)} for each in samples
            ],
        }
        for record, samples in expected().items()
        if any(name in record for name in QUOTIENTS)
    ]
    series = [*fleet(of_node), *inputs(PRICES)]
    passes(tmp_path, {"input_series": series, "promql_expr_test": tests})


def test_a_missing_gpu_is_remembered_for_a_day_whoever_saw_it_and_none_makes_up_for_it(tmp_path):
    """The exporter's pod is replaced on one node; the other has more GPUs than it should."""
    target = {"cluster": "north", "job": "vgpu", "instance": "node-0"}
    more = {"vgpu_gpus": "8x1500", "vgpu_gpus_expected": "6x1500"}
    before = {"vgpu_gpus": "8x9 stale", "vgpu_gpus_expected": "8x9 stale"}
    after = {"vgpu_gpus": "_x9 7x1490", "vgpu_gpus_expected": "_x9 7x1490"}
    series = [
        *inputs(before, **target, pod="exporter-old"),
        *inputs(after, **target, pod="exporter-new"),
        *inputs(more, **{**target, "instance": "node-1"}, pod="exporter-more"),
    ]
    record = "instance:vgpu_gpus_missing:max"
    where = 'cluster="north",job="vgpu",instance="node-%d"'
    tests = [
        {
            "expr": record,
            "eval_time": f"{at}m",
            "exp_samples": [sample(record, one, where % 0), sample(record, 0, where % 1)],
        }
        for at, one in ((9, 0), (10, 1), (24 * 60, 1), (24 * 60 + 30, 0))
    ]
    passes(tmp_path, {"input_series": series, "promql_expr_test": tests})


def test_a_missing_gpu_is_known_as_soon_as_its_node_is(tmp_path):
    """Before the first full minute, which is the first to be remembered."""
    series = {"vgpu_gpus": "_ 7x9", "vgpu_gpus_expected": "_ 8x9"}
    one = {"expr": MISSING, "exp_samples": [{"labels": "{}", "value": 1}]}
    tests = [{**one, "eval_time": at} for at in ("45s", "1m")]
    passes(tmp_path, {"interval": "30s", "input_series": inputs(series), "promql_expr_test": tests})


SUCCESS = "cluster:vgpu_plugin_admission_success:ratio_rate1h"


@pytest.mark.parametrize(
    ("refusals", "ratio"),
    [
        ({}, 1.0),
        ({'step="allocate",reason="no_candidate"': 2}, 8 / 10),
        ({'step="allocate",reason="no_candidate"': 2, 'step="bind",reason="crossed"': 4}, 4 / 10),
        ({'step="bind",reason="crossed"': 99}, 0.0),
    ],
)
def test_admission_success_is_the_part_of_containers_that_got_their_devices(
    tmp_path, refusals, ratio
):
    """Eight answers a minute; a refusal in Allocate is no answer, a later one takes one back."""
    series = {'vgpu_plugin_allocations_total{resource="volcano.sh/vgpu-number"}': "0+8x120"}
    for labels, count in refusals.items():
        series[f"vgpu_plugin_refusals_total{{{labels}}}"] = f"0+{count}x120"
    plugin = inputs(series, cluster="north", job="vgpu-device-plugin", instance="node-1")
    samples = [{"labels": f'{SUCCESS}{{cluster="north"}}', "value": ratio}]
    asked = {"expr": SUCCESS, "eval_time": "90m", "exp_samples": samples}
    passes(tmp_path, {"input_series": plugin, "promql_expr_test": [asked]})


def test_where_plugins_have_only_refused_admission_success_is_zero(tmp_path):
    series = {'vgpu_plugin_refusals_total{step="allocate",reason="no_candidate"}': "0+2x120"}
    plugin = inputs(series, cluster="north", job="vgpu-device-plugin", instance="node-1")
    samples = [{"labels": f'{SUCCESS}{{cluster="north"}}', "value": 0.0}]
    asked = {"expr": SUCCESS, "eval_time": "90m", "exp_samples": samples}
    passes(tmp_path, {"input_series": plugin, "promql_expr_test": [asked]})


def test_where_nobody_asks_there_is_no_admission_success(tmp_path):
    series = {'vgpu_plugin_allocations_total{resource="volcano.sh/vgpu-number"}': "7x120"}
    plugin = inputs(series, cluster="north", job="vgpu-device-plugin", instance="node-1")
    asked = {"expr": SUCCESS, "eval_time": "90m", "exp_samples": []}
    passes(tmp_path, {"input_series": plugin, "promql_expr_test": [asked]})


def test_each_record_is_tested():
    assert {record.name for record in RECORDS} == {*expected(), SUCCESS}
    assert len(RECORDS) == len(expected()) + 1


@no_defects
def test_a_name_is_level_metric_operation():
    name = re.compile(r"[a-z_]+:[a-z_]+:(sum|avg|count|max|ratio_rate1h)")
    return [record.name for record in RECORDS if not name.fullmatch(record.name)]


@no_defects
def test_each_record_has_a_description():
    return [record.name for record in RECORDS if not record.about]
