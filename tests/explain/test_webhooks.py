"""Whether HAMi's webhook reaches a pod, by the selectors that the cluster has, and from dumps."""

import json

import pytest
from msgspec import structs

from tests.explain.test_explain_pods import decisive, explanation
from tests.explain.test_refusals import hami, hami_node
from tests.reconciler.samples import pod
from vgpu.kube.disruption import Requirement
from vgpu.kube.installation import AdmissionWebhook
from vgpu.model.objects import Namespace
from vgpucli.explain.read import dumped_webhooks
from vgpucli.explain.webhooks import HAMI_WEBHOOK, WEBHOOK_LABEL, PodWebhooks

IGNORED = Requirement(WEBHOOK_LABEL, "NotIn", frozenset({"ignore"}))
WEBHOOK = AdmissionWebhook(
    "hami-webhook", HAMI_WEBHOOK, of_namespace=(IGNORED,), of_object=(IGNORED,)
)
MISSES = "0/1 nodes are available: 1 Insufficient nvidia.com/gpumem."
TEAM = Requirement("team", "In", frozenset({"a"}))
NAMED = Requirement("kubernetes.io/metadata.name", "NotIn", frozenset({"ml"}))


def explained(webhooks, space, *, labels=None, **fields):
    fields = {"scheduler": "default-scheduler", "unschedulable": MISSES} | fields
    placed = pod("placed", "hami", phase="Running", scheduler="hami-scheduler")
    known = PodWebhooks(webhooks, labels)
    spaces = () if space is None else (Namespace("ml", labels=space),)
    return explanation(
        hami(**fields), hami_node(), placed, namespaces=spaces, webhooks=lambda *_: known
    )


@pytest.mark.parametrize(
    ("webhook", "space", "labels", "text"),
    [
        (WEBHOOK, {WEBHOOK_LABEL: "ignore"}, {}, "its value is ignore"),
        (WEBHOOK, {}, {WEBHOOK_LABEL: "ignore"}, "does not select the pod"),
        (structs.replace(WEBHOOK, of_namespace=(TEAM,)), {}, {}, "team In [a], and the label is"),
        (structs.replace(WEBHOOK, of_object=(TEAM,)), {}, {"team": "b"}, "its value is b"),
        (structs.replace(WEBHOOK, of_namespace=(NAMED,)), None, {}, "does not select Namespace ml"),
    ],
)
def test_the_selector_that_keeps_the_webhook_from_a_pod_is_the_cause(webhook, space, labels, text):
    found = explained((webhook,), space, labels=labels)
    assert decisive(found)[2] == ["wrong_scheduler"]
    assert text in found.conclusion
    assert "MutatingWebhookConfiguration hami-webhook" in found.conclusion


@pytest.mark.parametrize(
    ("webhooks", "space", "labels", "text"),
    [
        (None, {}, None, "MutatingWebhookConfigurations were not read"),
        ((), {}, {}, "no MutatingWebhookConfiguration that was read has HAMi's webhook"),
        ((structs.replace(WEBHOOK, conditions=("gpu",)),), {}, {}, "are not checked: gpu"),
        ((structs.replace(WEBHOOK, of_namespace=(TEAM,)),), None, {}, "Namespace ml was not read"),
    ],
)
def test_what_is_not_known_of_the_webhook_is_shown_and_excludes_nothing(
    webhooks, space, labels, text
):
    found = explained(webhooks, space, labels=labels)
    assert "schedulerName is default-scheduler" in found.conclusion
    assert any(text in each for each in found.decisive.evidence)


def test_a_label_of_the_pod_that_was_not_read_excludes_nothing():
    found = explained((structs.replace(WEBHOOK, of_object=(TEAM,)),), {}, labels=None)
    assert "does not select the pod" not in found.conclusion


def test_a_webhook_is_no_cause_where_the_pod_names_its_scheduler():
    found = explained((WEBHOOK,), {WEBHOOK_LABEL: "ignore"}, scheduler="hami-scheduler")
    assert not any("MutatingWebhook" in text for step in found.steps for text in step.evidence)


CONFIGURATION = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "hami-webhook"},
    "webhooks": [
        {
            "name": HAMI_WEBHOOK,
            "clientConfig": {"url": "https://hami.example"},
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": WEBHOOK_LABEL, "operator": "NotIn", "values": ["ignore"]}
                ]
            },
            "objectSelector": {"matchLabels": {"team": "a"}},
            "matchConditions": [{"name": "gpu", "expression": "true"}],
        }
    ],
}
LABELLED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "waits", "namespace": "ml", "uid": "u", "labels": {"team": "b"}},
}


def test_selectors_and_all_labels_of_the_pod_are_read_from_dumps():
    content = json.dumps({"kind": "List", "items": [CONFIGURATION, LABELLED]}).encode()
    read = dumped_webhooks(("dump",), {"MutatingWebhookConfiguration"}, lambda _: (content, 0.0))
    known = read("ml", "waits")
    assert known.webhooks == (
        AdmissionWebhook(
            "hami-webhook",
            HAMI_WEBHOOK,
            of_namespace=(IGNORED,),
            of_object=(TEAM,),
            conditions=("gpu",),
        ),
    )
    assert known.labels == {"team": "b"}
    assert dumped_webhooks(("dump",), set(), lambda _: (content, 0.0)) is None
