"""Plans from dumps as kubectl prints them, with ages; reports from dumps; what has changed."""

import json
import os

import pytest

from reconciler.apply.audit import Audit
from reconciler.model import ActionResult
from reconciler.reasons import ActionOutcome
from reconciler.session import with_state_namespace
from tests.reconciler.test_cli import NODE, SICK, WELL, call, refused
from tests.reconciler.test_restore import ENTRIES
from tests.support import sample_cluster as sample
from tests.support.reconcile_plans import plan
from tests.support.sample_cluster import DAY, NOW
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import ObjectPage
from vgpu.model.objects import Lease


@pytest.fixture
def dump(tmp_path):
    def write(items, name="dump.json", *, at=NOW):
        file = tmp_path / name
        file.write_text(json.dumps(sample.dump(items)))
        os.utime(file, (at, at))
        return str(file)

    return write


def planned(file, *words):
    result = call("plan", "--from", file, "-o", "json", *words)
    assert result.exit_code in (0, 3), result.output
    return json.loads(result.stdout)


def waiting(name, *, age=3 * DAY, conditions=True, managed=False):
    """Stuck for days, as kubectl prints it: without managedFields."""
    pod = sample.volcano_pod(name, "gpu-1", 1, 8000, phase="Pending", age=age)
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "u", "controller": True}
    ]
    message = "PreStartContainer check failed: device not found"
    state = {"waiting": {"reason": "CreateContainerError", "message": message}}
    pod["status"]["containerStatuses"] = [{"name": "main", "state": state}]
    if conditions:
        pod["status"]["startTime"] = sample.stamp(NOW - age)
        pod["status"]["conditions"] = [
            {
                "type": "ContainersReady",
                "status": "False",
                "lastTransitionTime": sample.stamp(NOW - age + 60),
            }
        ]
    if managed:
        pod["metadata"]["managedFields"] = [
            {"manager": "kubelet", "subresource": "status", "time": sample.stamp(NOW - 10)}
        ]
    return pod


# ---------------------------------------------------------------- ages


def test_a_pod_that_is_stuck_for_days_is_not_too_young(dump):
    plan = planned(dump((NODE, waiting("stuck"))))
    (action,) = plan["actions"]
    assert (action["rule"], action["skip"]) == ("prestart_failed", None)
    assert action["since"] == sample.stamp(NOW - 3 * DAY + 60)


def test_a_pod_that_just_began_to_wait_still_is(dump):
    (skipped,) = planned(dump((NODE, waiting("new", age=90))))["skipped"]
    assert skipped["skip"] == "too_young"


def test_the_kubelets_own_time_wins_where_the_dump_has_it(dump):
    (skipped,) = planned(dump((NODE, waiting("changed", managed=True))))["skipped"]
    assert (skipped["skip"], skipped["since"]) == ("too_young", sample.stamp(NOW - 10))


def test_without_the_last_changes_a_note_names_the_flag_of_kubectl(dump):
    (note,) = planned(dump((NODE, waiting("stuck"))))["notes"]
    assert "of 1 waiting pod" in note
    assert "kubectl get --show-managed-fields" in note
    assert not planned(dump((NODE, waiting("stuck", managed=True))))["notes"]
    assert not planned(dump(WELL))["notes"]
    assert "--show-managed-fields" in call("plan", "--help").stdout


# ---------------------------------------------------------------- report


def test_a_report_can_be_of_a_dump(dump):
    result = call("report", "--from", dump(SICK), "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [(row["rule"], row["actions"]) for row in report["rules"]] == [("refused", 2)]


def test_a_report_of_a_dump_asks_no_cluster(dump):
    result = call("report", "--from", dump(SICK), "--context", "prod")
    assert result.exit_code == 2
    assert "--from asks no cluster: drop --context" in result.stderr


def test_the_past_actions_can_begin_at_a_time(dump, tmp_path):
    path, since = str(tmp_path / "audit.jsonl"), 1795230000.0
    for ended_at in (since - 1, since, since + 1):
        with Audit.open(path, clock=lambda at=ended_at: at) as audit:
            audit.result(plan(ENTRIES[0]), ActionResult(ENTRIES[0], ActionOutcome.DONE))
    words = ("--since", "2026-11-21T03:00:00Z", "--audit", path, "-o", "json")
    (done,) = json.loads(call("report", "--from", dump(SICK), *words).stdout)["done"]
    assert done["count"] == 2
    wrong = call("report", "--from", dump(SICK), "--since", "yesterday")
    assert wrong.exit_code == 2
    assert "nor" not in wrong.stderr
    assert "2026-11-21T03:00:00Z or a duration such as 24h" in wrong.stderr


# ---------------------------------------------------------------- what has changed

YESTERDAY = (NODE, refused("sick-0"), refused("gone-0"), waiting("stuck", age=90))
TODAY = (NODE, refused("sick-0"), refused("new-0"), waiting("stuck"))


@pytest.mark.parametrize("form", ["plan", "dump"])
def test_a_plan_is_compared_with_an_earlier_one(dump, tmp_path, form):
    before = dump(YESTERDAY, "before.json", at=NOW)
    if form == "plan":
        text = call("plan", "--from", before, "-o", "json").stdout
        before = str(tmp_path / "plan.json")
        (tmp_path / "plan.json").write_text(text)
    today = dump(TODAY)
    diff = planned(today, "--diff", before)["diff"]
    assert [entry["name"] for entry in diff["new"]] == ["new-0"]
    assert [entry["name"] for entry in diff["gone"]] == ["gone-0"]
    (change,) = diff["changed"]
    assert (change["before"]["skip"], change["after"]["skip"]) == ("too_young", None)
    printed = call("plan", "--from", today, "--diff", before).stdout
    assert "1 new, 1 gone, 1 changed" in printed
    assert "  + Pod ml/new-0  refused: evict\n" in printed
    assert "  - Pod ml/gone-0  refused: evict\n" in printed
    assert "  ~ Pod ml/stuck  prestart_failed: too_young -> prestart_failed: evict\n" in printed


def test_what_is_neither_a_plan_nor_a_dump_is_no_earlier_plan(dump, tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"kind": "List", "items": []}')
    result = call("plan", "--from", dump(SICK), "--diff", str(other))
    assert result.exit_code == 1
    assert f"Error: --diff {other}: it has no objects" in result.stderr


# ---------------------------------------------------------------- the running reconciler's state


class Leases:
    """A cluster with these Leases, or with an error in their place."""

    def __init__(self, *leases, error=None):
        self.leases, self.error = leases, error
        self.asked = []

    def pages(self, kind, **selectors):
        self.asked.append((kind.name, selectors))
        if self.error is not None:
            raise self.error
        return [ObjectPage(tuple(self.leases))]


def options(monkeypatch, *words):
    """The options of a call by hand."""
    seen = []
    monkeypatch.setattr("reconciler.commands.plan.session", seen.append)
    call("plan", *words)
    return seen[0]


def lease(namespace):
    return Lease(namespace, "vgpu-reconciler")


def test_by_hand_the_running_reconcilers_namespace_is_found(monkeypatch, capsys):
    cluster = Leases(lease("gpu-system"))
    assert with_state_namespace(options(monkeypatch), cluster).state_namespace == "gpu-system"
    assert cluster.asked == [("Lease", {"field_selector": "metadata.name=vgpu-reconciler"})]
    assert with_state_namespace(options(monkeypatch), Leases()).state_namespace == "kube-system"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        (Leases(lease("a"), lease("b")), "there are several: a, b"),
        (Leases(error=ClusterError(403, "Forbidden", "no leases")), "Forbidden: no leases"),
    ],
)
def test_where_it_cannot_be_found_one_line_asks_for_it(monkeypatch, capsys, cluster, problem):
    before = options(monkeypatch)
    assert with_state_namespace(before, cluster) == before
    (line,) = capsys.readouterr().err.splitlines()
    assert "pass --state-namespace" in line
    assert problem in line


@pytest.mark.parametrize("words", [["--state-namespace", "x"], ["--scope", "node"]])
def test_a_namespace_that_is_named_or_not_used_is_not_read(monkeypatch, words):
    cluster = Leases(lease("gpu-system"))
    before = options(monkeypatch, *words)
    assert with_state_namespace(before, cluster) == before
    assert not cluster.asked
