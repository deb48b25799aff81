"""Tables of a sitting: medians with their spread, and how ours compares pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from benchmarks.records import Record

Measure = Callable[[Record], float | None]

OURS = "shoal"


def _figure(name: str) -> Measure:
    return lambda record: getattr(record.figures, name)


def _usage(name: str, scale: float = 1.0) -> Measure:
    return lambda record: scale * getattr(record.usage, name) if record.usage else None


COMPARED: dict[str, Measure] = {
    "output tok/s": _figure("output_tok_s"),
    "requests/s": _figure("request_s"),
    "TTFT mean ms": _figure("ttft_mean"),
    "TTFT p50 ms": _figure("ttft_p50"),
    "TTFT p99 ms": _figure("ttft_p99"),
    "TPOT mean ms": _figure("tpot_mean"),
    "TPOT p99 ms": _figure("tpot_p99"),
    "ITL p99 ms": _figure("itl_p99"),
    "peak RSS GiB": _usage("peak_rss_gib"),
    "peak PSS GiB": _usage("peak_pss_gib"),
}
"""Of these a ratio says something."""

EXPLAINING: dict[str, Measure] = {
    "engine CPU s": _usage("engine_cpu_s"),
    "framework CPU s": _usage("framework_cpu_s"),
    "framework share %": _usage("framework_share", 100),
    "client CPU s": _usage("client_cpu_s"),
    "others CPU s": _usage("others_cpu_s"),
    "steal s": _usage("steal_s"),
    "failed": _figure("failed"),
    "short": _figure("short"),
}

PROCESSES = 8
"""So many are named, the busiest first."""

MEASURES = COMPARED | EXPLAINING


def tables(records: Sequence[Record]) -> str:
    """One Markdown table a workload: a row a measure, a column a server, then ours over theirs.

    A ratio is taken within each pair of runs that had the same prompts, one after the other on the
    same machine; shown are the median of these ratios and their spread.
    """
    workloads = dict.fromkeys(record.workload for record in records)
    return "\n\n".join(_table(name, records) for name in workloads)


def _table(workload: str, records: Sequence[Record]) -> str:
    ran = [record for record in records if record.workload == workload]
    servers = list(dict.fromkeys(record.server for record in ran))
    peers = [server for server in servers if server != OURS] if OURS in servers else []
    head = [workload, *servers, *(f"{OURS} / {peer}" for peer in peers)]
    rows = [_row(name, ran, servers, peers) for name in MEASURES]
    lines = [markdown_row(*cells) for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join([*lines, *(_by_process(server, ran) for server in servers)])


def _by_process(server: str, ran: Sequence[Record]) -> str:
    """One line: the CPU seconds of a run by process, the largest medians first."""
    usages = [one.usage for one in ran if one.server == server and one.usage]
    names = {name for usage in usages for name in usage.cpu_s_by_name}
    taken = {name: median(u.cpu_s_by_name.get(name, 0.0) for u in usages) for name in names}
    top = sorted(taken.items(), key=lambda item: -item[1])[:PROCESSES]
    return f"\n{server}, CPU s: {', '.join(f'{name} {number(cpu)}' for name, cpu in top) or '-'}"


def _row(
    name: str, ran: Sequence[Record], servers: Iterable[str], peers: Iterable[str]
) -> list[str]:
    measure = MEASURES[name]
    values = ([measure(record) for record in ran if record.server == one] for one in servers)
    ratios = (_ratios(ran, peer, measure) if name in COMPARED else () for peer in peers)
    return [name, *map(spread, values), *map(spread, ratios)]


def _ratios(ran: Sequence[Record], peer: str, measure: Measure) -> Iterator[float]:
    theirs = {record.run: measure(record) for record in ran if record.server == peer}
    for record in ran:
        ours, other = measure(record), theirs.get(record.run)
        if record.server == OURS and ours is not None and other:
            yield ours / other


def spread(values: Iterable[float | None]) -> str:
    """`median (least - most)`, the median alone where there is one value, a dash where none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    if len(known) == 1:
        return number(known[0])
    return f"{number(median(known))} ({number(known[0])} - {number(known[-1])})"


def number(value: float) -> str:
    """Three figures that count."""
    return f"{value:.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def markdown_row(*cells: str) -> str:
    """One of a table. The second has to be of `---`."""
    return f"| {' | '.join(cells)} |"
