"""Traps in the configurations of kube-scheduler and of Volcano's scheduler; pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scheduler.check_config.kube_scheduler_config import API_VERSION, KIND
from scheduler.check_config.traps import ConfigTrap, config_findings
from vgpu.io.yaml_documents import NotYamlError, yaml_document
from vgpu.model.reasons import SourceError
from vgpucli.doctor.components import NVIDIA, VOLCANOS, ComponentRole
from vgpucli.doctor.facts import ClusterFacts, SchedulerText
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, Severity, finding

_CHECK: Final = DoctorCheck.SCHEDULER

_NO_EXTENDER: Final = frozenset({ConfigTrap.NO_EXTENDER, ConfigTrap.NO_KNOWN_RESOURCE})
"""What is true of the configuration of any scheduler that places no shares of GPUs."""

_LONGEST_DETAIL: Final = 200
"""Maximum length of a decoder's message, in characters."""


def check_schedulers(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The traps of each configuration."""
    has_kube_scheduler = False
    for config in facts.configs:
        kind = DoctorReason.CONFIGURED
        try:
            document = yaml_document(config.text)
        except NotYamlError as error:
            line = f"not YAML, line {error.line}" if error.line else "not YAML"
            yield finding(_CHECK, DoctorReason.CONFIG_UNREADABLE, config.place, line)
            continue
        if not isinstance(document, dict):
            yield finding(_CHECK, DoctorReason.CONFIG_UNREADABLE, config.place, "not an object")
        elif "tiers" in document:
            yield finding(_CHECK, kind, config.place, "Volcano's scheduler")
            yield from _of_volcano(facts, config.place, document)
        else:
            has_kube_scheduler = True
            yield from _of_kube_scheduler(facts, config, document)
    extenders = [
        each
        for each in facts.of_role(ComponentRole.SCHEDULER)
        if {*each.serves} - {VOLCANOS, NVIDIA}
    ]
    if extenders and not has_kube_scheduler:
        yield finding(_CHECK, DoctorReason.CONFIG_UNKNOWN, "", *(each.text for each in extenders))


def _of_kube_scheduler(
    facts: ClusterFacts, config: SchedulerText, document: Mapping[str, Any]
) -> Iterator[DoctorFinding]:
    if (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        detail = f"it is not {API_VERSION} {KIND}"
        yield finding(_CHECK, DoctorReason.CONFIG_UNREADABLE, config.place, detail)
        return
    try:
        traps = config_findings(document, config.place)
    except SourceError as error:
        detail = error.detail[:_LONGEST_DETAIL]
        yield finding(_CHECK, DoctorReason.CONFIG_UNREADABLE, config.place, detail)
        return
    yield finding(_CHECK, DoctorReason.CONFIGURED, config.place, KIND)
    ours = any(each.is_ours for each in facts.of_role(ComponentRole.SCHEDULER))
    for trap in traps:
        if trap.trap in _NO_EXTENDER and not ours:
            severity = Severity.INFO  # the configuration of a scheduler for other pods
        elif trap.is_error:
            severity = Severity.ERROR
        else:
            # An original's own configuration has traps that its users cannot change.
            severity = Severity.WARNING if ours else Severity.INFO
        advice = "vgpu scheduler check-config checks a file; the page scheduler has a whole one"
        yield DoctorFinding(_CHECK, severity, trap.trap, config.place, (trap.field,), advice)


def _of_volcano(
    facts: ClusterFacts, place: str, document: Mapping[str, Any]
) -> Iterator[DoctorFinding]:
    enabled = list(_enabled(document))
    has_gpus = any(VOLCANOS in systems for systems in facts.systems.values())
    if has_gpus and not any(_VGPU in names for names in enabled):
        yield finding(_CHECK, DoctorReason.VGPU_NOT_ENABLED, place)
    for names in enabled:
        if len(names) > 1:
            evidence = f"deviceshare has {' and '.join(sorted(names))}"
            yield finding(_CHECK, DoctorReason.DEVICESHARE_CONFLICT, place, evidence)


_VGPU: Final = "deviceshare.VGPUEnable"

_EXCLUSIVE: Final = (_VGPU, "deviceshare.GPUSharingEnable", "deviceshare.GPUNumberEnable")
"""Arguments of which Volcano's scheduler allows one: with two it ends at once (``klog.Fatal`` in
``pkg/scheduler/plugins/deviceshare/deviceshare.go`` 115 to 120)."""


def _enabled(document: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    """The exclusive arguments that are true, of each plugin deviceshare."""
    tiers = document.get("tiers")
    for tier in tiers if isinstance(tiers, list) else ():
        plugins = tier.get("plugins") if isinstance(tier, dict) else None
        for plugin in plugins if isinstance(plugins, list) else ():
            if not isinstance(plugin, dict) or plugin.get("name") != "deviceshare":
                continue
            arguments = plugin.get("arguments")
            given = arguments if isinstance(arguments, dict) else {}
            yield frozenset(name for name in _EXCLUSIVE if str(given.get(name)).lower() == "true")
