"""What a plan looks like: to people on a terminal, in a pipe, and as JSON."""

import io
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from reconciler.model import (
    ActionResult,
    Breaker,
    Edit,
    Entry,
    Evict,
    Finding,
    ObjectKind,
    ObjectRef,
    Plan,
    Scope,
)
from reconciler.plan import make_plan
from reconciler.policy import Limits, Policy
from reconciler.reasons import ActionOutcome, Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.report.document import (
    done_of,
    moment,
    plan_document,
    report_document,
    succeeded,
)
from reconciler.report.table import object_text, show_plan, show_report, show_result
from tests.reconciler.samples import (
    CODECS_IN_USE,
    NOW,
    assumed,
    claimed,
    lock,
    node,
    pod,
    prestart_failed,
    refused,
    replace,
    snapshot,
    unbound,
)
from vgpu.model.document_text import json_text
from vgpu.model.names import PodRef

LONG = "train-bert-large-uncased-7c9d8f6b54-qq7lz"
SICK = (
    refused(pod(LONG)),
    refused(pod("young-0", age=70)),
    refused(pod("core-0", namespace="kube-system")),
    prestart_failed(pod("prestart-0", "gaia")),
    assumed("bare-0", kind=None),
    assumed("bare-1", kind=None),
    unbound("unbound-0"),
    pod("well-0"),
    node("gpu-1", annotations=lock(pod("gone-0"))),
)


def planned(*objects, **policy):
    return make_plan(
        snapshot(*(objects or SICK)), Policy(**policy), ReconcilerState(), CODECS_IN_USE
    )[0]


def shown(plan, width=0, **options):
    file = io.StringIO()
    console = Console(file=file, width=width or None, force_terminal=bool(width), color_system=None)
    show_plan(console, plan, **options)
    return file.getvalue()


def test_in_a_pipe_each_object_is_one_whole_line():
    lines = shown(planned()).splitlines()
    assert lines[0] == "To be done: 4"
    mine = [line for line in lines if LONG in line]
    assert len(mine) == 1
    assert mine[0].split()[:5] == ["refused", "tidying", f"ml/{LONG}", "gpu-1", "1h"]
    assert "message 'Pod was rejected: Allocate failed due to rpc error: code = Unknown" in mine[0]
    assert len(mine[0]) > 200


@pytest.mark.parametrize("width", [80, 200])
def test_on_a_terminal_no_line_is_longer_than_it(width):
    text = shown(planned(), width)
    assert max(map(len, text.splitlines())) <= width
    assert f"ml/{LONG}" in text


def test_skipped_objects_are_grouped_by_reason_with_every_object_once():
    plan = planned()
    text = shown(plan)
    left = text[text.index("Skipped") :].splitlines()
    assert left[0] == "Skipped: 4"
    assert left[1] == "  protected_namespace: the object is in a protected namespace (1)"
    assert left[2].split()[:3] == ["refused", "kube-system/core-0", "gpu-1"]
    assert left[3] == "  bare_pod: no controller would recreate the pod (--evict-bare) (2)"
    assert [line.split()[1] for line in left[4:6]] == ["ml/bare-0", "ml/bare-1"]
    assert left[6] == "  too_young: the problem is not old enough yet (1)"
    assert "50 s to go" in left[7]
    for entry in plan.entries:
        name = object_text(entry.finding.object_ref)
        assert sum(f" {name} " in line for line in text.splitlines()) == 1, name


def test_the_actions_stand_in_the_order_in_which_they_are_done():
    plan = planned()
    text = shown(plan)
    places = [text.index(f"\n  {entry.finding.rule} ") for entry in plan.actions]
    assert places == sorted(places)
    assert "node gpu-1 [hami.io/mutex.lock]" in text
    assert "removes hami.io/mutex.lock" in text


def test_the_summary_counts_recovery_tidying_and_the_examined_objects():
    last = shown(planned(), command="vgpu reconcile apply").splitlines()[-2:]
    assert last[0].startswith(
        "4 actions (1 recovery, 1 tidying, 2 repair), 4 skipped, 0 report only;"
        " looked at 8 pods, 1 node, 2026-09-21 14:13:20 UTC, plan "
    )
    assert last[1] == "To do this: vgpu reconcile apply"


def test_a_plan_with_nothing_in_it_is_one_line():
    (line,) = shown(planned(pod("well-0")), command="vgpu reconcile apply").splitlines()
    assert line.startswith("0 actions, 0 skipped, 0 report only; looked at 1 pod, 1 node")


def test_a_tripped_breaker_and_what_was_not_seen_stand_on_top():
    plan = planned(*SICK, limits=Limits(breaker=0.0, breaker_floor=0))
    lines = shown(replace(plan, notes=("SharePods could not be read",))).splitlines()
    assert lines[0] == "note: SharePods could not be read"
    assert lines[1].startswith("Circuit breaker: actions are needed for 4 objects, with")
    assert "Nothing will be done: find the common cause first." in " ".join(map(str.strip, lines))
    assert "To be done" not in "\n".join(lines)


# ---------------------------------------------------------------- JSON


def document(plan, results=()):
    return json.loads(json_text(plan_document(plan, results)))


def test_the_json_form_has_all_that_is_known_of_each_object():
    plan = planned()
    parsed = document(plan)
    assert (parsed["apiVersion"], parsed["plan"], parsed["scope"]) == (
        "vgpu.dev/v1alpha1",
        plan.id,
        "cluster",
    )
    assert parsed["madeAt"] == "2026-09-21T14:13:20Z"
    assert parsed["breaker"] == {"tripped": False, "wanted": 4, "allowed": 10, "pods": 5}
    (mine,) = [entry for entry in parsed["actions"] if entry["name"] == LONG]
    assert mine == {
        "rule": "refused",
        "reason": "unexpected_admission_error",
        "explanation": Cause.UNEXPECTED_ADMISSION_ERROR.explanation,
        "effect": "tidying",
        "kind": "Pod",
        "namespace": "ml",
        "name": LONG,
        "uid": f"uid-of-ml-{LONG}",
        "part": "",
        "node": "gpu-1",
        "since": "2026-09-21T13:13:20Z",
        "evidence": mine["evidence"],
        "also": [],
        "action": {"type": "evict", "before": {}, "after": {}, "unbind": ""},
        **dict.fromkeys(("skip", "skipExplanation", "skipDetail")),
        **dict.fromkeys(("outcome", "outcomeExplanation", "outcomeDetail")),
    }
    (young,) = [entry for entry in parsed["skipped"] if entry["name"] == "young-0"]
    assert young["skip"] == "too_young"
    assert young["skipExplanation"] == SkipReason.TOO_YOUNG.explanation
    assert young["skipDetail"] == "50 s to go"


def test_an_edits_before_and_after_images_are_whole_in_the_json_form():
    sick = unbound("unbound-0")
    (entry,) = document(planned(sick))["actions"]
    before = claimed("volcano", sick.ref, "gpu-1", phase=sick_phase(sick), age=3600.0)
    assert entry["action"]["type"] == "edit"
    assert set(entry["action"]["before"]) == set(entry["action"]["after"])
    assert entry["action"]["before"].items() <= before.items()
    assert set(entry["action"]["after"].values()) == {None}


def sick_phase(sick):
    (claim,) = [claim for one in CODECS_IN_USE if (claim := one.claim(sick))]
    return claim.allocations[0].phase


def test_each_applied_action_has_its_outcome():
    plan = planned()
    results = [
        ActionResult(entry, outcome, "in its own words")
        for entry, outcome in zip(plan.actions, ActionOutcome, strict=False)
    ]
    actions = document(plan, results)["actions"]
    assert [entry["outcome"] for entry in actions] == ["done", "dry_run", "gone", "changed"]
    assert actions[2]["outcomeExplanation"] == ActionOutcome.GONE.explanation
    assert {entry["outcomeDetail"] for entry in actions} == {"in its own words"}


@pytest.mark.parametrize("outcome", ActionOutcome)
def test_an_action_has_succeeded_if_nothing_is_left_to_be_done(outcome):
    plan = planned()
    good = outcome in (
        ActionOutcome.DONE,
        ActionOutcome.DRY_RUN,
        ActionOutcome.GONE,
        ActionOutcome.CHANGED,
    )
    assert (
        succeeded(
            [
                ActionResult(plan.actions[0], ActionOutcome.DONE),
                ActionResult(plan.actions[1], outcome),
            ]
        )
        == good
    )


# ---------------------------------------------------------------- the report


def test_the_report_counts_by_rule_node_and_owner():
    plan = planned()
    owners = {pod("x").owner.uid: "ReplicaSet ml/train"}
    report = report_document(plan, owners, ())
    counts = {each.rule: (each.actions, each.skipped, each.findings) for each in report.rules}
    assert counts == {
        "refused": (1, 2, 0),
        "prestart_failed": (1, 0, 0),
        "assumed_expired": (0, 2, 0),
        "assumed_unbound": (1, 0, 0),
        "stale_lock": (1, 0, 0),
    }
    assert report.effects == {"recovery": 1, "tidying": 1, "repair": 2}
    assert [(each.name, each.count) for each in report.nodes] == [("gpu-1", 7)]
    assert [(each.name, each.count) for each in report.owners] == [("ReplicaSet ml/train", 5)]
    assert report.done == ()
    file = io.StringIO()
    show_report(Console(file=file), plan, report)
    assert "  refused          1 to be done, 2 skipped: the kubelet" in file.getvalue()
    assert "ReplicaSet ml/train" in file.getvalue()


def test_what_was_done_is_counted_with_the_last_time():
    early, late = (datetime(2026, 11, day, tzinfo=UTC) for day in (20, 21))
    counts = done_of(
        [
            (Rule.REFUSED, ActionOutcome.DONE, late),
            (Rule.REFUSED, ActionOutcome.DONE, early),
            (Rule.REFUSED, ActionOutcome.GONE, early),
        ]
    )
    assert [(each.outcome, each.count, each.last) for each in counts] == [
        ("done", 2, late),
        ("gone", 1, early),
    ]


# ---------------------------------------------------------------- hostile text

HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "\x1b[31mred",
        "\x9b31m",
        "a\nb",
        "\x07",
        "\u202eevil",
        "\u2028",
        "[red]x[/red]",
        "\x7f",
        "a\x00",
    ]
)


@st.composite
def hostile_plans(draw):
    ref = PodRef("uid", draw(HOSTILE), draw(HOSTILE))
    target = ObjectRef(
        ObjectKind.POD, ref.namespace, ref.name, draw(HOSTILE), draw(HOSTILE), draw(HOSTILE)
    )
    text = {draw(HOSTILE): draw(HOSTILE)}
    action = draw(
        st.sampled_from([Evict(ref, "1"), Edit(target, "1", text, dict.fromkeys(text, "x"))])
    )
    finding = Finding(
        Rule.REFUSED,
        Cause.MALFORMED,
        target,
        (draw(HOSTILE),),
        since=draw(st.floats(allow_nan=False, allow_infinity=False)),
        effect=draw(st.sampled_from(Effect)),
        action=action,
    )
    entry = Entry(finding, detail=draw(HOSTILE))
    return Plan(
        id="0",
        made_at=NOW,
        scope=Scope.CLUSTER,
        actions=(entry,),
        skipped=(replace(entry, skip=draw(st.sampled_from(SkipReason))),),
        findings=(entry,),
        breaker=Breaker(1, 10, 1),
        notes=(draw(HOSTILE),),
    )


def harmless(text):
    return all(line.isprintable() for line in text.split("\n"))


@given(hostile_plans(), st.sampled_from([0, 80, 200]))
def test_nothing_of_a_tenants_text_reaches_the_terminal_as_a_command(plan, width):
    assert harmless(shown(plan, width))
    file = io.StringIO()
    show_result(
        Console(file=file), ActionResult(plan.actions[0], ActionOutcome.FAILED, plan.notes[0])
    )
    assert harmless(file.getvalue())
    assert file.getvalue().count("\n") == 1


@given(hostile_plans())
def test_the_json_form_is_as_harmless_and_has_the_unchanged_text(plan):
    text = json_text(plan_document(plan))
    assert harmless(text)
    parsed = json.loads(text)
    assert parsed["notes"] == list(plan.notes)
    assert parsed["actions"][0]["name"] == plan.actions[0].finding.object_ref.name


@given(st.floats(allow_nan=False))
def test_any_time_has_a_date(seconds):
    assert moment(seconds).tzinfo is UTC
