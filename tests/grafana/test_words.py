"""Rules and runbooks speak of what is there: metrics, labels, values, alerts, files."""

import re

import click
from click.testing import CliRunner

from deviceplugin.apiserver.writes import WriteResult
from deviceplugin.health.incident import UnhealthyReason
from deviceplugin.metrics import TABLES as PLUGIN_TABLES
from deviceplugin.metrics import Wait
from deviceplugin.reasons import BindRefusal
from exporter.families import OWN_TABLES
from exporter.flags import COLLECTORS
from grafana import alerts, generate, recording
from grafana.alerts_page import with_severity
from kubeshare.metrics import NODE_TABLES as KUBESHARE_NODE_TABLES
from kubeshare.metrics import TABLES as KUBESHARE_TABLES
from kubeshare.metrics import SharePodState, StepOutcome, VirtualGpuPhase
from kubeshare.tokens.metrics import TABLES as TOKEN_TABLES
from reconciler.cycle import Ending
from reconciler.metrics import TABLES
from reconciler.model import Scope
from reconciler.reasons import ActionOutcome, Rule
from scheduler.metrics import TABLES as SCHEDULER_TABLES
from scheduler.metrics import Outcome, Verb
from scheduler.reasons import BindFailure
from tests.support.defects import no_defects
from tests.support.environment import ROOT
from vgpu.ledger import ConflictKind
from vgpu.ledger.limit_verdict import LimitReason, LimitState
from vgpu.model.names import Phase
from vgpu.model.reasons import Reason
from vgpu.placement.result import PlacementReason
from vgpu.sources.nvml_queries import CLOCK_EVENTS
from vgpucli.feedback.metrics import TABLES as FEEDBACK_TABLES
from vgpucli.main import main as cli

LABELS = {
    name: {*table.labels, *extra}
    for table in (
        *OWN_TABLES,
        *TABLES,
        *PLUGIN_TABLES,
        *SCHEDULER_TABLES,
        *KUBESHARE_TABLES,
        *KUBESHARE_NODE_TABLES,
        *FEEDBACK_TABLES,
        *TOKEN_TABLES,
    )
    for family in table.families
    for name, extra in family.samples.items()
}
RULES = [rule for group in (*alerts.GROUPS, *recording.GROUPS) for rule in group.rules]
RECORDED = {recording.PRICE} | {record.name for group in recording.GROUPS for record in group.rules}
TARGET = {"cluster", "job", "instance", "node", "namespace", "pod", "container"}
POD = {"namespace", "pod"}
CONTAINER = {*POD, "container"}

VALUES = {
    "collector": set(COLLECTORS),
    "reason": {
        *map(str, (*Reason, *BindRefusal, *UnhealthyReason, *BindFailure, *PlacementReason)),
        *CLOCK_EVENTS,
    },
    "type": {*map(str, ConflictKind), "corrected", "uncorrected"},
    "lifetime": {"volatile", "aggregate"},
    "rule": set(map(str, Rule)),
    "result": {*map(str, (*Ending, *WriteResult, *Outcome, *StepOutcome))},
    "state": {*map(str, (*SharePodState, *VirtualGpuPhase, *LimitState))},
    "verb": set(map(str, Verb)),
    "step": set(map(str, Wait)),
    "outcome": set(map(str, ActionOutcome)),
    "scope": set(map(str, Scope)),
    "phase": set(map(str, Phase)),
    "limit_reason": set(map(str, LimitReason)),
}
FREE = {"xid", "code", "job", "parent_uuid", "share_id"}
"""Labels whose values are not ours to say."""

SELECTOR = re.compile(r"(?<![\w:])(up|vgpu_\w+|[a-z_]+:vgpu_\w+:\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on|group_left)\s*\(([^()]*)\)")
STRING = re.compile(r'"[^"]*"')


def of_record(name):
    """The labels of a record, which its level names: ``cluster_team:…``."""
    level, _, rest = name.partition(":")
    return level.split("_") if rest else ()


@no_defects
def test_metrics_labels_and_values_are_there():
    for rule in RULES:
        found = SELECTOR.findall(rule.expr)
        if not found:
            yield f"{rule.name}: no metric"
        known = set(TARGET)
        for metric, matchers in found:
            if metric not in LABELS and metric not in RECORDED and metric != "up":
                yield f"{rule.name}: there is no {metric}"
            has = LABELS.get(metric) or {"job", *of_record(metric)}
            known |= has
            if has >= POD:
                known |= {f"exported_{label}" for label in CONTAINER & has}
            for label, values in MATCHER.findall(matchers):
                if label == "exported_pod" and has >= POD:
                    continue
                if label not in has:
                    yield f"{rule.name}: {metric} has no label {label}"
                elif label not in FREE:
                    for value in set(values.split("|")) - VALUES[label]:
                        yield f"{rule.name}: no {label} of {metric} is {value}"
        for labels in GROUPING.findall(rule.expr):
            for label in set(filter(None, map(str.strip, labels.split(",")))) - known:
                yield f"{rule.name}: no metric in it has a label {label}"


PRICED = "model, mig_profile"
"""A price table is of all clusters."""


@no_defects
def test_no_rule_adds_up_over_clusters():
    for rule in RULES:
        for labels in re.findall(r"\b(?:by|on)\s*\(([^()]*)\)", rule.expr):
            if "cluster" not in labels and labels != PRICED:
                yield f"{rule.name}: no cluster in ({labels})"
        if re.search(r"\b(sum|min|max|avg|count|group)\s*\(", rule.expr):
            yield f"{rule.name}: neither by nor without in {rule.expr}"
        if "absent(" in rule.expr:
            yield f"{rule.name}: absent() would not know which cluster"


BEGIN_AT_ZERO = {
    "vgpu_join_failures_total",
    "vgpu_reconcile_cycles_total",
    "vgpu_reconcile_missed_cycles_total",
    "vgpu_plugin_checkpoint_write_failures_total",
    "vgpu_plugin_wait_seconds_total",
    "vgpu_plugin_waits_total",
    "vgpu_token_loop_lag_seconds_bucket",
    "vgpu_token_overrun_seconds_total",
    "vgpu_token_used_seconds_total",
}
COME_AGAIN = {
    "vgpu_reconcile_actions_total",
    "vgpu_reconcile_api_requests_total",
    "vgpu_plugin_api_requests_total",
    "vgpu_extender_api_requests_total",
    "vgpu_extender_requests_total",
    "vgpu_extender_request_duration_seconds_sum",
    "vgpu_kubeshare_api_requests_total",
    "vgpu_kubeshare_node_api_requests_total",
    "vgpu_kubeshare_steps_total",
}


@no_defects
def test_counters_are_read_as_rates_or_levels():
    """`increase()` of a series that begins with its first event does not see that event."""
    for rule in RULES:
        for metric in re.findall(r"(?:increase|rate)\((\w+)", rule.expr):
            if metric not in BEGIN_AT_ZERO | COME_AGAIN:
                yield f"{rule.name}: {metric} begins with its first event"


# ---------------------------------------------------------------- runbooks

RUNBOOKS = ROOT / "docs" / "runbooks" / "alerts"
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page.name != "README.md")
ALERTS = {rule.name: rule for group in alerts.GROUPS for rule in group.rules}
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
METRIC = re.compile(
    r"(?<![\w:])vgpu_(?:gpu|container|collector|allocation|reconcile|plugin|extender|kubeshare|token|web|driver)\w*"
)


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    assert {page.stem for page in PAGES} == set(ALERTS)


def flags_of(command):
    """Of the command and of all below it."""
    found = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found |= flags_of(command.get_command(context, name))
    return found


FLAGS = flags_of(cli)


@no_defects
def test_commands_and_flags_of_a_runbook_are_there():
    for page in PAGES:
        for span in CODE.findall(page.read_text()):
            words = span.split()
            if words[0] == "vgpu" or words[0].startswith("--"):
                used = {word.partition("=")[0] for word in words if word.startswith("--")}
                for flag in used - FLAGS:
                    yield f"{page.stem}: no command has {flag}: {span}"
            command = cli
            for word in words[1:] if words[0] == "vgpu" else ():
                if isinstance(command, click.Group):
                    command = command.get_command(click.Context(command), word)
                    if not command:
                        yield f"{page.stem}: there is no command {word}: {span}"


def test_links_of_the_index_lead_somewhere():
    text = (RUNBOOKS / "README.md").read_text()
    assert [link for link in LINK.findall(text) if not (RUNBOOKS / link).exists()] == []


@no_defects
def test_a_runbook_has_its_headings_and_speaks_of_what_is_there():
    for page in PAGES:
        text = page.read_text()
        first, *lines = text.splitlines()
        if first != f"# {page.stem}":
            yield f"{page.stem}: begins with {first}"
        headings = [line[3:] for line in lines if line.startswith("## ")]
        if headings != HEADINGS:
            yield f"{page.stem}: has the headings {headings}"
        if with_severity(text, ALERTS[page.stem]) != text:
            yield f"{page.stem}: has other severities, or another reason to wake somebody"
        metrics = {found for found in METRIC.findall(text) if not found.endswith("_")}
        named = {word for word in CODE.findall(text) if re.fullmatch(r"Vgpu\w+", word)}
        named |= set(re.findall(r"\[(Vgpu\w+)\]", text))
        metrics -= {name.removesuffix("_bucket") for name in LABELS}  # histograms
        for unknown in (metrics - LABELS.keys()) | (named - ALERTS.keys()):
            yield f"{page.stem}: there is no {unknown}"
        for link in LINK.findall(text):
            if not (page.parent / link).exists():
                yield f"{page.stem}: {link} leads nowhere"


@no_defects
def test_metrics_that_an_alert_names_are_there():
    for alert in ALERTS.values():
        for metric in set(METRIC.findall(alert.description)) - LABELS.keys():
            yield f"{alert.name}: there is no {metric}"


# ---------------------------------------------------------------- the files


def generated(*flags):
    return CliRunner().invoke(generate.main, flags)


def test_the_generated_files_match_the_tables():
    checked = generated("--check")
    assert checked.exit_code == 0, checked.output


def test_a_missing_or_changed_file_is_reported_and_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    for name in generate.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    assert generated("--check").exit_code == 1
    assert generated().exit_code == 0
    assert generated("--check").exit_code == 0
    with (tmp_path / "grafana/rules/vgpu-alerts.yaml").open("a") as file:
        file.write("# by hand")
    result = generated("--check")
    assert result.exit_code == 1
    assert (
        result.stderr == "grafana/rules/vgpu-alerts.yaml differs from the tables: run `make docs`\n"
    )
