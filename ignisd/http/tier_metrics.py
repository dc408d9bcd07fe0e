"""Metrics of retained state and its tiers: totals from the stats, what lies where from the world.

What is counted is kept when a model is unloaded; what is measured is not there without one. Every
label has every value from the start, so that nothing that happens is missed for having been absent.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from ignisd.engine.stats import LOWER_TIERS, Counters, EngineStats
from ignisd.engine.totals import TierTotals, totals_of
from ignisd.engine.types import Tier
from ignisd.engine.world import World
from ignisd.http.families import count, counter, counters, gauge, gauges, histogram, histograms
from ignisd.http.occupancy import interval_of, points_by_group
from ignisd.http.serving import Facts
from state.retained import Kind
from state.tiers.condition import Condition


def reuse_totals(stats: EngineStats) -> Iterator[Metric]:
    """What became of lookups, and of retained states."""
    told = stats.counters
    yield count("lookups", "Admissions that looked for retained state.", told.lookups)
    yield count("queried_tokens", "Prompt tokens of these.", told.queried_tokens)
    yield count(
        "matched_tokens", "Prompt tokens that agreed with retained state.", told.matched_tokens
    )
    yield count(
        "lost_match_tokens", "Those among them that were computed all the same.", told.lost_tokens
    )
    yield count(
        "volatile_prompts",
        "Admissions whose system block differed from the last three of its kind.",
        told.volatile,
    )
    yield counters(
        "hits",
        "Claims and restores, by kind of the state and the tier that it lay in.",
        ("kind", "tier"),
        _hits(told).items(),
    )
    yield counter("misses", "Admissions without either, by reason.", "reason", told.misses)
    yield counter("captured", "States published, by kind.", "kind", told.captured)
    yield counter("captures_skipped", "States not kept, by reason.", "reason", told.skipped)
    yield histogram("lookup_seconds", "Searching for the longest retained state.", stats.lookup_s)
    yield histogram(
        "capture_seconds",
        "From the plan of the round that writes a state until it can be found.",
        stats.capture_s,
    )
    yield histograms(
        "restore_seconds",
        "From admission until a request resumes from what a lower tier had.",
        "tier",
        stats.restore_s,
    )
    yield from _moves(told)
    yield from _files(told)


def tier_gauges(world: World, facts: Facts) -> Iterator[Metric]:
    """What lies in each tier, and whether files are written."""
    tiers = totals_of(world, facts.page_bytes, facts.image_bytes)
    yield gauges(
        "tier_bytes",
        "Bytes in each tier, by what they are for and whose they are; all owners are the ceiling.",
        ("tier", "group", "owner"),
        ((((one.tier, *key)), size) for one in tiers for key, size in one.num_bytes.items()),
    )
    yield gauge(
        "tier_ceiling_bytes", "Most bytes that a tier holds.", "tier", _each(tiers, "ceiling_bytes")
    )
    yield gauge(
        "key_bytes",
        "Host memory that holds the tokens and digests of a tier's states, beside the tier.",
        "tier",
        _each(tiers, "key_bytes"),
    )
    yield gauges(
        "retained_states",
        "Retained states, by kind and tier.",
        ("kind", "tier"),
        (((kind, one.tier), times) for one in tiers for kind, times in one.kinds.items()),
    )
    yield gauges(
        "retained_points",
        "Points that can be resumed from, by the groups of layers that have something there.",
        ("group", "tier"),
        points_by_group(world, tiers).items(),
    )
    yield gauge(
        "retention_interval_tokens",
        "Tokens between two periodic states of a group; 0 is none.",
        "group",
        {
            name: interval
            for name in sorted(world.index.must_hit)
            if (interval := interval_of(world, name)) is not None
        },
    )
    yield gauge("retained_tokens", "Sum of their lengths.", "tier", _each(tiers, "tokens"))
    yield gauge("pinned_states", "Pinned states.", "tier", _each(tiers, "num_pinned"))
    yield gauge(
        "evicted_sequences", "Requests that gave way and wait.", "tier", _each(tiers, "num_live")
    )
    yield gauge("arriving_states", "States on their way.", "tier", _each(tiers, "num_moving"))
    shelf = None if world.tiers is None else world.tiers.shelf
    condition = None if shelf is None else shelf.writer.condition
    yield gauge(
        "disk_writer",
        "1 for whether files of kv_disk are written; all are 0 without it.",
        "condition",
        {one: int(one is condition) for one in Condition},
    )


def _hits(told: Counters) -> Mapping[tuple[Kind, Tier], int]:
    """Every hit by kind and tier; those of the device are what is left of all."""
    found = {(kind, tier): told.restored[tier, kind] for tier in LOWER_TIERS for kind in Kind}
    for kind in Kind:
        below = sum(told.restored[tier, kind] for tier in LOWER_TIERS)
        found[kind, Tier.DEVICE] = told.hits[kind] - below
    return found


def _moves(told: Counters) -> Iterator[Metric]:
    """What went down, what came up, what is gone."""
    down = {(kind, Tier.KV_RAM): times for kind, times in told.demoted.items()}
    down |= {(kind, Tier.KV_DISK): times for kind, times in told.spilled.items()}
    yield counters(
        "demotions", "Retained states sent down, by kind and to where.", ("kind", "to"),
        down.items(),
    )  # fmt: skip
    yield count(
        "demotions_present", "States given up that lay below already.", told.demoted_present
    )
    yield counter("not_demoted", "States that did not go down.", "reason", told.not_demoted)
    yield counters(
        "discards",
        "Retained states that are gone from all tiers, by the last one that had them, kind and "
        "use; stranded, which is a bug, are those with one half gone.",
        ("tier", "kind", "use"),
        told.discarded.items(),
    )
    yield count("flushed_states", "States given up by a flush.", told.flushed)
    yield counter("pins_ended", "Pins that ended by themselves.", "reason", told.pins_ended)
    evicted = {Tier.KV_RAM: told.evictions, Tier.KV_DISK: told.evicted_to_disk}
    yield counter("evictions", "Requests that gave way and went down, by how far.", "to", evicted)
    yield count("evicted_pages", "Pages that went down for them.", told.evicted_pages)
    yield count("resumed", "Evicted requests that went on.", told.resumed)
    yield count("recomputed", "Requests that gave way and were computed anew.", told.recomputed)
    yield count("replayed_tokens", "Tokens sampled once more for these.", told.replayed_tokens)
    yield count("raised_pages", "Pages that came up.", told.raised_pages)


def _files(told: Counters) -> Iterator[Metric]:
    """What was done with files."""
    yield counter(
        "disk_bytes",
        "Bytes of whole files of kv_disk, by what was done.",
        "operation",
        {"write": told.disk_written_bytes, "read": told.disk_read_bytes},
    )
    yield counter(
        "disk_files",
        "Whole files of kv_disk, by what was done.",
        "operation",
        {"write": told.files_written, "read": told.files_read},
    )
    yield counter("disk_failures", "Orders for files that failed.", "operation", told.file_faults)


def _each(tiers: tuple[TierTotals, ...], name: str) -> Mapping[Tier, int]:
    return {one.tier: getattr(one, name) for one in tiers}
