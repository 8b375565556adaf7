"""What every dashboard and every panel of it keeps to, read from the JSON that people import."""

import json
import re
from collections import Counter

import pytest

from deviceplugin.metrics import TABLES as PLUGIN_TABLES
from exporter.compat.tables import SETS
from exporter.families import OWN_TABLES
from grafana import recording
from grafana.dashboards import DASHBOARDS
from grafana.dashboards.build import UNKNOWN
from grafana.reading import FOLDER, VARIABLE, load, of_range, panels
from kubeshare.metrics import TABLES as KUBESHARE_TABLES
from kubeshare.tokens.metrics import TABLES as TOKEN_TABLES
from reconciler.metrics import TABLES as RECONCILER_TABLES
from scheduler.metrics import TABLES as SCHEDULER_TABLES
from tests.support.defects import no_defects
from tests.support.environment import ROOT

FILES = sorted(FOLDER.glob("*.json"))
PAGES = {file.stem: load(file) for file in FILES}
PANELS = {
    uid: {f"{uid}: {panel.title}": panel for panel in panels(page) if panel.kind != "row"}
    for uid, page in PAGES.items()
}
TARGETS = {
    uid: {
        f"{name} {target.letter}": target
        for name, panel in found.items()
        for target in panel.targets
    }
    for uid, found in PANELS.items()
}
BUILT_IN = {"__data", "__field", "__url_time_range", *of_range(1)}

LABELS = {
    name: {*table.labels, *extra}
    for tables in (
        OWN_TABLES,
        RECONCILER_TABLES,
        PLUGIN_TABLES,
        SCHEDULER_TABLES,
        KUBESHARE_TABLES,
        TOKEN_TABLES,
        *(make(False) for make in SETS.values()),
    )
    for table in tables
    for family in table.families
    for name, extra in family.samples.items()
}
RECORDED = {rule.name for group in recording.GROUPS for rule in group.rules}
OF_TARGETS = {"cluster", "job", "instance", "node"}
"""Labels that the scrape job gives."""

OF_ALERTS = {"alertname", "alertstate", "severity"}
"""Labels that Prometheus gives its series about alerts."""

NAME = re.compile(r"(?<![\w:\"$])(vgpu_\w+|\w+:vgpu_\w+:\w+)\s*(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")

each_dashboard = pytest.mark.parametrize("uid", PAGES)


def variables(uid):
    return PAGES[uid]["templating"]["list"]


def defaults(panel):
    return panel.raw["fieldConfig"]["defaults"]


def urls(raw):
    """Of all links in it."""
    return re.findall(r'"url": "([^"]+)"', json.dumps(raw))


def repeated(names):
    """Those that there are more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def test_there_is_a_file_for_each_dashboard():
    assert set(PAGES) == {page.uid for page in DASHBOARDS}


@each_dashboard
def test_a_dashboard_can_be_imported_as_it_is(uid):
    page = PAGES[uid]
    assert page["uid"] == uid
    assert page["schemaVersion"] <= 39
    assert page["description"]
    assert not page["editable"]
    assert page.get("id") is None
    assert repeated(panel["id"] for panel in page["panels"]) == []


@each_dashboard
def test_titles_are_unique_on_a_dashboard(uid):
    assert repeated(panel.title for panel in panels(PAGES[uid]) if panel.kind != "row") == []


@each_dashboard
@no_defects
def test_panels_are_within_the_grid_and_do_not_overlap(uid):
    taken = {}
    for panel in panels(PAGES[uid]):
        x, y, width, height = panel.place
        if x + width > 24:
            yield f"{panel.title}: beyond the grid"
        cells = {(x + i, y + j): panel.title for i in range(width) for j in range(height)}
        for other in {taken[cell] for cell in cells.keys() & taken.keys()}:
            yield f"{panel.title}: over {other}"
        taken |= cells
    for y in range(max(y for _, y in taken)):
        if hole := {x for x in range(24) if (x, y) not in taken}:
            yield f"nothing in line {y} at {min(hole)}"


def test_the_first_screen_of_all_nodes_has_alerts_xids_utilisation_and_power():
    """A screen of 1080 pixels without the browser's and Grafana's own lines: 38 for each."""
    seen = {panel.title for panel in panels(PAGES["vgpu-fleet"]) if sum(panel.place[1::2]) <= 25}
    assert seen >= {"Firing alerts by name", "XIDs of the last hour", "Utilisation", "Power"}
    assert seen >= {"Memory", "Utilisation over time", "Power over time", "Exporters down"}


@each_dashboard
@no_defects
def test_the_data_source_is_the_first_choice(uid):
    first, *others = variables(uid)
    if (first["type"], first["name"]) != ("datasource", "datasource"):
        yield f"first: {first['name']}"
    for each in others:
        if each["type"] == "query" and each["datasource"]["uid"] != "${datasource}":
            yield f"{each['name']}: {each['datasource']}"


@each_dashboard
@no_defects
def test_a_panel_describes_its_content_and_what_an_empty_panel_means(uid):
    for name, panel in PANELS[uid].items():
        about, *empty = panel.raw["description"].split("\n\nEmpty: ")
        if not about.endswith("."):
            yield f"{name}: no sentence: {about}"
        if [defaults(panel)["noValue"]] != [f"{UNKNOWN}: {each.rstrip('.')}" for each in empty]:
            yield f"{name}: shows {defaults(panel)['noValue']!r}, described as {empty}"


@each_dashboard
@no_defects
def test_a_panel_asks_the_chosen_data_source_and_no_other(uid):
    for name, panel in PANELS[uid].items():
        asking = {"itself": panel.raw} | {each["refId"]: each for each in panel.raw["targets"]}
        for who, each in asking.items():
            if each["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
                yield f"{name}: {who} asks {each['datasource']}"
        if not panel.targets:
            yield f"{name}: asks nothing"
        for letter in repeated(target.letter for target in panel.targets):
            yield f"{name}: two questions are {letter}"


@each_dashboard
@no_defects
def test_every_number_has_a_unit(uid):
    for name, panel in PANELS[uid].items():
        if panel.kind == "table":
            overrides = panel.raw["fieldConfig"]["overrides"]
            columns = [{entry["id"] for entry in each["properties"]} for each in overrides]
            units = sum("unit" in column for column in columns)
            if units != len(panel.targets):
                yield f"{name}: {units} units for {len(panel.targets)} numbers"
        elif not defaults(panel).get("unit"):
            yield f"{name}: no unit"


@each_dashboard
@no_defects
def test_an_unknown_value_is_never_shown_as_the_last_known_one(uid):
    """Only lines look back; and where they have nothing they have a gap."""
    for name, panel in PANELS[uid].items():
        if panel.kind == "timeseries":
            if defaults(panel).get("custom", {}).get("spanNulls"):
                yield f"{name}: lines go on over gaps"
            continue
        for target in panel.targets:
            if not target.instant:
                yield f"{name} {target.letter}: looks back"
        if panel.kind != "table":
            calcs = panel.raw["options"]["reduceOptions"]["calcs"]
            if calcs != ["last"]:
                yield f"{name}: shows {calcs}"


@each_dashboard
@no_defects
def test_an_unknown_value_is_grey(uid):
    for name, panel in PANELS[uid].items():
        *_, last = defaults(panel)["mappings"]
        options, result = last["options"], last["options"].get("result", {})
        mapping = (last["type"], options.get("match"), result.get("text"), result.get("color"))
        if mapping != ("special", "null+nan", UNKNOWN, "#808080"):
            yield f"{name}: {mapping}"


@each_dashboard
@no_defects
def test_no_expression_makes_data_where_there_is_none(uid):
    """A zero comes from what is there whenever somebody looked."""
    for name, target in TARGETS[uid].items():
        for word in ("vector(", "absent"):
            if word in target.expr:
                yield f"{name}: {word} in {target.expr}"


@each_dashboard
@no_defects
def test_every_variable_that_is_asked_for_can_be_chosen(uid):
    texts = {name: target.expr for name, target in TARGETS[uid].items()}
    for variable in variables(uid):
        if variable["type"] == "query":
            texts[variable["name"]] = variable["query"]["query"]
    known, asked = {variable["name"] for variable in variables(uid)}, set()
    for name, text in texts.items():
        found = {match[1] or match[2] for match in VARIABLE.finditer(text)}
        asked |= found
        for unknown in found - known - BUILT_IN:
            yield f"{name}: ${unknown} cannot be chosen"
    for idle in known - asked - {"datasource", "runbooks"}:
        yield f"${idle} is chosen, and nothing changes"


@each_dashboard
@no_defects
def test_metrics_and_their_labels_are_those_of_our_tables(uid):
    for where, target in TARGETS[uid].items():
        names = NAME.findall(target.expr)
        if not names and "up{" not in target.expr:
            yield f"{where}: nothing of ours in {target.expr}"
        for name, matchers in names:
            if name not in RECORDED and name not in LABELS:
                yield f"{where}: there is no {name}"
            level = name.partition(":")[0].split("_") if name in RECORDED else ()
            known = LABELS.get(name, OF_TARGETS) | OF_TARGETS | set(level)
            for label in MATCHER.findall(matchers):
                if label.removeprefix("exported_") not in known:
                    yield f"{where}: {name} has no label {label}"


@each_dashboard
@no_defects
def test_what_is_joined_and_added_up_are_labels_that_there_are(uid):
    known = set().union(*LABELS.values()) | OF_TARGETS | OF_ALERTS
    for name, target in TARGETS[uid].items():
        for labels in GROUPED.findall(target.expr):
            for label in filter(None, labels.split(", ")):
                if label.removeprefix("exported_") not in known:
                    yield f"{name}: no metric has a label {label}"


@each_dashboard
@no_defects
def test_links_lead_to_dashboards_and_runbooks_that_exist(uid):
    for name, panel in PANELS[uid].items():
        for url in urls(panel.raw):
            if url.startswith("/d/"):
                target, _, query = url.removeprefix("/d/").partition("?")
                chosen = set(re.findall(r"var-(\w+)=", query))
                there = target in PAGES and chosen <= {each["name"] for each in variables(target)}
            else:
                page = url.removeprefix("${runbooks}/").replace("${__field.labels.rule}", "refused")
                page = page.removesuffix(".html")
                there = (ROOT / "docs" / "runbooks" / f"{page}.md").is_file()
            if not there:
                yield f"{name}: {url}"


@each_dashboard
@no_defects
def test_a_link_takes_its_names_from_columns_that_there_are(uid):
    """The name of a node, or of a namespace, goes with its cluster's: several may have it."""
    for name, panel in PANELS[uid].items():
        columns = {
            column
            for each in panel.raw.get("transformations", ())
            if each["id"] == "organize"
            for column in each["options"]["renameByName"].values()
        }
        for url in urls(panel.raw["fieldConfig"]["overrides"]):
            for column in set(re.findall(r"\$\{__data\.fields\.(\w+)\}", url)) - columns:
                yield f"{name}: no column {column} for {url}"
            if "Cluster" in columns and "var-cluster=" not in url and "cluster:" not in url:
                yield f"{name}: no cluster in {url}"


@each_dashboard
@no_defects
def test_lines_that_come_and_go_are_not_stacked(uid):
    """Of the largest only, a stack's height is the sum of nothing."""
    for name, panel in PANELS[uid].items():
        if panel.kind == "timeseries" and any("topk" in each.expr for each in panel.targets):
            stacking = defaults(panel)["custom"]["stacking"]["mode"]
            if stacking != "none":
                yield f"{name}: {stacking}"


@each_dashboard
@no_defects
def test_a_legend_begins_with_the_largest_of_now(uid):
    for name, panel in PANELS[uid].items():
        if panel.kind == "timeseries":
            legend = panel.raw["options"]["legend"]
            if (legend["sortBy"], legend["sortDesc"]) != ("Last", True):
                yield f"{name}: {legend}"


@each_dashboard
def test_dashboards_lead_to_each_other_with_what_is_chosen(uid):
    (link,) = PAGES[uid]["links"]
    assert link["type"] == "dashboards"
    assert set(link["tags"]) <= set(PAGES[uid]["tags"])
    assert link["includeVars"]
    assert link["keepTime"]


@each_dashboard
def test_there_is_a_small_picture_of_each_dashboard(uid):
    picture = ROOT / "docs" / "dashboards" / f"{uid}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 250_000
