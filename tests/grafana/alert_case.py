"""A case of an alert: series with which it fires, or stays quiet.

Series are in promtool's notation, a sample a minute from 0; the labels of the target are added.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """An alert that fires.

    ``sick`` are the series of a cluster where it does, ``well`` those of one where it does not.
    ``onset`` is the minute in which the trouble begins, ``labels`` what the alert carries beside
    those of the target (but not ``lacks``), ``value`` its value as people read it.
    """

    alert: str
    sick: dict[str, str]
    well: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    value: str = ""
    onset: int = 0
    job: str = "vgpu"
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quiet:
    """Series with which an alert stays quiet for half an hour beyond its delay, and why it must."""

    alert: str
    why: str
    series: dict[str, str]
    job: str = "vgpu"


def level(alert, series, sick, well, **rest):
    """An alert on one series that is at one value or at another."""
    return Case(alert, {series: f"{sick}x120"}, {series: f"{well}x120"}, **rest)
