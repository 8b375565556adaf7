"""Whatever stands in pods and nodes, the rules on ledgers give findings that a person can read."""

from itertools import product

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Edit, Scope, ShimFolder
from reconciler.policy import Mode, Policy
from reconciler.reasons import Rule
from reconciler.rules.conflicts import (
    double_booked,
    lost_device,
    running_without_device,
    unowned_process,
)
from reconciler.rules.drift import gpu_drift, recover
from reconciler.rules.kubeshare import kubeshare
from reconciler.rules.leftovers import orphan_shim_dir
from reconciler.rules.memory_overuse import over_limit
from tests.reconciler.node_samples import SCHEMES, ledger, statement
from tests.reconciler.samples import CODECS_IN_USE, GPU, replace, uuid, with_ledgers
from tests.reconciler.test_rule_any_text import HOSTILE, SNAPSHOTS
from vgpu.ledger.usage import Usage
from vgpu.model.names import Source

RULES = (
    *(double_booked, running_without_device, lost_device, unowned_process),
    *(gpu_drift, recover, over_limit, kubeshare, orphan_shim_dir),
)
POLICIES = (Policy(), Policy(modes=dict.fromkeys(Rule, Mode.APPLY)))


def looks(seen, random):
    """The same from the cluster and from node gpu-1, whose sources say anything of the pods."""
    yield with_ledgers(seen)
    statements = [
        statement(
            pod,
            random.choice(sorted(SCHEMES)),
            gpu=random.choice([None, 0, 1]),
            source=random.choice([*Source]),
            container=random.choice(["main", "", *HOSTILE]),
            where=random.choice(HOSTILE),
        )
        for pod in seen.pods * 2
    ]
    folders = tuple(
        ShimFolder(f"/x/{uid}_{name}", uid, name, (0, 0, 0), random.choice([True, False]))
        for uid, name in zip(HOSTILE, reversed(HOSTILE), strict=True)
    )
    usage = tuple(
        Usage(pod.kubelet_uid, random.choice(["main", *HOSTILE]), uuid("gpu-1", 0), 9 * GPU, (1,))
        for pod in seen.pods
    )
    merged = ledger(seen.pods, statements)
    yield replace(
        seen,
        scope=Scope.NODE,
        ledgers={"gpu-1": merged},
        folders=folders,
        usage=usage,
        live_pods=random.choice([None, frozenset(HOSTILE[:3])]),
    )


@pytest.mark.slow
@for_all(seen=SNAPSHOTS, random=st.randoms(use_true_random=False))
def test_no_text_makes_a_rule_fail_and_every_finding_has_evidence(seen, random):
    """Every rule on every example: an example takes longer to draw than all rules take on it."""
    for look in looks(seen, random):
        cluster_index = ClusterIndex(look, CODECS_IN_USE)
        for rule, policy in product(RULES, POLICIES):
            for finding in rule(cluster_index, policy):
                assert finding.rule == rule.__name__
                assert finding.evidence
                assert all(isinstance(line, str) and line for line in finding.evidence)
                assert finding.key
                if isinstance(finding.action, Edit):
                    pod = next(p for p in look.pods if p.ref.uid == finding.object_ref.uid)
                    before = finding.action.before
                    assert before == {key: pod.annotations.get(key) for key in before}
                    assert before != finding.action.after
