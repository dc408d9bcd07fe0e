"""GET /metrics: everything is read from the engine at the time of the scrape."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ignisd import __version__
from ignisd.engine.histogram import Histogram
from ignisd.engine.stats import EngineStats, Use
from ignisd.engine.types import Tier
from ignisd.engine.world import World
from ignisd.errors import Draining, ModelSwitching, RequestTimeout, answer_codes
from ignisd.http.counters import HttpCounters
from ignisd.http.service import Service, ServicePhase
from ignisd.http.serving import Facts

_PREFIX = "ignis_"
_COMPAT = "vllm:"

Label = TypeVar("Label", bound=str)


class ServiceCollector(Collector):
    """Turns the engine's stats and HTTP's counters into metric families.

    `compat` adds the names that routers and dashboards made for vLLM read.
    """

    def __init__(self, service: Service, counters: HttpCounters, compat: bool = False) -> None:
        self._service = service
        self._counters = counters
        self._compat = compat

    def collect(self) -> Iterator[Metric]:
        """All families; those of the engine only once there is one."""
        yield _gauge(
            "build_info", "Always 1; the label tells the version.", "version", {__version__: 1}
        )
        phases = {phase: int(phase is self._service.phase) for phase in ServicePhase}
        yield _gauge("phase", "1 for where the daemon stands, 0 for the others.", "phase", phases)
        yield _value("load_progress", "Loaded share of the model, 0 to 1.", self._service.progress)
        yield from self._http()
        yield from _loads(self._service)
        engine = self._service.engine
        if engine is not None:
            stats = engine.stats()
            pages = _pages(engine.world)
            yield from _occupancy(stats, pages)
            yield from _memory(stats, pages, self._service.facts)
            yield from _requests(stats)
            yield from _reuse(stats)
            yield from _rounds(stats)
            if self._compat:
                yield from _compatible(self._service.name, stats, pages)
        elif self._service.rested is not None:
            # Without a model there is nothing to measure, but no total falls back to nothing.
            yield from _requests(self._service.rested)
            yield from _reuse(self._service.rested)
            yield from _rounds(self._service.rested)

    def _http(self) -> Iterator[Metric]:
        counters = self._counters
        codes = answer_codes()
        yield _counter(
            "http_errors",
            "Errors answered, or sent at a stream's end, by code.",
            "code",
            {code: counters.errors[code] for code in codes},
        )
        yield _counter(
            "requests_refused",
            "Requests turned away before the engine took them, by the code of the answer.",
            "reason",
            {code: counters.refused[code] for code in codes if code != RequestTimeout.code},
        )
        answers = {reason: counters.answers[reason] for reason in ("stop", "length", "tool_calls")}
        yield _counter("answers", "Answers completed, by finish reason.", "reason", answers)
        yield _histogram("ttft_seconds", "From arrival to the first token.", counters.ttft_s)
        yield _histogram(
            "inter_token_seconds",
            "Mean time between the tokens of an answer.",
            counters.inter_token_s,
        )
        yield _histogram(
            "request_duration_seconds", "From arrival to the end of an answer.", counters.duration_s
        )


class Metrics:
    """Renders the exposition format from a registry of its own."""

    def __init__(self, service: Service, counters: HttpCounters, compat: bool = False) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ServiceCollector(service, counters, compat))

    def render(self) -> bytes:
        """The text of one scrape."""
        return generate_latest(self._registry)


def _loads(service: Service) -> Iterator[Metric]:
    """What became of models."""
    tally = service.tally
    loads = {how: tally.loads[how] for how in ("loaded", "failed", "refused")}
    yield _counter("model_loads", "Models that were to be loaded, by outcome.", "outcome", loads)
    yield _count("model_load_seconds", "Time that loading took.", tally.load_s)
    unloads = {why: tally.unloads[why] for why in ("switch", "idle")}
    yield _counter("model_unloads", "Models unloaded while serving, by reason.", "reason", unloads)
    codes = (ModelSwitching.code, Draining.code)
    cut = {code: tally.cut[code] for code in codes}
    yield _counter("requests_cut", "Requests given up by the daemon, by reason.", "reason", cut)
    yield _value("requests_awaiting_model", "Requests that wait for a model.", service.num_waiting)


def _pages(world: World) -> Mapping[str, int]:
    """Pages of the pool by who holds them; a page that both hold is the running request's."""
    live = len({page for seq in world.running for page in seq.table})
    free = world.pages.num_free
    return {"live": live, "retained": world.pages.num_pages - 1 - free - live, "free": free}


def _compatible(model: str, stats: EngineStats, pages: Mapping[str, int]) -> Iterator[Metric]:
    """What is running, what waits, and how full the pool is: the last by its new and old name.

    Pages that only retained state holds count as free there, as they give way at once.
    """
    used = pages["live"] / max(sum(pages.values()), 1)
    values = {
        "num_requests_running": ("Requests running.", stats.num_prefilling + stats.num_decoding),
        "num_requests_waiting": ("Requests waiting.", stats.num_queued),
        "kv_cache_usage_perc": ("Share of the pages in use, 0 to 1.", used),
        "gpu_cache_usage_perc": ("Share of the pages in use, 0 to 1.", used),
    }
    for name, (help_text, value) in values.items():
        family = GaugeMetricFamily(_COMPAT + name, help_text, labels=["model_name"])
        family.add_metric([model], value)
        yield family


def _occupancy(stats: EngineStats, pages: Mapping[str, int]) -> Iterator[Metric]:
    yield _value("engine_alive", "1 while the engine runs.", int(stats.alive))
    yield _value(
        "engine_idle_seconds", "Time since the engine last made progress.", stats.idle_ms / 1000
    )
    running = {
        "queued": stats.num_queued,
        "prefilling": stats.num_prefilling,
        "decoding": stats.num_decoding,
        "parked": stats.num_parked,
    }
    yield _gauge("requests", "Requests in the engine, by state.", "state", running)
    yield _value("queue_limit", "Most requests that may wait.", stats.queue_limit)
    yield _value("lanes", "Lanes of the decode batch.", stats.num_lanes)
    yield _gauge("pool_pages", "Pages of the KV pool, by who holds them.", "owner", pages)
    used = stats.num_slots - stats.num_slots_free
    slots = {"used": used, "free": stats.num_slots_free}
    yield _gauge("retained_slots", "Slots for images.", "owner", slots)


def _memory(stats: EngineStats, pages: Mapping[str, int], facts: Facts) -> Iterator[Metric]:
    images = facts.image_bytes
    tier = GaugeMetricFamily(
        _PREFIX + "tier_bytes",
        "Bytes for retained and running state, by what they are for; all owners are the ceiling.",
        labels=["tier", "group", "owner"],
    )
    for owner, count in pages.items():
        tier.add_metric([Tier.DEVICE, "full", owner], count * facts.page_bytes)
    used = stats.num_slots - stats.num_slots_free
    tier.add_metric([Tier.DEVICE, "linear", "retained"], used * images)
    tier.add_metric([Tier.DEVICE, "linear", "free"], stats.num_slots_free * images)
    yield tier
    plan = GaugeMetricFamily(
        _PREFIX + "memory_plan_bytes", "What was reserved at load.", labels=["line", "memory"]
    )
    for line, memory, num_bytes in facts.memory:
        plan.add_metric([line, memory], num_bytes)
    yield plan


def _requests(stats: EngineStats) -> Iterator[Metric]:
    counters = stats.counters
    yield _count("requests_submitted", "Requests taken in.", counters.submitted)
    yield _counter("requests_finished", "Requests ended, by reason.", "reason", counters.finished)
    prompt = {"computed": counters.computed_tokens, "device": counters.device_tokens}
    yield _counter("prompt_tokens", "Prompt tokens, by where they came from.", "source", prompt)
    yield _count("generated_tokens", "Tokens sampled.", counters.generated_tokens)
    yield _count("late_tokens", "Tokens sampled for requests that had ended.", counters.late_tokens)


def _reuse(stats: EngineStats) -> Iterator[Metric]:
    counters = stats.counters
    yield _count("lookups", "Admissions that looked for retained state.", counters.lookups)
    yield _count("queried_tokens", "Prompt tokens of these.", counters.queried_tokens)
    yield _count(
        "matched_tokens", "Prompt tokens that agreed with retained state.", counters.matched_tokens
    )
    yield _count(
        "lost_match_tokens",
        "Those among them that were computed all the same.",
        counters.lost_tokens,
    )
    yield _count(
        "volatile_prompts",
        "Admissions whose system block differed from the last three of its kind.",
        counters.volatile,
    )
    yield _counter("hits", "Claims, by kind of the state claimed.", "kind", counters.hits)
    yield _counter("misses", "Admissions without a claim, by reason.", "reason", counters.misses)
    yield _counter("captured", "States published, by kind.", "kind", counters.captured)
    yield _counter("captures_skipped", "States not kept, by reason.", "reason", counters.skipped)
    discards = dict.fromkeys(Use, 0)
    for (_, _, use), times in counters.discarded.items():
        discards[use] += times
    yield _counter(
        "discards",
        "Retained states given up; stranded, which is a bug, are those with one half gone.",
        "use",
        discards,
    )
    yield _gauge("retained_states", "Retained states, by kind.", "kind", stats.retained)
    yield _value("retained_tokens", "Sum of their lengths.", stats.retained_tokens)
    yield _histogram("lookup_seconds", "Searching for the longest retained state.", stats.lookup_s)
    yield _histogram(
        "capture_seconds",
        "From the plan of the round that writes a state until it can be found.",
        stats.capture_s,
    )


def _rounds(stats: EngineStats) -> Iterator[Metric]:
    counters = stats.counters
    yield _count("rounds", "Rounds committed.", counters.rounds)
    yield _count("prefill_chunks", "Rounds with a prefill chunk.", counters.prefill_chunks)
    yield _count("decode_steps", "Rounds with a decode step.", counters.decode_steps)
    yield _count("parks", "Times that a lane began to wait for a page.", counters.parks)
    yield _count("holds", "Times that a request waited for its reader.", counters.holds)
    yield _count("unplaced", "Requests ended for want of a page.", counters.unplaced)
    parts = {
        "plan": stats.plan_ms / 1000,
        "device": stats.device_ms / 1000,
        "deliver": stats.deliver_ms / 1000,
    }
    yield _counter("round_seconds", "Time spent in rounds, by part.", "part", parts)
    yield _count(
        "compiles_after_ready", "Programs compiled under traffic; a bug.", stats.late_compiles
    )


def _value(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, help_text, value=value)


def _count(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, help_text, value=value)


def _gauge(name: str, help_text: str, label: str, values: Mapping[Label, float]) -> Metric:
    return _labelled(GaugeMetricFamily(_PREFIX + name, help_text, labels=[label]), values.items())


def _counter(name: str, help_text: str, label: str, values: Mapping[Label, float]) -> Metric:
    return _labelled(CounterMetricFamily(_PREFIX + name, help_text, labels=[label]), values.items())


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float]]
) -> Metric:
    for label, value in values:
        family.add_metric([str(label)], value)
    return family


def _histogram(name: str, help_text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(_PREFIX + name, help_text)
    family.add_metric([], buckets=list(histogram.buckets()), sum_value=histogram.sum)
    return family
