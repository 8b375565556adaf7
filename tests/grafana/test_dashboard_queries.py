"""Every question of every panel is asked of real Prometheus servers that scrape the real programs.

One honours our labels, the other renames them to `exported_…`; both must answer the same.
"""

import io
import math
import re

import pytest
from PIL import Image

from grafana.answers import Line, Server, name_of, rows
from grafana.dashboards import DASHBOARDS
from grafana.dashboards.model import Table
from grafana.preview import UNITS, picture, ranked
from grafana.reading import EVERYTHING, FOLDER, filled, load, panels
from tests.grafana.living_cluster import CLUSTER, EXPORTERS_POD, SUCCESSOR, LivingCluster

pytestmark = pytest.mark.slow

PAGES = {file.stem: load(file) for file in sorted(FOLDER.glob("*.json"))}
PANELS = {
    f"{uid}: {panel.title}": panel
    for uid, page in PAGES.items()
    for panel in panels(page)
    if panel.targets
}
TARGETS = {
    f"{name} {target.letter}": target for name, panel in PANELS.items() for target in panel.targets
}
TABLES = {
    f"{page.uid}: {panel.title}": panel
    for page in DASHBOARDS
    for row in page.rows
    for panel in row.panels
    if isinstance(panel, Table)
}
VARIABLES = {
    f"{uid}: {variable['name']}": variable
    for uid, page in PAGES.items()
    for variable in page["templating"]["list"]
    if variable["type"] == "query"
}
MAY_BE_EMPTY = {"reason"}
"""Labels that are not always there: a pod that waits has no reason."""

VALUES = {**EVERYTHING, "__rate_interval": "10s"}

BY = re.compile(r"max by \(([^)]*)\)")
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")
QUERY_RESULT = re.compile(r"query_result\((.*)\)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LivingCluster(tmp_path_factory.mktemp("living"), "--leader-elect") as living:
        demo = living.nodes[0].node
        demo.start -= 1 + max(xid.at for xid in demo.scenario.xids)
        living.move_on()
        for server in living.servers:
            server.wait_for("vgpu_gpu_xid_errors_total and on () vgpu_reconcile_findings")
        yield living


@pytest.fixture(scope="module", params=["honouring", "renaming"])
def server(request, cluster):
    return getattr(cluster.servers, request.param)


def ask(server, text, **values):
    return server.query(filled(text, {**VALUES, **values}))


def visible(target, labels):
    """What a person sees of a series: the columns of a table, or its name."""
    if not target.legend or target.legend == "__auto":
        by = BY.match(target.expr)
        return {name: labels.get(name) for name in by[1].split(", ")} if by else {}
    return name_of(target, labels)


@pytest.mark.parametrize("name", TARGETS)
def test_a_question_has_an_answer(server, name):
    """None is rightly empty here: even where nothing is wrong, that is told by a number."""
    server.wait_for(filled(TARGETS[name].expr, VALUES))


@pytest.mark.parametrize("uid", ["vgpu-fleet", "vgpu-node"])
def test_a_replaced_exporters_cards_are_counted_once(server, uid):
    (target,) = PANELS[f"{uid}: Cards missing"].targets
    assert server.wait_for(filled(target.expr, VALUES)) == [({}, 0)]


@pytest.mark.parametrize("name", [name for name in TARGETS if "{{" in TARGETS[name].legend])
def test_a_legend_names_labels_that_are_there(server, name):
    wanted = set(re.findall(r"{{(\w+)}}", TARGETS[name].legend))
    answers = server.wait_for(filled(TARGETS[name].expr, VALUES))
    zero = len(answers) == 1 and answers[0][1] == 0
    for labels, _ in answers:
        assert wanted & set(labels) if zero else wanted - MAY_BE_EMPTY <= set(labels)


@pytest.mark.parametrize("name", TARGETS)
def test_both_kinds_of_scrape_jobs_show_the_same_names(cluster, name):
    """The exporter's own pods, of which one followed the other, are nowhere to be seen."""
    target = TARGETS[name]
    everybody = re.sub(r"topk\(\d+", "topk(1000", target.expr)  # of equals, topk takes any

    def names():
        shown = [
            sorted(str(visible(target, labels)) for labels, _ in ask(server, everybody))
            for server in cluster.servers
        ]
        return shown[0] if shown[0] == shown[1] else None

    told = cluster.servers.honouring.until(names, f"the same names: {target.expr}")
    assert not any(pod["pod"] in name for name in told for pod in (EXPORTERS_POD, SUCCESSOR))


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_has_values_to_choose(server, name):
    variable = VARIABLES[name]
    text = filled(variable["query"]["query"], VALUES)
    if found := LABEL_VALUES.fullmatch(text):
        assert all(labels[found[2]] for labels, _ in server.wait_for(found[1]))
    else:
        # as Grafana writes what `query_result` brings, for the variable's regular expression
        pattern = re.compile(variable["regex"].strip("/"))
        series = server.wait_for(QUERY_RESULT.fullmatch(text)[1])
        told = [
            "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "} 1" for labels, _ in series
        ]
        values = {match[1] for each in told if (match := pattern.search(each))}
        assert len(values) == len(series) > 0
        assert not {pod.get(variable["name"]) for pod in (EXPORTERS_POD, SUCCESSOR)} & values


WORKLOADS = "vgpu-workload: What each has, may use and uses"


def given(server, **values):
    """(namespace, pod, scheme) of every share that is shown."""
    (target, *_) = PANELS[WORKLOADS].targets
    return {
        (labels["namespace"], labels["pod"], labels["scheme"])
        for labels, _ in ask(server, target.expr, **values)
    }


@pytest.mark.parametrize(
    ("chosen", "place", "value"),
    [
        ({"namespace": "research"}, 0, "research"),
        ({"pod": "finetune-0"}, 1, "finetune-0"),
        ({"scheme": "gaia"}, 2, "gaia"),
    ],
)
def test_who_chooses_sees_just_that(server, chosen, place, value):
    everybody = given(server)
    assert given(server, **chosen) == {who for who in everybody if who[place] == value} != set()
    assert given(server, **chosen) < everybody


def test_several_are_chosen_as_grafana_writes_it(server):
    assert given(server, namespace="(research|teaching)") == given(
        server, namespace="research"
    ) | given(server, namespace="teaching")


def test_of_another_cluster_there_is_nothing(server):
    found = {
        name
        for name, target in TARGETS.items()
        if ask(server, target.expr, cluster="south", node="none", reconciler="none")
    }
    assert found == set()
    assert ask(server, f'vgpu_gpus{{cluster="{CLUSTER}"}}')


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_one_line_for_each_thing(cluster, name):
    """The columns of a thing, each a question of its own, end up on one line."""
    server = cluster.servers.honouring
    now = float(server.api("/api/v1/query?query=time()")["data"]["result"][1])
    asking = Server(f"http://127.0.0.1:{server.port}", VALUES, now, now)
    things = {
        tuple(labels.get(label) for label in TABLES[name].labels)
        for target in PANELS[name].targets
        for labels, _ in asking.now(target)
    }
    _, lines = rows(PANELS[name], asking)
    assert len(lines) == len(things) > 0


@pytest.mark.parametrize("uid", PAGES)
def test_a_dashboard_can_be_drawn(cluster, uid):
    server = cluster.servers.renaming
    now = float(server.api("/api/v1/query?query=time()")["data"]["result"][1])
    asking = Server(f"http://127.0.0.1:{server.port}", VALUES, now - 30, now)
    drawn = Image.open(io.BytesIO(picture(PAGES[uid], asking)))
    assert len(drawn.convert("RGB").getcolors(1 << 24)) > 20


def test_a_dashboard_of_nothing_can_be_drawn(cluster):
    server = Server(f"http://127.0.0.1:{cluster.servers.honouring.port}", VALUES, 0, 30)
    assert picture(PAGES["vgpu-node"], server)


@pytest.mark.parametrize(
    ("unit", "value", "words"),
    [
        ("short", 0, "0"),
        ("short", 12345, "12.3 K"),
        ("bytes", 1023, "1023 B"),
        ("bytes", 5 * 2**30, "5 GiB"),
        ("percentunit", 0.123, "12.3%"),
        ("s", 0.02, "20 ms"),
        ("s", 5400, "1.5 hours"),
        ("watt", 1150, "1.15 kW"),
    ],
)
def test_numbers_are_told_in_their_units(unit, value, words):
    assert UNITS[unit](value) == words


def test_a_legend_begins_with_what_is_largest_now():
    lines = [
        Line(name, (0.0, 1.0), values)
        for name, values in {
            "low": (9.0, 1.0),
            "gone": (5.0, math.nan),
            "high": (0.0, 2.0),
            "was high": (10.0, 1.0),
        }.items()
    ]
    assert [line.name for line in ranked(lines)] == ["high", "was high", "low", "gone"]
