"""Pages of token daemons: their own metrics over made-up pods."""

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.frames import MalformedMessage
from kubeshare.tokens.gpu_tokens import TokenTenantView
from kubeshare.tokens.server import ServerView
from kubeshare.tokens.takeover_record import TenantCounts
from kubeshare.tokens.tally import no_lags, no_token_switches, no_waits
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.gemini_config import SharedPod

JOB = "vgpu-tokens"

UUID = "GPU-held"
SECOND = 1_000_000


def tenant(pod: str, request: int, limit: int, **fields: object) -> TokenTenantView:
    """A pod of a GPU; the share is in thousandths."""
    share = SharedPod("research", pod, request, limit, 4 * GIB)
    values = {
        "held": False,
        "waiting": True,
        "window_share": 0.5,
        "booked": 3 * GIB,
        "connections": 2,
        "quota": SECOND // 10,
        "counts": TenantCounts(),
        **fields,
    }
    return TokenTenantView(entry=TenantEntry(UUID, "research", pod, 50051, share), **values)


def counts(t: float, overused: float = 0.0, **fields: int) -> TenantCounts:
    """What a pod has got that has half of the time, in tokens of 100 ms, and waits as long."""
    grants = int(t * 5) + 1
    granted = grants * SECOND // 10
    used = int(granted * (1 + overused))
    waits = no_waits()
    waits.add(SECOND // 10, grants)
    return TenantCounts(grants, granted, used, int(granted * overused), waits=waits, **fields)


def server(*tenants: TokenTenantView, complaint: str = "", timers: int = 0, late: int = 0):
    """A daemon with these pods; its timers were so late, in microseconds."""
    lags, token_switches = no_lags(), no_token_switches()
    lags.add(late, timers)
    token_switches.add(120, sum(each.counts.grants for each in tenants))
    return ServerView(
        complaint=complaint,
        tenants=tenants,
        config_errors=int(bool(complaint)),
        refused_connections=0,
        lags=lags.histogram(),
        token_switches=token_switches.histogram(),
    )


def sharing(t: float) -> ServerView:
    """Two pods that share a GPU."""
    count = int(t) + 1
    return server(
        tenant("train-0", 500, 800, held=True, waiting=False, counts=counts(t)),
        tenant("notebook-0", 200, 1000, counts=counts(t, 0.02, unreturned=count // 10)),
        timers=count * 10,
        late=400,
    )


def starved(t: float) -> ServerView:
    """A pod waits, since another one overruns; a file is broken, and timers are late."""
    count = int(t) + 1
    greedy = counts(t, 0.5, unreturned=count)
    greedy.malformed[MalformedMessage.NUMBER] = count
    return server(
        tenant("train-0", 500, 800, window_share=0.1, counts=counts(t, refused=count)),
        tenant("greedy-0", 200, 1000, held=True, waiting=False, window_share=0.9, counts=greedy),
        complaint="/kubeshare/scheduler/config/GPU-held: line 2",
        timers=count * 10,
        late=20_000,
    )
