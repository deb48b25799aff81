"""The figures of one engine out of those of its parts."""

from __future__ import annotations

from cluster.batching import BatcherStats
from cluster.blocks import PoolStats
from cluster.stats import EngineStats


def joined(
    batching: BatcherStats, pages: PoolStats, compiled: bool, device_s: float
) -> EngineStats:
    """`device_s`: seconds in forward passes, by the device's own clock."""
    return EngineStats(
        steps=batching.steps,
        running=batching.running,
        waiting=batching.waiting,
        total_pages=pages.total,
        used_pages=pages.used,
        cached_pages=pages.cached,
        free_pages=pages.free,
        host_pages=pages.host,
        pages_saved=pages.saved,
        pages_loaded=pages.loaded,
        folder_pages=pages.folder.pages,
        folder_bytes=pages.folder.used_bytes,
        folder_written=pages.folder.written,
        folder_failed=pages.folder.failed,
        folder_read=pages.folder.read,
        folder_corrupt=pages.folder.corrupt,
        folder_given_up=pages.folder.given_up,
        pauses=batching.pauses,
        preemptions=batching.preemptions,
        tokens_computed=batching.tokens_computed,
        tokens_sampled=batching.tokens_sampled,
        prefix_hit_tokens=batching.prefix_hit_tokens,
        tokens_guessed=batching.tokens_guessed,
        guesses_right=batching.guesses_right,
        compiled=compiled,
        device_s=device_s,
    )
