"""Every XID that NVIDIA documents is known once, and everywhere by the same severity."""

import re

import pytest

from deviceplugin.flags import PluginOptions
from deviceplugin.health.rules import APPLICATION_XIDS, HealthRules
from grafana.gpu_alerts import DEVICES
from vgpu.model.xids import TABLE, XIDS, XidSeverity, described, severity_of

EXPR = {alert.name: alert.expr for alert in DEVICES.rules}
PATTERN = re.compile(r'xid(=~|!~)"([^"]*)"')
RESETS = {"RESET_GPU", "RESTART_BM"}
"""Actions of the catalog that take the GPU from all programs."""

NEWER = (46, 92, 109, 110, 137, 140, 143, *range(144, 151), 154)


def firing(xid):
    """The alerts that fire for this XID, by their matchers."""
    found = set()
    for name, expr in EXPR.items():
        if match := PATTERN.search(expr):
            equal = re.fullmatch(match[2], str(xid)) is not None
            if equal == (match[1] == "=~"):
                found.add(name)
    return found


def test_no_number_is_there_twice():
    assert len(XIDS) == len(TABLE)
    assert list(XIDS) == sorted(XIDS)


def test_each_xid_has_the_alert_of_its_severity_and_no_other():
    names = {
        XidSeverity.CRITICAL: {"VgpuXidCritical"},
        XidSeverity.WARNING: {"VgpuXidWarning"},
        XidSeverity.NONE: set(),
        None: {"VgpuXidUnknown"},
    }
    for xid in range(1, 1000):
        assert firing(xid) == names[severity_of(xid)], xid


@pytest.mark.parametrize("xid", NEWER)
def test_the_xids_of_newer_gpus_and_drivers_have_an_alert(xid):
    assert firing(xid) <= {"VgpuXidCritical", "VgpuXidWarning"} != set()


def test_what_the_plugin_ignores_by_default_is_what_nvidias_plugin_ignores_and_never_critical():
    assert {13, 31, 43, 45, 68, 109} == APPLICATION_XIDS
    assert PluginOptions("volcano").health_ignore_xids == "13,31,43,45,68,109"
    for xid in APPLICATION_XIDS:
        assert not HealthRules().counts(xid)
        assert severity_of(xid) is not XidSeverity.CRITICAL


def test_a_critical_xid_needs_a_reset_and_another_one_has_a_reason():
    for row in TABLE:
        workflow = row.action.startswith("WORKFLOW_")
        if row.severity is XidSeverity.CRITICAL:
            assert row.action in RESETS or workflow, row
        elif row.action in RESETS:
            assert row.note, row


def test_people_read_the_name_of_an_xid():
    assert described(79) == "XID 79 (GPU has fallen off the bus)"
    assert described(999) == "XID 999"
