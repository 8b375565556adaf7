"""The doctor and the policy for our accounts: who is limited, and whose tokens must name a node."""

import pytest
import yaml

from deploy.manifests import FOLDER
from tests.support import sample_cluster as sample
from tests.support.doctor_facts import facts_of
from tests.support.installed import our_plugin, our_scheduler, ours, with_software
from vgpu.kube.node_key import NODE_KEY, OWN_NODE_VALUE
from vgpucli.doctor.answer import cluster_findings
from vgpucli.doctor.model import DoctorReason, Severity

POLICY, BINDING = yaml.safe_load_all((FOLDER / "account-policy.yaml").read_text())
NODE = with_software(sample.volcano_node("a", 1))
REQUIRED = "--require-node-token"
REASONS = {
    DoctorReason.NODE_KEY_ABSENT,
    DoctorReason.NODE_TOKEN_REQUIRED,
    DoctorReason.NODE_TOKEN_UNCHECKED,
    DoctorReason.ACCOUNT_NOT_LIMITED,
}


def plugin(*words, **options):
    """Our plugin of Volcano's, with the account of its manifest."""
    made = our_plugin(*words, **options)
    made["spec"]["template"]["spec"]["serviceAccountName"] = "vgpu-device-plugin-volcano"
    return made


def without(policy, old, new=""):
    return yaml.safe_load(yaml.safe_dump(policy, width=10**6).replace(old, new))


NODES_OWN = ours("DaemonSet", "reconciler-node", "reconcile", "run", "--scope=node", REQUIRED)
HOLDERS_NODE = ours("DaemonSet", "kubeshare-node", "kubeshare", "node", REQUIRED, ready=0)
AUDITED = BINDING | {"spec": BINDING["spec"] | {"validationActions": ["Audit"]}}
CREATIONS = without(POLICY, "UPDATE", "CREATE")

CASES = {
    "a policy, and a plugin that requires its token": ((plugin(REQUIRED), POLICY, BINDING), "", []),
    "no policy where the server has them": (
        (plugin(), our_scheduler(), sample.pod("p"), BINDING),
        "v1.34.4",
        ["account_not_limited", "account_not_limited"],
    ),
    "a policy without a binding": ((our_scheduler(), POLICY), "", ["account_not_limited"]),
    "a policy that only audits": ((our_scheduler(), POLICY, AUDITED), "", ["account_not_limited"]),
    "a policy for what is created": (
        (our_scheduler(), CREATIONS, BINDING),
        "",
        ["account_not_limited"],
    ),
    "a policy of another release": (
        (our_scheduler(), without(POLICY, "vgpu-system", "gpu"), BINDING),
        "",
        ["account_not_limited"],
    ),
    "policies that are not known": ((plugin(), our_scheduler()), "v1.34.4", []),
    "a server whose tokens name no node": ((plugin(REQUIRED),), "v1.29.8", ["node_key_absent"]),
    "pods that are not ready with their tokens": (
        (plugin(REQUIRED, desired=2, ready=1), POLICY, BINDING),
        "v1.34.4",
        ["node_token_required"],
    ),
    "the node component of KubeShare": ((HOLDERS_NODE,), "v1.34.4", ["node_token_required"]),
    "a node's reconciler at an old server": ((NODES_OWN,), "v1.28.0", ["node_key_absent"]),
    "a plugin that does not check its token": (
        (plugin(), POLICY, BINDING),
        "v1.34.4",
        ["node_token_unchecked"],
    ),
    "a policy without the rule of nodes": (
        (plugin(), without(POLICY, NODE_KEY, "example.com/x"), BINDING),
        "v1.34.4",
        [],
    ),
}


@pytest.mark.parametrize(("items", "server", "reasons"), CASES.values(), ids=CASES)
def test_what_the_doctor_reports_of_accounts_and_tokens(items, server, reasons):
    facts = facts_of(NODE, *items, server_version=server)
    found = [each for each in cluster_findings(facts) if each.reason in REASONS]
    assert [each.reason.value for each in found] == reasons


def test_a_finding_about_tokens_names_the_key_the_value_and_the_policy():
    items = (NODE, plugin(REQUIRED, ready=0), POLICY, BINDING)
    by_version = {
        version: {
            each.reason: each for each in cluster_findings(facts_of(*items, server_version=version))
        }
        for version in ("v1.29.8", "v1.34.4")
    }
    absent = by_version["v1.29.8"][DoctorReason.NODE_KEY_ABSENT]
    assert absent.severity is Severity.ERROR
    assert "v1.29.8" in absent.evidence[1]
    required = by_version["v1.34.4"][DoctorReason.NODE_TOKEN_REQUIRED]
    assert "0 of 1 pod ready" in required.evidence[0]
    assert "vgpu-accounts" in required.evidence[1]
    for found in (absent, required):
        assert NODE_KEY in " ".join(found.evidence)
        assert f"{OWN_NODE_VALUE}: false" in found.advice
        assert found.about == "DaemonSet vgpu-system/vgpu-device-plugin"
