"""What dashboards, rules and alerts show does not depend on how many targets report a node.

Two targets report one node while an exporter's pod replaces another, and where two scrape jobs find
the node. Each query of each panel, variable, record and alert is asked of a real Prometheus.
"""

import re
import time
from collections import Counter
from datetime import datetime
from functools import cache
from urllib.parse import quote

import pytest

from grafana import alerts, recording
from grafana.reading import EVERYTHING, FOLDER, filled, load, of_range, panels
from tests.grafana.alert_cases import CASES
from tests.grafana.promtool import OURS, RULES, failures, with_labels
from tests.grafana.test_alerts import minutes, numbered
from tests.grafana.two_targets import ALONE, NEW, OLD, TWICE, clusters
from tests.support.bed.monitoring import Prometheus
from tests.support.defects import no_defects
from tests.support.environment import ROOT
from tests.support.waiting import wait_until
from vgpu.web.message import HttpResponse
from vgpu.web.server import WebServer

pytestmark = pytest.mark.slow

VALUES = {**EVERYTHING, **of_range(60, step=1), "__rate_interval": "10s"}
PAGES = {file.stem: load(file) for file in sorted(FOLDER.glob("*.json"))}
QUERY = re.compile(r"(label_values|query_result)\((.*?)(?:, (\w+))?\)")

PANELS = {
    f"{uid}: {panel.title} {target.letter}": target.expr
    for uid, page in PAGES.items()
    for panel in panels(page)
    for target in panel.targets
}
VARIABLES = {
    f"{uid}: ${variable['name']}": variable["query"]["query"]
    for uid, page in PAGES.items()
    for variable in page["templating"]["list"]
    if variable["type"] == "query"
}
RECORDS = [rule.name for group in recording.GROUPS for rule in group.rules]
EXPRESSIONS = {
    rule.name: rule.expr for group in (*recording.GROUPS, *alerts.GROUPS) for rule in group.rules
}

COUNT_TARGETS = {
    "count by (version) (hami_build_info)": "it shows which versions run, and how many of each",
    "vgpu-fleet: Firing alerts A": "an alert about a target fires for each target",
    "vgpu-fleet: Firing alerts by name A": "an alert about a target fires for each target",
}
"""Queries that show something of each target by nature, and why."""

EXPORTERS = re.compile(
    r"vgpu_(?:gpus?|container|node|collector|snapshot|allocation|pods|driver)_?(?!\w*quota)"
)
"""What exporters report; two targets of other programs are two programs."""

OF_TARGET = {"job", "instance", "pod", "namespace", "container"}
"""Labels that Kubernetes' service discovery and a scrape job give a target."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twice")
    body = clusters(folder).encode()
    headers = (("Content-Type", "text/plain; version=0.0.4"),)
    page = WebServer({"/metrics": lambda _: HttpResponse(200, headers, body)}, ["127.0.0.1:0"])
    page.start()
    try:
        with Prometheus(
            folder / "prometheus", page.addresses[0], rules=RULES, evaluation_interval="2s"
        ) as running:
            last = "cluster_team:vgpu_gpus_allocated:sum"
            known = f"count(count by (cluster) (count_over_time({last}[1m]) > 1))"
            running.wait_for(f"{known} == {len((*ALONE, *TWICE))}")
            for _ in range(3):  # records of records, and a second of all of them for subqueries
                wait_until(evaluated_since(running, time.time()), "each group is evaluated again")
            yield running
    finally:
        page.stop()


def evaluated_since(server, since):
    """Whether each group of rules has been evaluated since then: they have clocks of their own."""

    def evaluated():
        groups = server.api("/api/v1/rules")["data"]["groups"]
        ends = [datetime.fromisoformat(group["lastEvaluation"]).timestamp() for group in groups]
        return bool(ends) and min(ends) > since

    return evaluated


@pytest.fixture(scope="module")
def ask(server):
    """Asks all questions about one moment; the error of one that fails is shown."""
    ((_, now),) = server.query("vector(time())")

    @cache
    def asked(expr):
        path = f"/api/v1/query?query={quote(expr)}&time={now}"
        answer = server.api(path)
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]

    return asked


def asked_of(ask, expr, cluster):
    """The answer of one cluster."""
    return ask(filled(expr, {**VALUES, "cluster": cluster.name}))


def seen(labels, without):
    """The labels that people see of a series."""
    return tuple(
        sorted(
            (name, text)
            for name, text in labels.items()
            if name not in without and not name.startswith("exported_")
        )
    )


def shown(answer, without=frozenset({"cluster"})):
    """How often each series with its value is in the answer."""
    return Counter((seen(labels, without), f"{value:.6g}") for labels, value in answer)


def differences(found, alone):
    """The first of what is there with two targets, and not with one, and the other way round."""
    return f"{[*(found - alone)][:3]} and not {[*(alone - found)][:3]}"


def by_cluster(answer, without):
    """The series and values of each cluster, once."""
    found = {each.name: set() for each in (*ALONE, *TWICE)}
    for labels, value in answer:
        if (name := labels.get("cluster")) in found:
            found[name].add((seen(labels, {"cluster", *without}), f"{value:.6g}"))
    return found


def test_all_kinds_of_targets_are_there(ask):
    for cluster in (*ALONE, *TWICE):
        of_it = f'vgpu_gpus{{cluster="{cluster.name}"}}'
        targets = ask(f"count(count by (job, instance, pod) ({of_it}))")
        assert targets == [({}, 4 * len(cluster.targets))], cluster


NOT_ENFORCED = "vgpu_container_memory_not_enforced_bytes"


@no_defects
def test_each_panel_shows_the_same_for_one_target_and_two(ask):
    for name, expr in PANELS.items():
        pairs = len(TWICE) if EXPORTERS.search(expr) else 1
        alone = {each.name: shown(asked_of(ask, expr, each)) for each in ALONE[:pairs]}
        is_shown = all(alone.values()) or NOT_ENFORCED in expr  # each container has a limit there
        if EXPORTERS.search(expr) and not is_shown:
            yield f"{name}: nothing"
        for twice in TWICE[:pairs]:
            try:
                found = shown(asked_of(ask, expr, twice))
            except AssertionError as error:
                yield f"{name}: {twice.name}: {error}"
                continue
            if found != alone[twice.alone] and name not in COUNT_TARGETS:
                yield f"{name}: {twice.name}: {differences(found, alone[twice.alone])}"


@no_defects
def test_each_variable_has_the_same_values_for_one_target_and_two(ask):
    for name, query in VARIABLES.items():
        kind, expr, label = QUERY.fullmatch(query).groups()
        if label == "cluster" or "by (instance" in expr or label == "instance":
            continue
        answers = {}
        for each in (*ALONE, *TWICE):
            found = [labels for labels, _ in asked_of(ask, expr, each)]
            if kind == "label_values":
                answers[each.name] = {labels.get(label) for labels in found} - {None, each.name}
            else:
                answers[each.name] = Counter(seen(labels, {"cluster"}) for labels in found)
        for twice in TWICE:
            if answers[twice.name] != answers[twice.alone]:
                yield f"{name}: {twice.name}: {answers[twice.name]}"


@no_defects
def test_each_rule_finds_the_same_for_one_target_and_two(ask):
    for name, expr in EXPRESSIONS.items():
        try:
            found = by_cluster(ask(expr), OF_TARGET)
        except AssertionError as error:
            yield f"{name}: {error}"
            continue
        for twice in TWICE:
            if found[twice.name] != found[twice.alone]:
                yield f"{name}: {twice.name}: {differences(found[twice.name], found[twice.alone])}"


@no_defects
def test_each_record_is_the_same_for_one_target_and_two(ask):
    for name in RECORDS:
        found = by_cluster(ask(name), {"job", "instance"})
        for twice in TWICE:
            if found[twice.name] != found[twice.alone]:
                yield f"{name}: {twice.name}: {differences(found[twice.name], found[twice.alone])}"


# ---------------------------------------------------------------- documented queries

BLOCK = re.compile(r"^```promql\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENTED = [
    query
    for page in sorted(ROOT.glob("docs/**/*.md"))
    for block in BLOCK.findall(page.read_text())
    for query in re.split(r"^#.*\n", block, flags=re.MULTILINE)
    if query.strip()
]
METRIC = re.compile(
    r"\b(vgpu_\w+|Host(?:GPU|Core)\w+|vGPU_\w+|Device_\w+|MigInfo|volcano_\w+|hami_\w+"
    r"|container_(?:gpu|request)_\w+)\b(?:\{)?"
)


def of_cluster(query, cluster):
    """The query with a matcher for the cluster at each metric."""

    def selected(metric):
        rest = "," if metric[0].endswith("{") else "}"
        return f'{metric[1]}{{cluster="{cluster}"{rest}'

    return METRIC.sub(selected, query)


@no_defects
def test_each_documented_query_answers_the_same_for_one_target_and_two(ask):
    """A query that shows series as they are has those of each target."""
    assert len(DOCUMENTED) > 30
    alone, twice = ALONE[-1].name, TWICE[-1].name
    for query in DOCUMENTED:
        answers = []
        for cluster in (alone, twice, TWICE[0].name):
            try:
                found = ask(of_cluster(query, cluster))
            except AssertionError as error:
                yield f"{query}: {cluster}: {error}"
                break
            answers.append(
                {(seen(each, {"cluster", *OF_TARGET}), f"{value:.6g}") for each, value in found}
            )
        else:
            if answers[0] != answers[1] and query.strip() not in COUNT_TARGETS:
                yield f"{query}: {differences(answers[1], answers[0])}"


# ---------------------------------------------------------------- alerts that fire

ALERTS = {rule.name: rule for group in alerts.GROUPS for rule in group.rules}
NODE = {"job": "vgpu", "instance": "node-1", **OLD}
TARGETS = {
    "one": (NODE,),
    "pods": (NODE, {**NODE, **NEW}),
    "instances": (NODE, {**NODE, "instance": "10.0.0.7:9394"}),
    "jobs": (NODE, {**NODE, "job": "vgpu-exporter"}),
}
OF_TWO_PODS = 'pod="vgpu-'
ALL_OF_TARGET = ", ".join((*OF_TARGET, *(f"exported_{name}" for name in OURS)))


def scraped(case, cluster, target):
    """The series of a case as a target without ``honor_labels`` has them, and the node's name."""
    for series, values in {**case.sick, 'vgpu_node_info{node="n"}': "1x120"}.items():
        own = re.sub(rf"([{{,])({'|'.join(OURS)})=", r"\1exported_\2=", series)
        yield {"series": with_labels(own, cluster=cluster, **target), "values": values}


def fires_alike(case):
    """A promtool test: the alert's expression has the same series and values in all clusters."""
    alert = ALERTS[case.alert]
    found = f"max without ({ALL_OF_TARGET}) ({alert.expr})"
    differing = f'count_values without (cluster) ("value", {found}) != {len(TARGETS)}'
    at = f"{case.onset + min(minutes(alert.pending), 15)}m"
    return {
        "input_series": [
            series
            for cluster, targets in TARGETS.items()
            for target in targets
            for series in scraped(case, cluster, target)
        ],
        "promql_expr_test": [
            {"expr": differing, "eval_time": at, "exp_samples": []},
            {
                "expr": f"count(count by (cluster) ({found}))",
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": len(TARGETS)}],
            },
        ],
    }


@no_defects
def test_each_alert_about_exporters_fires_alike_for_one_target_and_two(tmp_path):
    of_exporters = (case for case in CASES if case.job == "vgpu")
    cases = [case for case in of_exporters if OF_TWO_PODS not in "".join(case.sick)]
    return failures(tmp_path, {name: fires_alike(case) for name, case in numbered(cases).items()})
