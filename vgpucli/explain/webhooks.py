"""Whether HAMi's webhook, which sets the schedulerName of pods, reaches a pod. Pure.

A webhook is called for the pods whose labels its objectSelector selects, in the Namespaces whose
labels its namespaceSelector selects (Kubernetes,
``apiserver/pkg/admission/plugin/webhook/predicates``). HAMi's chart excludes the value ``ignore``
of :data:`WEBHOOK_LABEL` on both (``charts/hami/templates/scheduler/webhook.yaml``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.disruption import Requirement
from vgpu.kube.installation import AdmissionWebhook
from vgpu.model.objects import Namespace, Pod

HAMI_WEBHOOK: Final = "vgpu.hami.io"
"""The name of HAMi's webhook in its MutatingWebhookConfiguration."""

WEBHOOK_LABEL: Final = "hami.io/webhook"
"""With the value ``ignore`` on a pod or its Namespace, HAMi's webhook skips the pod."""

_IGNORE: Final = "ignore"

_NAME: Final = "kubernetes.io/metadata.name"
"""The label with the name of a Namespace, which the API server sets on each."""

DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")
"""The schedulerName of pods for which no webhook has set one."""


class PodWebhooks(msgspec.Struct, frozen=True):
    """The webhooks of the cluster, and all labels of a pod; None of what was not read."""

    webhooks: tuple[AdmissionWebhook, ...] | None = None
    labels: Mapping[str, str] | None = None


ReadWebhooks = Callable[[str, str], PodWebhooks]
"""Reads the webhooks, and the labels of the pod of a namespace and a name."""


def needs_webhook(pod: Pod) -> bool:
    """Whether a webhook should have set the scheduler of the pod, and has not."""
    return pod.scheduler in DEFAULT_SCHEDULERS


def skipped_by_webhook(pod: Pod, namespace: Namespace | None, known: PodWebhooks) -> str:
    """Why HAMi's webhook skips the pod, as a sentence; "" if nothing shows it.

    Without the webhooks the label of HAMi's chart counts.
    """
    if not needs_webhook(pod):
        return ""
    if known.webhooks is None:
        return _ignored(pod, namespace)
    own = [each for each in known.webhooks if each.name == HAMI_WEBHOOK]
    skipping = [next(_skipped(each, pod, namespace, known.labels), "") for each in own]
    return skipping[0] if skipping and all(skipping) else ""


def webhook_remarks(pod: Pod, namespace: Namespace | None, known: PodWebhooks) -> Iterator[str]:
    """What else there is to know where another scheduler than HAMi's places a pod."""
    if known.webhooks is None:
        yield (
            "MutatingWebhookConfigurations were not read: whether HAMi's webhook selects the pod is"
            " not checked"
        )
        return
    own = [each for each in known.webhooks if each.name == HAMI_WEBHOOK]
    if not own:
        yield (
            f"no MutatingWebhookConfiguration that was read has HAMi's webhook ({HAMI_WEBHOOK}),"
            " which sets the schedulerName"
        )
    if namespace is None and any(label.key != _NAME for each in own for label in each.of_namespace):
        yield (
            f"Namespace {pod.ref.namespace} was not read: the namespaceSelector of HAMi's webhook"
            " is not checked"
        )
    for each in own:
        if each.conditions:
            yield (
                f"MutatingWebhookConfiguration {each.configuration} has matchConditions, which are"
                f" not checked: {', '.join(each.conditions)}"
            )


def _ignored(pod: Pod, namespace: Namespace | None) -> str:
    if pod.labels.get(WEBHOOK_LABEL) == _IGNORE:
        return f"the pod has the label {WEBHOOK_LABEL}={_IGNORE}: HAMi's webhook skips it"
    if namespace is not None and namespace.labels.get(WEBHOOK_LABEL) == _IGNORE:
        return (
            f"Namespace {namespace.name} has the label {WEBHOOK_LABEL}={_IGNORE}: HAMi's webhook"
            " skips its pods"
        )
    return ""


def _skipped(
    webhook: AdmissionWebhook,
    pod: Pod,
    namespace: Namespace | None,
    labels: Mapping[str, str] | None,
) -> Iterator[str]:
    """Why a webhook does not select the pod: a label that is not known excludes nothing."""
    name = pod.ref.namespace
    known = {_NAME: name} if namespace is None else {_NAME: name, **namespace.labels}
    title = f"MutatingWebhookConfiguration {webhook.configuration} (webhook {webhook.name})"
    judged = (each for each in webhook.of_namespace if namespace is not None or each.key == _NAME)
    for missed in _missed(judged, known):
        yield f"{title} does not select Namespace {name}: {missed}"
    own = pod.labels if labels is None else labels
    of_pod = (each for each in webhook.of_object if labels is not None or each.key in own)
    for missed in _missed(of_pod, own):
        yield f"{title} does not select the pod: {missed}"


def _missed(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> Iterator[str]:
    for each in requirements:
        if not each.matches(labels):
            value = labels.get(each.key)
            has = "the label is missing" if value is None else f"its value is {value}"
            yield f"it selects by {each.text}, and {has}"
