"""Every question of every panel is asked of real Prometheus servers that scrape the real programs.

One honours our labels, the other renames them to `exported_…`; both must answer the same.
"""

import importlib
import io
import json
import math
import re

import pytest
from click.testing import CliRunner
from PIL import Image

from grafana import alerts
from grafana.answers import Line, Server, name_of, rows
from grafana.dashboards import DASHBOARDS
from grafana.dashboards.model import TablePanel
from grafana.reading import EVERYTHING, FOLDER, filled, load, of_range, panels
from tests.grafana.asking import first_answers, wait_for_none
from tests.grafana.living_cluster import CLUSTER, EXPORTERS_POD, SUCCESSOR, LivingCluster
from tests.grafana.promtool import OURS
from tests.support.defects import no_defects
from vgpucli.main import main

pytestmark = pytest.mark.slow

PAGES = {file.stem: load(file) for file in sorted(FOLDER.glob("*.json"))}
PANELS = {
    f"{uid}: {panel.title}": panel
    for uid, page in PAGES.items()
    for panel in panels(page)
    if panel.targets
}
TARGETS = {
    uid: {
        f"{panel.title} {target.letter}": target
        for panel in panels(page)
        for target in panel.targets
    }
    for uid, page in PAGES.items()
}
TABLES = {
    f"{page.uid}: {panel.title}": panel
    for page in DASHBOARDS
    for row in page.rows
    for panel in row.panels
    if isinstance(panel, TablePanel)
}
MAY_BE_EMPTY = {"reason"}
"""Labels that are not always there: a pod that waits has no reason."""

VALUES = {**EVERYTHING, **of_range(60, step=1), "__rate_interval": "10s"}

BY = re.compile(r"max by \(([^)]*)\)")
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")
QUERY_RESULT = re.compile(r"query_result\((.*)\)")


@pytest.fixture(scope="module")
def preview():
    """The module that draws. It is imported here: matplotlib takes half a second in each worker."""
    return importlib.import_module("grafana.preview")


each_dashboard = pytest.mark.parametrize("uid", PAGES)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, well_nodes):
    folder = tmp_path_factory.mktemp("living")
    with LivingCluster(folder, "--leader-elect", well_nodes=well_nodes) as living:
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


def of_everybody(expr):
    """The expression without its choice of the largest; of equals, topk takes any."""
    return re.sub(r"topk\(\d+", "topk(1000", expr)


def visible(target, labels):
    """What a person sees of a series: the columns of a table, or its name."""
    if not target.legend or target.legend == "__auto":
        by = BY.match(target.expr)
        return {name: labels.get(name) for name in by[1].split(", ")} if by else {}
    return name_of(target, labels)


def looking_back(server, seconds):
    """The server as what draws asks it, about so many seconds until now."""
    now = float(server.api("/api/v1/query?query=time()")["data"]["result"][1])
    return Server(f"http://127.0.0.1:{server.port}", VALUES, now - seconds, now)


@each_dashboard
def test_each_question_has_an_answer(server, uid):
    """None is rightly empty here: even where nothing is wrong, a number shows that."""
    asked = {name: filled(target.expr, VALUES) for name, target in TARGETS[uid].items()}
    first_answers(server, asked)


@pytest.mark.parametrize("uid", ["vgpu-fleet", "vgpu-node"])
def test_a_replaced_exporters_gpus_are_counted_once(server, uid):
    (target,) = PANELS[f"{uid}: GPUs missing"].targets
    assert server.wait_for(filled(target.expr, VALUES)) == [({}, 0)]


@each_dashboard
@no_defects
def test_a_legend_names_labels_that_are_there(server, uid):
    legends = {name: each for name, each in TARGETS[uid].items() if "{{" in each.legend}
    asked = {name: filled(each.expr, VALUES) for name, each in legends.items()}
    for name, answer in first_answers(server, asked).items():
        wanted = set(re.findall(r"{{(\w+)}}", legends[name].legend))
        zero = len(answer) == 1 and answer[0][1] == 0
        for labels, _ in answer:
            if not (wanted & set(labels) if zero else wanted - MAY_BE_EMPTY <= set(labels)):
                yield f"{name}: {legends[name].legend} of {labels}"


@each_dashboard
@no_defects
def test_both_kinds_of_scrape_jobs_show_the_same_names(cluster, uid):
    """The exporter's own pods, of which one followed the other, are nowhere to be seen."""
    shown = {}

    def names(server, target):
        answer = ask(server, of_everybody(target.expr))
        return sorted(str(visible(target, labels)) for labels, _ in answer)

    def differences():
        for name, target in TARGETS[uid].items():
            if name not in shown:
                honouring, renaming = (names(server, target) for server in cluster.servers)
                if honouring == renaming != []:
                    shown[name] = honouring
                else:
                    yield f"{name}: {sorted({*honouring} ^ {*renaming}) or honouring}"

    wait_for_none(differences, "showed the same names")
    own = [pod["pod"] for pod in (EXPORTERS_POD, SUCCESSOR)]
    for name, found in shown.items():
        for each in {*found}:
            if any(pod in each for pod in own):
                yield f"{name}: {each}"


@each_dashboard
@no_defects
def test_each_variable_has_values_to_choose(server, uid):
    for variable in PAGES[uid]["templating"]["list"]:
        name = variable["name"]
        if variable["type"] != "query":
            continue
        text = filled(variable["query"]["query"], VALUES)
        if found := LABEL_VALUES.fullmatch(text):
            values = [labels.get(found[2]) for labels, _ in server.wait_for(found[1])]
        else:
            # as Grafana writes what `query_result` brings, for the variable's regular expression
            pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
            series = server.wait_for(QUERY_RESULT.fullmatch(text)[1])
            texts = [
                "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "} 1"
                for labels, _ in series
            ]
            values = [(pattern.search(each) or [None, None])[1] for each in texts]
            if len(set(values)) != len(values):
                yield f"${name}: the same twice: {set(values)}"
            if {pod.get(name) for pod in (EXPORTERS_POD, SUCCESSOR)} & set(values):
                yield f"${name}: the exporter's own: {set(values)}"
        if not all(values):
            yield f"${name}: nothing of some series: {set(values)}"


WORKLOADS = "vgpu-workload: Shares, limits and use"


def shown_shares(server, **values):
    """(namespace, pod, scheme) of every share that can be shown."""
    (target, *_) = PANELS[WORKLOADS].targets
    return {
        (labels["namespace"], labels["pod"], labels["scheme"])
        for labels, _ in ask(server, of_everybody(target.expr), **values)
    }


def test_a_chosen_value_shows_only_its_own_shares(server):
    """Several are chosen as Grafana writes it."""
    choices = {
        "namespace": ["research", "(research|teaching)"],
        "pod": ["finetune-0"],
        "scheme": ["gaia"],
    }

    def others():
        everybody = shown_shares(server)
        for place, (variable, chosen) in enumerate(choices.items()):
            for value in chosen:
                found = shown_shares(server, **{variable: value})
                wanted = {who for who in everybody if re.fullmatch(value, who[place])}
                if found != wanted or not set() < found < everybody:
                    yield f"{variable}={value}: {sorted(found ^ wanted) or found}"

    wait_for_none(others, "saw what was chosen")


@no_defects
def test_of_another_cluster_there_is_nothing(server):
    assert ask(server, f'vgpu_gpus{{cluster="{CLUSTER}"}}')
    for uid, targets in TARGETS.items():
        for name, target in targets.items():
            nobody = {"cluster": "south", "node": "none", "reconciler": "none"}
            if found := ask(server, target.expr, **nobody):
                yield f"{uid}: {name}: {found}"


def test_a_table_has_one_line_for_each_thing(cluster):
    """The columns of a thing, each a question of its own, end up on one line."""

    def split():
        asking = looking_back(cluster.servers.honouring, 0)
        for name, table in TABLES.items():
            things = {
                tuple(labels.get(label) for label in table.labels)
                for target in PANELS[name].targets
                for labels, _ in asking.now(target)
            }
            _, lines = rows(PANELS[name], asking)
            if not len(lines) == len(things) > 0:
                yield f"{name}: {len(lines)} lines for {len(things)} things"

    wait_for_none(split, "had one line for each thing")


def test_without_honor_labels_an_alert_and_a_sum_name_containers_and_not_the_exporter(cluster):
    """Prometheus renames here as promtool's tests do."""
    server, demo = cluster.servers.renaming, cluster.nodes[0].node.scenario
    expr = {rule.name: rule.expr for group in alerts.GROUPS for rule in group.rules}
    over = server.wait_for(expr["VgpuContainerOverLimit"])
    names = [(labels["namespace"], labels["pod"], labels["container"]) for labels, _ in over]
    assert names == [("research", "finetune-0", "trainer")]

    sums = server.wait_for("cluster_namespace:vgpu_container_memory_used_bytes:sum")
    found = {labels["namespace"] for labels, _ in sums}
    assert found >= {pod.ref.namespace for pod in demo.pods if pod.running}
    assert EXPORTERS_POD["namespace"] not in found

    ((stored, _),) = server.wait_for('vgpu_container_info{exported_pod="finetune-0"}')
    assert stored.items() >= SUCCESSOR.items()
    assert stored.keys() >= {f"exported_{name}" for name in OURS}


DRAWN = "vgpu-fleet"
"""The dashboard with most panels, of all kinds. Drawing takes seconds, while the servers go on."""

each_drawn = pytest.mark.parametrize(
    "uid",
    [
        pytest.param(uid, marks=() if uid == DRAWN else pytest.mark.thorough("release"))
        for uid in PAGES
    ],
)


@each_drawn
def test_a_dashboard_can_be_drawn(cluster, preview, uid):
    picture_of = preview.picture(PAGES[uid], looking_back(cluster.servers.renaming, 30))
    drawn = Image.open(io.BytesIO(picture_of))
    assert len(drawn.convert("RGB").getcolors(1 << 24)) > 20


def test_each_kind_of_panel_and_each_unit_can_be_drawn(preview):
    everything = [panel for page in PAGES.values() for panel in panels(page)]
    assert {panel.kind for panel in everything} - {"row"} <= preview.DRAW.keys()
    assert {panel.kind for panel in panels(PAGES[DRAWN])} == {panel.kind for panel in everything}
    units = re.findall(r'"unit": "([^"]*)"', json.dumps([*PAGES.values()]))
    assert {*units} <= preview.UNITS.keys()


def test_a_dashboard_of_nothing_can_be_drawn(cluster, preview):
    server = Server(f"http://127.0.0.1:{cluster.servers.honouring.port}", VALUES, 0, 30)
    assert preview.picture(PAGES["vgpu-reconciler"], server)


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
def test_numbers_are_shown_in_their_units(preview, unit, value, words):
    assert preview.UNITS[unit](value) == words


def test_a_legend_begins_with_what_is_largest_now(preview):
    lines = [
        Line(name, (0.0, 1.0), values)
        for name, values in {
            "low": (9.0, 1.0),
            "gone": (5.0, math.nan),
            "high": (0.0, 2.0),
            "was high": (10.0, 1.0),
        }.items()
    ]
    assert [line.name for line in preview.ranked(lines)] == ["high", "was high", "low", "gone"]


# ---------------------------------------------------------------- vgpu inspect


def measured(cluster, *words):
    """What `vgpu inspect` shows of each namespace's use; other namespaces measure nothing."""
    kubeconfig = cluster.folder / "reconciler" / "kubeconfig"
    command = ["inspect", "--by", "namespace", f"--kubeconfig={kubeconfig}", "-o", "json", *words]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    groups = json.loads(result.stdout)["groups"]
    return {group["name"]: group["measured"] for group in groups if group["measured"]["pods"]}


def test_inspect_shows_what_namespaces_use_by_this_server_as_the_exporters_do(cluster, server):
    by_server = measured(cluster, f"--prometheus=http://127.0.0.1:{server.port}")
    pages = [f"--exporter=http://127.0.0.1:{each.port}" for each in cluster.nodes[:3]]
    by_exporters = measured(cluster, *pages)
    assert by_server.keys() == by_exporters.keys() >= {"serving", "research", "recsys"}
    for name, use in by_server.items():
        assert use["pods"] == by_exporters[name]["pods"]
        assert use["usedMemoryBytes"] > 0
