"""The status page at ``/``: each GPU as a bar of its containers' shares, and the problems.

One self-contained document: no scripts, no external assets, light and dark, narrow and wide.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote

import msgspec

from exporter.allocations import Allocated
from exporter.problems import COLLECTORS, Problem, ProblemSeverity, problems, short_size, who
from exporter.view import ExporterView, GpuRow
from vgpu.ledger import Holding
from vgpu.ledger.container_usage import ShareUsage
from vgpu.ledger.limit_verdict import UNCAPPED, LimitReason, limit_word
from vgpu.model.addresses import SITE
from vgpu.model.documentation import page
from vgpu.model.names import Phase
from vgpu.model.reasons import NO_DRIVER, NO_DRIVER_ADVICE
from vgpu.model.units import count, percent

REFRESH_SECONDS = 5

PAGE = Template(Path(__file__).with_name("statuspage.html").read_text("utf-8"))

Cell = tuple[str, str, str]
"""CSS class, the column's name, and the HTML of a table's cell."""

STATES = {
    True: '<span class="good">works</span>',
    False: '<span class="bad">fails</span>',
    None: '<span class="dim">starts</span>',
}

HUES = (214, 28, 152, 340, 268, 190, 48, 96)


class DeviceShare(msgspec.Struct, frozen=True):
    """A container on one device, as the page shows it.

    ``waiting`` is the ledger's holding where no source on the node reports a limit or a use yet.
    ``limit`` is why its container is limited, or not.
    """

    row: ShareUsage
    colour: str
    waiting: Holding | None = None
    limit: LimitReason | None = None

    @property
    def name(self) -> str:
        """namespace/pod/container."""
        return who(self.row)

    @property
    def state(self) -> str:
        """The phase of a share that waits for its container."""
        if self.waiting is None:
            return ""
        return "reserved" if self.waiting.phase is Phase.ASSUMED else "allocated"


def render(view: ExporterView, now: float, metrics_path: str) -> bytes:
    """The whole page, in UTF-8."""
    found = problems(view)
    return PAGE.substitute(
        refresh=REFRESH_SECONDS,
        node=escape(view.node),
        age=f"{max(0.0, now - view.timestamp):.0f} s ago",
        interval=f"{view.interval:g}",
        version=escape(view.build.get("version", "")),
        metrics=escape(metrics_path),
        problems=problem_list(found),
        gpu_sections="\n".join(gpu_sections(view)) or no_gpu_section(view),
        details=details_section(found),
        collectors=collector_table(view),
    ).encode()


def no_gpu_section(view: ExporterView) -> str:
    """In place of the GPUs, where there is none to show."""
    text = "No data of the GPUs." if view.driver is None else "No GPU answers."
    for row in view.collectors:
        if row.name == "nvml" and row.success is False and NO_DRIVER & row.failures.keys():
            text = f"{NO_DRIVER_ADVICE[0].upper()}{NO_DRIVER_ADVICE[1:]}"
    return f"<section>{text}</section>"


def problem_list(problems_found: list[Problem]) -> str:
    """The problems, or a text that there are none."""
    if not problems_found:
        return '<section><h2>Problems</h2><p class="good">No problem found.</p></section>'
    items = "".join(map(problem_item, problems_found))
    return f"<section><h2>Problems ({len(problems_found)})</h2><ul>{items}</ul></section>"


def problem_item(problem: Problem) -> str:
    """The severity as a word, and the text, which leads to the part of the page with more."""
    severity = ProblemSeverity(problem.severity).name.lower()
    link = f'<a href="#{quote(problem.place)}">{escape(problem.text)}</a>'
    return f'<li class="{severity}"><b>{severity}</b> {link}</li>'


def details_section(problems_found: Iterable[Problem]) -> str:
    """What has a problem and is no GPU: the command that finds the cause, and the documentation."""
    details = dict.fromkeys(problem.detail for problem in problems_found if problem.detail)
    rows: list[list[Cell]] = [
        [
            ("who", "Object", f'<span id="{escape(detail.place)}">{escape(detail.name)}</span>'),
            ("", "Find the cause", f"<code>{escape(detail.command)}</code>"),
            ("", "Documentation", documentation_link(detail.page)),
        ]
        for detail in details
    ]
    head = (("", "Object"), ("", "Find the cause"), ("", "Documentation"))
    return section("Pods and regions", "", table(head, rows), name="details") if rows else ""


def documentation_link(name: str) -> str:
    """A page of the documentation; where it has no address, its file."""
    return (
        f'<a href="{escape(page(name))}">{escape(name)}</a>' if SITE else f"docs/{escape(name)}.md"
    )


def device_shares(view: ExporterView) -> Mapping[str, list[DeviceShare]]:
    """The containers on each device, by name; a container has one colour on all its devices."""
    reported = [(row, None) for row in view.usage.shares]
    rows = sorted([*reported, *waiting_shares(view)], key=lambda pair: who(pair[0]))
    numbers = colour_numbers([row for row, _ in rows])
    by_device: dict[str, list[DeviceShare]] = defaultdict(list)
    limits = {(one.pod.uid, one.container): one.limit_reason for one in view.usage.containers}
    for row, waiting in rows:
        place = row.pod.uid, row.container
        share = DeviceShare(row, hue(numbers[place]), waiting, limits.get(place))
        by_device[row.device].append(share)
    return by_device


def waiting_shares(view: ExporterView) -> Iterator[tuple[ShareUsage, Holding]]:
    """Shares of the ledger of which no source on the node reports a limit or a use yet."""
    reported = {(row.pod.uid, row.container, row.device) for row in view.usage.shares}
    reported |= {(uid, "", device) for uid, _, device in reported}
    for holding in view.allocations.holdings if view.allocations else ():
        pod, device = holding.pod, holding.share.device
        if (pod.uid, holding.container, device) not in reported:
            yield ShareUsage(device, pod, holding.container, holding.scheme), holding


def colour_numbers(rows: Iterable[ShareUsage]) -> Mapping[tuple[str, str], int]:
    """A number for each container (pod UID, name), the lowest that no neighbour on a device has."""
    devices: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        devices[row.pod.uid, row.container].add(row.device)
    taken: dict[str, set[int]] = defaultdict(set)
    numbers = {}
    for container, names in devices.items():
        used = set().union(*(taken[name] for name in names))
        numbers[container] = next(number for number in itertools.count() if number not in used)
        for name in names:
            taken[name].add(numbers[container])
    return numbers


def gpu_sections(view: ExporterView) -> Iterator[str]:
    """A section for each device, with its containers; then containers of lost devices."""
    by_device = dict(device_shares(view))
    allocated = (
        {allocation.device.name: allocation for allocation in view.allocations.devices}
        if view.allocations
        else {}
    )
    for row in view.gpus:
        yield gpu_section(row, by_device.pop(row.gpu.uuid, []), allocated.get(row.gpu.uuid))
    for uuid, shares in by_device.items():
        note = '<span class="dim">known from its containers only</span>'
        yield section(escape(uuid) or "Unknown GPU", note, share_rows(shares, None), name=uuid)


def section(title: str, note: str, *parts: str, name: str) -> str:
    """A box with a heading, to which a link with the fragment ``name`` leads."""
    head = f'<div class="head"><h2>{title}</h2>{note}</div>'
    return f"""<section{f' id="{escape(name)}"' if name else ""}>{head}{"".join(parts)}</section>"""


def gpu_section(row: GpuRow, shares: list[DeviceShare], allocated: Allocated | None) -> str:
    """One device: title, bar, facts, containers."""
    gpu = row.gpu
    title = escape(gpu.info.get("name", "") or gpu.uuid)
    if not row.answers:
        note = '<span class="bad">does not answer</span>'
        return section(title, note, share_rows(shares, None), name=gpu.uuid)
    read = {key[0]: value for key, value in gpu.readings.items() if len(key) == 1}
    total = read.get("memory_total_bytes", 0.0)
    index = f"MIG {escape(gpu.info.get('mig_profile', ''))}" if gpu.parent else f"GPU {gpu.index}"
    fact_spans = "".join(f"<span>{fact}</span>" for fact in facts(row, read, allocated))
    return section(
        f"{index} · {title}",
        f'<span class="dim">{escape(gpu.uuid)}</span>',
        bars(row, shares, total),
        f'<div class="facts">{fact_spans}</div>',
        share_rows(shares, total),
        name=gpu.uuid,
    )


def bars(row: GpuRow, shares: list[DeviceShare], total: float) -> str:
    """Three bars to one scale: the containers' limits, their used and their accounted memory."""
    limits = [piece_of(share, limit_of(share)) for share in shares]
    used = [piece_of(share, share.row.used_bytes) for share in shares]
    used.append(
        (row.use.unattributed_bytes if row.use else 0, "var(--other)", "in no container", "")
    )
    accounted = [
        piece_of(share, share.row.accounted.total if share.row.accounted else None)
        for share in shares
    ]
    scale = max(total, sum(size for size, *_ in limits))
    if not scale:
        return ""
    return (
        bar("limits", limits, scale) + bar("used", used, scale) + bar("accounted", accounted, scale)
    )


def limit_of(share: DeviceShare) -> int | None:
    """The limit; of a share that waits for its container, the memory that will be its limit."""
    return share.waiting.share.memory_bytes if share.waiting else share.row.limit_bytes


def piece_of(share: DeviceShare, size: int | None) -> tuple[int, str, str, str]:
    """A container's piece of a bar: bytes, colour, title and CSS class."""
    return size or 0, share.colour, ", ".join(filter(None, (share.name, share.state))), share.state


def bar(label: str, parts: list[tuple[int, str, str, str]], scale: float) -> str:
    """One bar; its empty part is free memory."""
    pieces = "".join(piece(size / scale, *rest) for size, *rest in parts if size > 0)
    return (
        f'<div class="line"><span>{label}</span>'
        f'<div class="bar" role="img" aria-label="memory {label} by container">{pieces}</div></div>'
    )


def piece(part: float, colour: str, title: str, style: str) -> str:
    """A piece of the bar; ``part`` is its width as a part of the whole."""
    look = f"width:{part:.2%};background:{colour}"
    return f'<i class="{style}" style="{look}" title="{escape(title)}"></i>'


def facts(row: GpuRow, read: dict[str, float], allocated: Allocated | None) -> Iterator[str]:
    """The device's known numbers."""
    if "memory_used_bytes" in read and "memory_total_bytes" in read:
        total = short_size(read["memory_total_bytes"])
        yield f"memory {short_size(read['memory_used_bytes'])} of {total}"
    if allocated is not None:
        memory = known(allocated.memory_bytes)
        cores = percent(allocated.cores_milli)
        yield f"allocated {memory} and {cores} % of the cores in {count(allocated.shares, 'share')}"
    if row.use is not None:
        yield f"of it {short_size(row.use.unattributed_bytes)} in no container"
    if "utilization_ratio" in read:
        yield f"busy {read['utilization_ratio']:.0%}"
    if "temperature_celsius" in read:
        yield f"{read['temperature_celsius']:.0f} °C"
    if "power_usage_watts" in read:
        yield f"{read['power_usage_watts']:.0f} W"


def share_rows(shares: list[DeviceShare], total: float | None) -> str:
    """The containers on one device."""
    if not shares:
        return '<p class="dim">No container holds a share of it.</p>'
    head = (
        ("", "Container"),
        ("", "Scheme"),
        ("n", "Used"),
        ("", ""),
        ("n", "Limit"),
        ("", "LIMIT"),
        ("n", "Accounted"),
        ("n", "SM"),
        ("n", "Processes"),
    )
    return table(head, [share_cells(share, total) for share in shares])


def share_cells(shown: DeviceShare, total: float | None) -> list[Cell]:
    """One container's numbers; a dash is an unknown number."""
    share = shown.row
    used, limit = share.used_bytes, share.limit_bytes
    over = share.is_over_limit
    scale = limit or total or 0
    fill = min(1.0, used / scale) if used and scale else 0.0
    key = f'<span class="key {shown.state}" style="background:{shown.colour}"></span>'
    meter = f'<i class="{"over" if over else ""}" style="width:{fill:.0%}"></i>'
    return [
        ("who", "Container", key + escape(shown.name)),
        ("", "Scheme", escape(share.scheme.value)),
        ("n bad" if over else "n", "Used", known(used)),
        ("", "Used of limit", f'<div class="meter">{meter}</div>'),
        ("n", "Limit", limit_text(shown)),
        ("", "LIMIT", verdict_text(shown.limit)),
        ("n", "Accounted", known(share.accounted.total if share.accounted else None)),
        ("n", "SM", "–" if share.sm_utilization is None else f"{share.sm_utilization:.0%}"),
        ("n", "Processes", "–" if share.processes is None else str(share.processes)),
    ]


def verdict_text(reason: LimitReason | None) -> str:
    """Whether the container is limited; a pointer shows why."""
    if reason is None:
        return "–"
    style = "bad" if reason.state in UNCAPPED else ""
    text = escape(limit_word(reason.state))
    return f'<span class="{style}" title="{escape(reason.explanation)}">{text}</span>'


def limit_text(share: DeviceShare) -> str:
    """The limit, or what is reserved for a container that does not run yet."""
    if share.waiting:
        return f'<span class="dim">{known(limit_of(share))} {share.state}</span>'
    return "unlimited" if share.row.unlimited else known(share.row.limit_bytes)


def collector_table(view: ExporterView) -> str:
    """The health of the collectors."""
    rows: list[list[Cell]] = []
    for row in view.collectors:
        state = STATES[row.success]
        took = "–" if row.duration is None else f"{row.duration * 1000:.1f} ms"
        rows.append(
            [
                ("who", "Collector", escape(row.name)),
                ("", "State", state),
                ("n", "Last pass", took),
                ("n", "Refused", str(sum(row.rejected.values()))),
            ]
        )
    head = (("", "Collector"), ("", "State"), ("n", "Last pass"), ("n", "Refused"))
    return section("Collectors", "", table(head, rows), name=COLLECTORS)


def table(head: Sequence[tuple[str, str]], rows: Iterable[Iterable[Cell]]) -> str:
    """A table; a cell has its column's name for narrow screens, which hide the head."""
    top = "".join(f'<th class="{style}">{text}</th>' for style, text in head)
    cells = (
        "".join(f'<td class="{style}" data-name="{name}">{text}</td>' for style, name, text in row)
        for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def hue(number: int) -> str:
    """The colour of a container's number."""
    return f"hsl({HUES[number % len(HUES)]} 62% {52 - 8 * (number // len(HUES) % 3)}%)"


def known(size: int | None) -> str:
    """Bytes for people, or a dash."""
    return "–" if size is None else short_size(size)
