"""The page for people at ``/``: each card as a bar of who holds what, and what is wrong.

One self-contained document: no scripts, no external assets, light and dark, narrow and wide.
"""

from collections.abc import Iterable, Iterator
from html import escape
from string import Template

from exporter.problems import Problem, Severity, problems, share_name, size
from exporter.view import GpuRow, ShareRow, View

REFRESH_SECONDS = 5

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="$refresh">
<title>vgpu · $node</title>
<style>
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b1f24;--dim:#5b6470;--line:#d8dde3;
--bar:#e7eaee;--used:#2f6fde;--other:#9aa4b1;--bad:#c62828;--warn:#9a6700;--good:#1a7f37}
@media(prefers-color-scheme:dark){:root{--bg:#12161b;--card:#1b2128;--ink:#e6e9ed;--dim:#9aa4b1;
--line:#323b45;--bar:#2a323b;--used:#5b93f5;--other:#66707d;--bad:#ff7b72;--warn:#e3b341;--good:#56d364}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.45 system-ui,sans-serif}main{max-width:1080px;margin:0 auto;padding:16px}
h1{font-size:20px;margin:0}h2{font-size:16px;margin:0}header,section{margin-bottom:16px}
header{display:flex;flex-wrap:wrap;gap:4px 16px;align-items:baseline}.dim{color:var(--dim)}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px}
.head{display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline;margin-bottom:8px}
.bar{display:flex;height:26px;background:var(--bar);border-radius:5px;overflow:hidden}
.bar i{display:block;min-width:2px;border-right:1px solid var(--card)}.bar .stranger{background:var(--other)}
.facts{display:flex;flex-wrap:wrap;gap:2px 16px;margin-top:6px;font-size:13px;color:var(--dim)}
table{width:100%;border-collapse:collapse;margin-top:10px;font-size:14px}
th{text-align:left;font-weight:600;color:var(--dim);font-size:12px}
th,td{padding:5px 8px 5px 0;border-top:1px solid var(--line);vertical-align:top}thead th{border-top:0}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.meter{position:relative;height:8px;min-width:90px;background:var(--bar);border-radius:4px;margin-top:7px;overflow:hidden}
.meter i{position:absolute;inset:0 auto 0 0;background:var(--used)}.meter i.over{background:var(--bad)}
ul{margin:8px 0 0;padding:0;list-style:none}li{padding:4px 0 4px 12px;border-left:4px solid var(--line);
margin-top:4px;overflow-wrap:anywhere}
li.error{border-color:var(--bad)}li.warning{border-color:var(--warn)}.bad{color:var(--bad);font-weight:600}
.good{color:var(--good)}a{color:inherit}
@media(max-width:640px){thead{display:none}tr{display:block;border-top:1px solid var(--line);padding:8px 0}
td{display:flex;justify-content:space-between;gap:12px;border:0;padding:2px 0}td.n{text-align:right}
td::before{content:attr(data-name);color:var(--dim)}td.who{font-weight:600}td.who::before{content:none}
.meter{flex:1}}
</style></head><body><main>
<header><h1>vgpu exporter</h1><span>node <b>$node</b></span><span class="dim">sampled $age, every
$interval s</span><span class="dim">version $version · <a href="$metrics">metrics</a></span></header>
$problems
$cards
$collectors
</main></body></html>
""")

HUES = (214, 28, 152, 340, 268, 190, 48, 96)


def render(view: View, now: float, metrics_path: str) -> bytes:
    """The whole page, UTF-8."""
    return PAGE.substitute(
        refresh=REFRESH_SECONDS,
        node=escape(view.node),
        age=f"{max(0.0, now - view.timestamp):.0f} s ago",
        interval=f"{view.interval:g}",
        version=escape(view.build.get("version", "")),
        metrics=escape(metrics_path),
        problems=problem_list(problems(view)),
        cards="\n".join(cards(view)) or '<section>No card answers.</section>',
        collectors=collector_table(view),
    ).encode()


def problem_list(found: list[Problem]) -> str:
    """What is wrong, or that nothing is."""
    if not found:
        return '<section><h2>What is wrong</h2><p class="good">Nothing that we can see.</p></section>'
    items = "".join(
        f'<li class="{Severity(p.severity).name.lower()}">{escape(p.text)}</li>' for p in found
    )
    return f"<section><h2>What is wrong ({len(found)})</h2><ul>{items}</ul></section>"


def cards(view: View) -> Iterator[str]:
    """A section for each device, with its containers; then containers without a device."""
    by_device: dict[str, list[ShareRow]] = {}
    for share in view.attribution.shares:
        by_device.setdefault(share.device, []).append(share)
    for row in view.attribution.gpus:
        shares = sorted(by_device.pop(row.gpu.uuid, ()), key=share_name)
        yield card(row, shares)
    for uuid, shares in by_device.items():
        rows = share_rows(sorted(shares, key=share_name), None)
        yield f"<section><div class=head><h2>{escape(uuid)}</h2><span class=dim>known from its containers only</span></div>{rows}</section>"


def card(row: GpuRow, shares: list[ShareRow]) -> str:
    """One device: title, bar, facts, containers."""
    gpu = row.gpu
    title = escape(gpu.info.get("name", "") or gpu.uuid)
    if not row.answers:
        return f'<section><div class=head><h2>{title}</h2><span class=bad>does not answer</span></div></section>'
    read = {key[0]: value for key, value in gpu.readings.items() if len(key) == 1}
    total = read.get("memory_total_bytes", 0.0)
    index = f"MIG {escape(gpu.info.get('mig_profile', ''))}" if gpu.parent else f"GPU {gpu.index}"
    return (
        f"<section><div class=head><h2>{index} · {title}</h2>"
        f'<span class=dim>{escape(gpu.uuid)}</span></div>{bar(row, shares, total)}'
        f"<div class=facts>{''.join(f'<span>{fact}</span>' for fact in facts(row, read))}</div>"
        f"{share_rows(shares, total)}</section>"
    )


def bar(row: GpuRow, shares: list[ShareRow], total: float) -> str:
    """Memory in use by container, then what belongs to nobody, then what is free."""
    if not total:
        return ""
    parts = []
    for position, share in enumerate(shares):
        used = share.used_bytes or 0
        if used:
            tip = escape(f"{share_name(share)}: {size(used)}", quote=True)
            parts.append(f'<i style="width:{used / total:.2%};background:{hue(position)}" title="{tip}"></i>')
    stranger = row.unattributed_bytes or 0
    if stranger > 0:
        parts.append(f'<i class=stranger style="width:{stranger / total:.2%}" title="no container: {size(stranger)}"></i>')
    return f'<div class=bar role=img aria-label="memory in use by container">{"".join(parts)}</div>'


def facts(row: GpuRow, read: dict[str, float]) -> Iterator[str]:
    """The device's numbers, those that it has."""
    if "memory_used_bytes" in read and "memory_total_bytes" in read:
        yield f"memory {size(read['memory_used_bytes'])} of {size(read['memory_total_bytes'])}"
    if row.unattributed_bytes is not None:
        yield f"of it {size(row.unattributed_bytes)} in no container"
    if "utilization_ratio" in read:
        yield f"busy {read['utilization_ratio']:.0%}"
    if "temperature_celsius" in read:
        yield f"{read['temperature_celsius']:.0f} °C"
    if "power_usage_watts" in read:
        yield f"{read['power_usage_watts']:.0f} W"


COLUMNS = ("Container", "Scheme", "Used", "", "Limit", "Accounted", "SM", "Processes")


def share_rows(shares: list[ShareRow], total: float | None) -> str:
    """The containers on one device."""
    if not shares:
        return "<p class=dim>No container holds a share of it.</p>"
    head = "".join(f"<th{' class=n' if i > 1 and c else ''}>{c}</th>" for i, c in enumerate(COLUMNS))
    body = "".join(share_row(share, position, total) for position, share in enumerate(shares))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def share_row(share: ShareRow, position: int, total: float | None) -> str:
    """One container's numbers; a dash is what is not known."""
    used, limit = share.used_bytes, share.limit_bytes
    over = bool(used and limit and used > limit)
    scale = limit or total or 0
    fill = min(1.0, used / scale) if used and scale else 0.0
    cells: Iterable[tuple[str, str, str]] = (
        ("who", "Container", f'<span class=key style="background:{hue(position)}"></span>{escape(share_name(share))}'),
        ("", "Scheme", escape(share.scheme.value)),
        ("n bad" if over else "n", "Used", known(used)),
        ("", "Used of limit", f'<div class=meter><i class="{"over" if over else ""}" style="width:{fill:.0%}"></i></div>'),
        ("n", "Limit", "unlimited" if share.unlimited else known(limit)),
        ("n", "Accounted", known(share.accounted.total if share.accounted else None)),
        ("n", "SM", "–" if share.sm_utilization is None else f"{share.sm_utilization:.0%}"),
        ("n", "Processes", "–" if share.processes is None else str(share.processes)),
    )
    return "<tr>" + "".join(f'<td class="{c}" data-name="{n}">{v}</td>' for c, n, v in cells) + "</tr>"


def collector_table(view: View) -> str:
    """The health of the collectors, quietly at the end."""
    rows = "".join(
        f'<tr><td class=who data-name="Collector">{escape(row.name)}</td>'
        f'<td data-name="State"><span class={"good" if row.success else "bad"}>'
        f"{'works' if row.success else 'fails'}</span></td>"
        f'<td class=n data-name="Last pass">{"–" if row.duration is None else f"{row.duration * 1000:.1f} ms"}</td>'
        f'<td class=n data-name="Refused">{sum(row.rejected.values())}</td></tr>'
        for row in view.collectors
    )
    return (
        "<section><h2>Collectors</h2><table><thead><tr><th>Collector</th><th>State</th>"
        f"<th class=n>Last pass</th><th class=n>Refused</th></tr></thead><tbody>{rows}</tbody></table></section>"
    )


def hue(position: int) -> str:
    """A container's colour, the same in bar and table."""
    return f"hsl({HUES[position % len(HUES)]} 62% {52 - 8 * (position // len(HUES) % 3)}%)"


def known(count: int | None) -> str:
    """Bytes for people, or a dash."""
    return "–" if count is None else size(count)
