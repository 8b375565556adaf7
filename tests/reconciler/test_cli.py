"""`vgpu reconcile` as a person calls it: on dumps, with a configuration, and with wrong flags."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from reconciler.config.flags import ReconcilerOptions
from reconciler.config.settings import ReconcilerSettings, config_text, parse
from tests.support import sample_cluster as sample
from tests.support.environment import ROOT
from tests.support.sample_cluster import HOUR, NOW
from vgpucli.main import main

OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "train",
    "uid": "uid-of-train",
    "controller": True,
}


def refused(name, **options):
    made = sample.pod(
        name, "gpu-1", sample.volcano_limits(8000), phase="Failed", owner=OWNER, **options
    )
    made["status"] |= {
        "reason": "UnexpectedAdmissionError",
        "message": "Pod was rejected: Allocate failed due to rpc error",
        "containerStatuses": [],
        "startTime": sample.stamp(NOW - HOUR),
    }
    return made


NODE = sample.volcano_node("gpu-1", 1)
SICK = (NODE, refused("sick-0"), refused("sick-1", namespace="dev"))
WELL = (NODE, sample.volcano_pod("well-0", "gpu-1", 1, 8000))


@pytest.fixture
def dump(tmp_path):
    def write(items):
        file = tmp_path / "dump.json"
        file.write_text(json.dumps(sample.dump(items)))
        os.utime(file, (NOW, NOW))
        return str(file)

    return write


def call(*words, env=None, **options):
    empty = {name: None for name in os.environ if name.startswith(("VGPU_", "KUBECONFIG"))}
    return CliRunner().invoke(
        main, ["reconcile", *words], env=empty | (env or {}), prog_name="vgpu", **options
    )


def planned(file, *words, **options):
    result = call("plan", "--from", file, "-o", "json", *words, **options)
    assert result.exit_code in (0, 3), result.output
    return json.loads(result.stdout)


# ---------------------------------------------------------------- plan --from


def test_a_plan_with_actions_exits_with_three(dump):
    result = call("plan", "--from", dump(SICK))
    assert result.exit_code == 3
    assert result.stdout.startswith("To be done: 2\n")
    assert "  refused  tidying  dev/sick-1  gpu-1  1h  evict: " in result.stdout
    assert "apply" not in result.stdout.splitlines()[-1]


def test_a_plan_without_any_exits_with_zero(dump):
    result = call("plan", "--from", dump(WELL))
    assert (result.exit_code, result.stdout.splitlines()[-1][:9]) == (0, "0 actions")


def test_a_tripped_breaker_exits_with_three_though_nothing_may_be_done(dump, tmp_path):
    config = tmp_path / "r.yaml"
    config.write_text("limits: {breaker: 0, breaker_floor: 1}")
    document = planned(dump(SICK), "--config", str(config))
    assert document["breaker"]["tripped"]
    assert not document["actions"]
    assert call("plan", "--from", dump(SICK), "--config", str(config)).exit_code == 3


def test_a_dump_is_as_old_as_its_file_or_as_the_flag_at(dump):
    file = dump(SICK)
    assert planned(file)["madeAt"] == "2026-09-21T14:13:20Z"
    document = planned(file, "--at", "2026-09-21T13:14:00Z")
    assert document["madeAt"] == "2026-09-21T13:14:00Z"
    assert {entry["skip"] for entry in document["skipped"]} == {"too_young"}
    assert planned(file, "--at", str(NOW + 60))["madeAt"] == "2026-09-21T14:14:20Z"
    assert planned(file, "--at", "2026-09-21T15:14:00+01:00")["madeAt"] == "2026-09-21T14:14:00Z"


def test_a_dump_without_pods_is_no_good_news(dump):
    result = call("plan", "--from", dump([NODE]))
    assert result.exit_code == 1
    assert "note: the dump has no pods" in result.stdout
    assert "not all pods could be seen, so nothing could be judged" in result.stderr


def test_a_dump_comes_through_a_pipe(dump):
    content = Path(dump(SICK)).read_bytes()
    result = call("plan", "--from", "-", "-o", "json", "--at", str(NOW), input=content)
    assert len(json.loads(result.stdout)["actions"]) == 2


def test_the_metrics_of_one_look_can_be_printed(dump):
    result = call("plan", "--from", dump(SICK), "-o", "prometheus")
    found = {family.name: family for family in text_string_to_metric_families(result.stdout)}
    findings = {s.labels["rule"]: s.value for s in found["vgpu_reconcile_findings"].samples}
    assert findings["refused"] == 2
    assert found["vgpu_reconcile_info"].samples[0].labels == {"scope": "cluster", "mode": "plan"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty. Has kubectl failed?"),
        (b"{", "kubectl get nodes,pods -A -o json"),
        (b"[]", "kubectl get nodes,pods -A -o json"),
        (b"\xff\xfe", "kubectl get nodes,pods -A -o json"),
    ],
)
def test_what_is_no_dump_is_an_error_and_not_an_empty_plan(content, message):
    result = call("plan", "--from", "-", input=content)
    assert result.exit_code == 1
    assert message in result.stderr


# ---------------------------------------------------------------- what may be done


def test_flags_say_what_may_be_done(dump):
    file = dump(SICK)
    document = planned(file, "--namespace", "dev")
    assert [entry["namespace"] for entry in document["actions"]] == ["dev"]
    assert [entry["skip"] for entry in planned(file, "--max-per-cycle", "1")["skipped"]] == [
        "cycle_limit"
    ]
    document = planned(file, "--rule", "refused=plan")
    assert {entry["skip"] for entry in document["skipped"]} == {"rule_mode_plan"}
    document = planned(file, "--rule", "refused=off")
    assert document["actions"] == document["skipped"] == []


def test_each_flag_is_an_environment_variable_and_the_typed_one_wins(dump):
    file = dump(SICK)
    document = planned(file, env={"VGPU_NAMESPACE": "dev other", "VGPU_MAX_PER_CYCLE": "5"})
    assert [entry["namespace"] for entry in document["actions"]] == ["dev"]
    document = planned(file, "--namespace", "ml", env={"VGPU_NAMESPACE": "dev"})
    assert [entry["namespace"] for entry in document["actions"]] == ["ml"]


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(dump, tmp_path):
    config = tmp_path / "r.yaml"
    config.write_text("limits: {per_cycle: 0}")
    file = dump(SICK)
    assert not planned(file, "--config", str(config))["actions"]
    document = planned(file, "--config", str(config), "--max-per-cycle", "9")
    assert len(document["actions"]) == 2


def test_the_printed_configuration_is_one(tmp_path):
    printed = call("plan", "--print-config").stdout
    assert parse(printed, "printed") == ReconcilerSettings()
    assert printed == config_text(ReconcilerSettings())
    words = ("--evict-bare", "--rule", "recover=off", "--namespace", "ml", "--max-per-node", "2")
    config = tmp_path / "r.yaml"
    config.write_text(call("plan", *words, "--print-config").stdout)
    again = call("plan", "--config", str(config), "--print-config").stdout
    assert again == config.read_text()
    policy = parse(again, "again").policy
    assert policy.evict_bare
    assert policy.namespaces == ("ml",)
    assert policy.limits.per_node == 2


def test_a_switch_can_be_taken_back(tmp_path):
    config = tmp_path / "r.yaml"
    config.write_text("evict_bare: true")
    words = ("plan", "--config", str(config), "--no-evict-bare", "--print-config")
    assert not parse(call(*words).stdout, "printed").policy.evict_bare


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "--max-per-cycle", "many"], "'--max-per-cycle': must be a whole"),
        (
            ["plan", "--rule", "refused"],
            "'--rule': must be NAME=MODE, not 'refused'; names are ref",
        ),
        (["plan", "--rule", "nonsense=off"], "'--rule': must be NAME=MODE"),
        (["plan", "--rule", "refused=on"], "'--rule': must be off, plan or"),
        (["plan", "--namespace", "A_b"], "'--namespace': must be a list of namespaces"),
        (["plan", "--config", "/nowhere.yaml"], "--config: /nowhere.yaml: "),
        (["plan", "--config", "/proc"], "--config: /proc: "),
        (["plan", "--at", "noon", "--from", "x"], "'--at': 'noon' is not a time such as"),
        (["plan", "--at", "2026-11-21T03:00:00Z"], "--at is of a dump: it needs --from"),
        (["plan", "--from", "x", "--context", "prod"], "--from asks no cluster: drop --context"),
        (["plan", "--from", "x", "--scope", "node"], "--from asks no cluster: drop --scope node"),
        (["plan", "--path.procfs", "/p"], "--path.procfs: only with --scope node"),
        (["plan", "--node-name", "x"], "--node-name: only with --scope node"),
        (["plan", "-o", "yaml"], "'yaml' is not one of 'text', 'json', 'prometheus'"),
        (["apply", "--audit", "-", "-o", "json"], "--audit - and --output json both write"),
        (["run", "--every", "0s"], "'--every': must be a duration from 1s to 1d"),
        (["run", "--cron", "61 * * * *"], "'--cron': must be a cron expression"),
        (["run", "--every", "1m", "--cron", "* * * * *"], "'--cron': give it or every, not"),
        (["run", "--mode", "off"], "'--mode': must be plan or apply, not 'off'"),
        (["restore"], "Missing argument 'AUDIT'"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name(words, message):
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_an_error_in_the_file_names_its_line(dump, tmp_path):
    config = tmp_path / "r.yaml"
    config.write_text("limits:\n  per_cycle: 5\n  per_nod: 3\n")
    result = call("plan", "--from", dump(SICK), "--config", str(config))
    assert result.exit_code == 2
    assert f"{config}:3:3: limits.per_nod: unknown key; is it per_node?" in result.stderr


@pytest.mark.parametrize("command", ["plan", "apply", "report"])
def test_without_a_cluster_there_is_one_clear_line(command, tmp_path):
    words = (command, "--kubeconfig", str(tmp_path / "none"))
    result = call(*words, *(("--audit", str(tmp_path / "a")) if command == "apply" else ()))
    assert result.exit_code == 1
    assert "no such file" in result.stderr
    assert "Traceback" not in result.output


def test_an_audit_that_cannot_be_written_is_an_error_before_anything_is_asked(tmp_path):
    result = call("apply", "--audit", str(tmp_path / "none" / "audit.jsonl"))
    assert result.exit_code == 1
    assert f"--audit {tmp_path}/none/audit.jsonl: No such file or directory" in result.stderr


def test_an_audit_that_cannot_be_read_is_an_error(tmp_path):
    for words in (("restore", str(tmp_path / "none")), ("report", "--audit", str(tmp_path / "x"))):
        result = call(*words)
        assert result.exit_code == 1
        assert "No such file or directory" in result.stderr


def test_a_dry_run_needs_no_audit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("apply", "--server-dry-run", "--kubeconfig", str(tmp_path / "none"))
    result = CliRunner().invoke(main, ["reconcile", *words])
    assert "no such file" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_flags_give_all_options(monkeypatch):
    from reconciler.config import flags

    found = []

    def stop(ctx):
        found.append(flags.options_from(ctx))
        raise SystemExit(0)

    monkeypatch.setattr("reconciler.commands.plan.options_from", stop)
    call("plan", "--scope", "node", "--node-name", "n", "--path.procfs", "/host/proc",
         "--shim.root", "/a", "--shim.root", "/b", "--no-collector.nvml",
         "--volcano.memory-factor", "10", "--gpushare.memory-unit", "17MiB",
         "--state-namespace", "gpu")  # fmt: skip
    (options,) = found
    assert isinstance(options, ReconcilerOptions)
    assert (options.node, options.state_namespace, options.driver) == ("n", "gpu", False)
    assert options.places.procfs == "/host/proc"
    assert options.places.shim_roots == ("/a", "/b")
    assert (options.units.volcano_factor, options.units.gpushare_unit) == (10, 17 << 20)


def test_a_pods_own_namespace_keeps_the_state(tmp_path, monkeypatch):
    from reconciler.config import flags

    namespaces = []

    def stop(ctx):
        namespaces.append(flags.options_from(ctx).state_namespace)
        raise SystemExit(0)

    monkeypatch.setattr("reconciler.commands.plan.options_from", stop)
    monkeypatch.setattr(flags, "POD_NAMESPACE", tmp_path / "namespace")
    call("plan")
    (tmp_path / "namespace").write_text("gpu-tools\n")
    call("plan")
    assert namespaces == ["kube-system", "gpu-tools"]


def test_it_works_as_a_program(dump):
    command = [sys.executable, "-m", "vgpu", "reconcile", "plan", "--from", dump(SICK)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("VGPU_")}
    done = subprocess.run(
        command, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert "To be done: 2" in done.stdout
