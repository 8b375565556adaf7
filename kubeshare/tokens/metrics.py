"""The metric families of the token daemon as tables."""

from collections.abc import Callable
from typing import Final

from kubeshare.tokens.gpu_tokens import TokenTenantView
from vgpu.metrics.family import Family, FamilyTable, MetricType, Value
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.schemes.kubeshare.gemini_config import SharedPod

GAUGE: Final = MetricType.GAUGE
COUNTER: Final = MetricType.COUNTER
HISTOGRAM: Final = MetricType.HISTOGRAM

_MICRO: Final = 1e-6


def _of_share(read: Callable[[SharedPod], Value]) -> Callable[[TokenTenantView], Value]:
    """A value of a tenant's share; absent while its share is unknown."""
    return lambda view: None if view.entry.share is None else read(view.entry.share)


TENANTS: Final = FamilyTable(
    "Tenants of the token daemon",
    lambda view: view.tenants,
    ("uuid", "namespace", "pod"),
    lambda view: (view.entry.uuid, view.entry.namespace, view.entry.pod),
    (
        Family(
            "vgpu_token_held",
            GAUGE,
            "1 if the pod has the token of the GPU.",
            lambda view: int(view.held),
        ),
        Family(
            "vgpu_token_waiting",
            GAUGE,
            "1 if a process of the pod waits for the token.",
            lambda view: int(view.waiting),
        ),
        Family(
            "vgpu_token_window_share_ratio",
            GAUGE,
            "The part of the last window that counts for the pod: its quotas and its overrun, and"
            " while others wait all the time until its token came back.",
            lambda view: view.window_share,
            unit="ratio",
        ),
        Family(
            "vgpu_token_request_ratio",
            GAUGE,
            "The part of the GPU's time that the pod requests (gpu_request).",
            _of_share(lambda share: share.request_milli / WHOLE_DEVICE_MILLI),
            unit="ratio",
        ),
        Family(
            "vgpu_token_limit_ratio",
            GAUGE,
            "The part of the GPU's time that the pod gets at most (gpu_limit).",
            _of_share(lambda share: share.limit_milli / WHOLE_DEVICE_MILLI),
            unit="ratio",
        ),
        Family(
            "vgpu_token_grants_total",
            COUNTER,
            "Tokens that the pod got.",
            lambda view: view.counts.grants,
        ),
        Family(
            "vgpu_token_granted_seconds_total",
            COUNTER,
            "Quotas of the tokens that the pod got, together.",
            lambda view: view.counts.granted * _MICRO,
            unit="seconds",
        ),
        Family(
            "vgpu_token_used_seconds_total",
            COUNTER,
            "Time for which the pod had the tokens that it has returned, with its overrun, as its"
            " processes report it.",
            lambda view: view.counts.used * _MICRO,
            unit="seconds",
        ),
        Family(
            "vgpu_token_held_seconds_total",
            COUNTER,
            "Time from the grant of each token of the pod until the token came back, or was taken"
            " for another pod; with the token that it has now.",
            lambda view: view.held_time * _MICRO,
            unit="seconds",
        ),
        Family(
            "vgpu_token_quota_seconds",
            GAUGE,
            "Length of the pod's last token; before its first one, that of --quota.",
            lambda view: None if view.quota is None else view.quota * _MICRO,
            unit="seconds",
        ),
        Family(
            "vgpu_token_wait_seconds",
            HISTOGRAM,
            "How long the pod waited for each token that it got.",
            lambda view: {(): view.counts.waits.histogram()},
            unit="seconds",
        ),
        Family(
            "vgpu_token_overrun_seconds_total",
            COUNTER,
            "Time beyond its quotas for which the pod used the GPU, as its processes report it."
            " Gemini 1.1 reports bursts and pauses, which leave a least time.",
            lambda view: view.counts.overused * _MICRO,
            unit="seconds",
        ),
        Family(
            "vgpu_token_unreturned_total",
            COUNTER,
            "Tokens that the pod did not return within quota and grace, while another pod waited.",
            lambda view: view.counts.unreturned,
        ),
        Family(
            "vgpu_token_memory_booked_bytes",
            GAUGE,
            "Memory that processes of the pod have booked.",
            lambda view: view.booked,
            unit="bytes",
        ),
        Family(
            "vgpu_token_memory_unattributed_bytes",
            GAUGE,
            "Part of the booked memory whose connection was closed for want of room; it is released"
            " when the pod has no connection.",
            lambda view: view.unattributed,
            unit="bytes",
        ),
        Family(
            "vgpu_token_memory_limit_bytes",
            GAUGE,
            "Memory that the pod gets at most (gpu_mem).",
            _of_share(lambda share: share.memory_bytes),
            unit="bytes",
        ),
        Family(
            "vgpu_token_memory_refused_total",
            COUNTER,
            "Bookings that were above the pod's limit.",
            lambda view: view.counts.refused,
        ),
        Family(
            "vgpu_token_connections",
            GAUGE,
            "Open connections of the pod.",
            lambda view: view.connections,
        ),
        Family(
            "vgpu_token_messages_total",
            COUNTER,
            "Messages of the pod, by type.",
            lambda view: {(name,): number for name, number in view.counts.messages.items()},
            ("type",),
        ),
        Family(
            "vgpu_token_opened_connections_total",
            COUNTER,
            "Connections that the pod has opened: one for each process of Gemini 1.0, one for each"
            " message of 1.1.",
            lambda view: view.opened,
        ),
        Family(
            "vgpu_token_replaced_connections_total",
            COUNTER,
            "Connections of Gemini 1.1 that were closed for newer ones of the pod. No process used"
            " them any more.",
            lambda view: view.counts.replaced,
        ),
        Family(
            "vgpu_token_repeated_messages_total",
            COUNTER,
            "Messages that came again, which Gemini's hook sends when an answer takes 10 s. Each"
            " message is answered once.",
            lambda view: view.counts.repeated,
        ),
        Family(
            "vgpu_token_other_names_total",
            COUNTER,
            "Messages that name another pod than the one whose port they came through.",
            lambda view: view.counts.other_names,
        ),
        Family(
            "vgpu_token_address_known",
            GAUGE,
            "1 if the addresses of the pod are known, and messages from others are not served.",
            lambda view: int(bool(view.entry.addresses)),
        ),
        Family(
            "vgpu_token_other_addresses_total",
            COUNTER,
            "Messages through the pod's port from another address than the pod's.",
            lambda view: view.counts.other_addresses,
        ),
        Family(
            "vgpu_token_unknown_tenant_total",
            COUNTER,
            "Messages of the pod while its port was known and its share was not.",
            lambda view: view.counts.unknown,
        ),
        Family(
            "vgpu_token_malformed_total",
            COUNTER,
            "Messages of the pod that do not follow the protocol, by what is wrong.",
            lambda view: {(kind.value,): number for kind, number in view.counts.malformed.items()},
            ("kind",),
        ),
    ),
)

DAEMON: Final = FamilyTable(
    "The token daemon",
    lambda view: (view,),
    (),
    lambda _: (),
    (
        Family(
            "vgpu_token_ready",
            GAUGE,
            "1 if the files can be read and each tenant's port is open.",
            lambda view: int(not view.complaint),
        ),
        Family(
            "vgpu_token_config_errors_total",
            COUNTER,
            "Files and ports that could not be used, each counted when its error begins.",
            lambda view: view.config_errors,
        ),
        Family(
            "vgpu_token_refused_connections_total",
            COUNTER,
            "Connections that were closed because their pod had too many.",
            lambda view: view.refused_connections,
        ),
        Family(
            "vgpu_token_end_grants_total",
            COUNTER,
            "Tokens of the minimum length that were granted to all that waited when the daemon"
            " ended and no other one took over: the only time at which several pods of a GPU may"
            " have a token.",
            lambda view: view.end_grants,
        ),
        Family(
            "vgpu_token_loop_lag_seconds",
            HISTOGRAM,
            "By how much timers of the loop were late: ends of tokens and of limits.",
            lambda view: {(): view.lags},
            unit="seconds",
        ),
        Family(
            "vgpu_token_handover_seconds",
            HISTOGRAM,
            "Time from the event at which a token can be granted to the answer that grants it:"
            " a message, the end of a process, or a timer.",
            lambda view: {(): view.token_switches},
            unit="seconds",
        ),
    ),
)

TABLES: Final = (TENANTS, DAEMON)
