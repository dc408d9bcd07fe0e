"""GET /metrics: everything is read from the engine at the time of the scrape."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ignisd import __version__
from ignisd.engine.stats import EngineStats
from ignisd.engine.totals import Owner, pool_pages
from ignisd.errors import Draining, ModelSwitching, RequestTimeout, answer_codes
from ignisd.http.counters import HttpCounters
from ignisd.http.families import count, counter, gauge, gauges, histogram, value
from ignisd.http.service import Service, ServicePhase
from ignisd.http.serving import Facts
from ignisd.http.tier_metrics import reuse_totals, tier_gauges

_COMPAT = "vllm:"


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
        yield gauge(
            "build_info", "Always 1; the label tells the version.", "version", {__version__: 1}
        )
        phases = {phase: int(phase is self._service.phase) for phase in ServicePhase}
        yield gauge("phase", "1 for where the daemon stands, 0 for the others.", "phase", phases)
        yield value("load_progress", "Loaded share of the model, 0 to 1.", self._service.progress)
        yield from self._http()
        yield from _loads(self._service)
        engine = self._service.engine
        if engine is not None:
            stats = engine.stats()
            pages = pool_pages(engine.world)
            yield from _occupancy(stats, pages)
            yield from tier_gauges(engine.world, self._service.facts)
            yield _memory(self._service.facts)
            yield from _requests(stats)
            yield from reuse_totals(stats)
            yield from _rounds(stats)
            if self._compat:
                yield from _compatible(self._service.name, stats, pages)
        elif self._service.rested is not None:
            # Without a model there is nothing to measure, but no total falls back to nothing.
            yield from _requests(self._service.rested)
            yield from reuse_totals(self._service.rested)
            yield from _rounds(self._service.rested)

    def _http(self) -> Iterator[Metric]:
        counters = self._counters
        codes = answer_codes()
        yield counter(
            "http_errors",
            "Errors answered, or sent at a stream's end, by code.",
            "code",
            {code: counters.errors[code] for code in codes},
        )
        yield counter(
            "requests_refused",
            "Requests turned away before the engine took them, by the code of the answer.",
            "reason",
            {code: counters.refused[code] for code in codes if code != RequestTimeout.code},
        )
        answers = {reason: counters.answers[reason] for reason in ("stop", "length", "tool_calls")}
        yield counter("answers", "Answers completed, by finish reason.", "reason", answers)
        yield histogram("ttft_seconds", "From arrival to the first token.", counters.ttft_s)
        yield histogram(
            "inter_token_seconds",
            "Mean time between the tokens of an answer.",
            counters.inter_token_s,
        )
        yield histogram(
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
    yield counter("model_loads", "Models that were to be loaded, by outcome.", "outcome", loads)
    yield count("model_load_seconds", "Time that loading took.", tally.load_s)
    unloads = {why: tally.unloads[why] for why in ("switch", "idle")}
    yield counter("model_unloads", "Models unloaded while serving, by reason.", "reason", unloads)
    codes = (ModelSwitching.code, Draining.code)
    cut = {code: tally.cut[code] for code in codes}
    yield counter("requests_cut", "Requests given up by the daemon, by reason.", "reason", cut)
    yield value("requests_awaiting_model", "Requests that wait for a model.", service.num_waiting)


def _compatible(model: str, stats: EngineStats, pages: Mapping[Owner, int]) -> Iterator[Metric]:
    """What is running, what waits, and how full the pool is: the last by its new and old name.

    Pages that only retained state holds count as free there, as they give way at once.
    """
    used = pages[Owner.LIVE] / max(sum(pages.values()), 1)
    values = {
        "num_requests_running": ("Requests running.", stats.num_prefilling + stats.num_decoding),
        "num_requests_waiting": ("Requests waiting.", stats.num_queued),
        "kv_cache_usage_perc": ("Share of the pages in use, 0 to 1.", used),
        "gpu_cache_usage_perc": ("Share of the pages in use, 0 to 1.", used),
    }
    for name, (help_text, amount) in values.items():
        family = GaugeMetricFamily(_COMPAT + name, help_text, labels=["model_name"])
        family.add_metric([model], amount)
        yield family


def _occupancy(stats: EngineStats, pages: Mapping[Owner, int]) -> Iterator[Metric]:
    yield value("engine_alive", "1 while the engine runs.", int(stats.alive))
    yield value(
        "engine_idle_seconds", "Time since the engine last made progress.", stats.idle_ms / 1000
    )
    running = {
        "queued": stats.num_queued,
        "prefilling": stats.num_prefilling,
        "decoding": stats.num_decoding,
        "parked": stats.num_parked,
    }
    yield gauge("requests", "Requests in the engine, by state.", "state", running)
    yield value("queue_limit", "Most requests that may wait.", stats.queue_limit)
    yield value("lanes", "Lanes of the decode batch.", stats.num_lanes)
    yield gauge("pool_pages", "Pages of the KV pool, by who holds them.", "owner", pages)
    used = stats.num_slots - stats.num_slots_free
    slots = {"used": used, "free": stats.num_slots_free}
    yield gauge("retained_slots", "Slots for images.", "owner", slots)


def _memory(facts: Facts) -> Metric:
    return gauges(
        "memory_plan_bytes",
        "What was reserved at load.",
        ("line", "memory"),
        (((line, memory), num_bytes) for line, memory, num_bytes in facts.memory),
    )


def _requests(stats: EngineStats) -> Iterator[Metric]:
    counters = stats.counters
    yield count("requests_submitted", "Requests taken in.", counters.submitted)
    yield counter("requests_finished", "Requests ended, by reason.", "reason", counters.finished)
    yield counter(
        "prompt_tokens",
        "Prompt tokens, by where they came from.",
        "source",
        counters.prompt_tokens,
    )
    yield count("generated_tokens", "Tokens sampled.", counters.generated_tokens)
    yield count("late_tokens", "Tokens sampled for requests that had ended.", counters.late_tokens)


def _rounds(stats: EngineStats) -> Iterator[Metric]:
    counters = stats.counters
    yield count("rounds", "Rounds committed.", counters.rounds)
    yield count("prefill_chunks", "Rounds with a prefill chunk.", counters.prefill_chunks)
    yield count("decode_steps", "Rounds with a decode step.", counters.decode_steps)
    yield count("parks", "Times that a lane began to wait for a page.", counters.parks)
    yield count("holds", "Times that a request waited for its reader.", counters.holds)
    yield count("unplaced", "Requests ended for want of a page.", counters.unplaced)
    parts = {
        "plan": stats.plan_ms / 1000,
        "device": stats.device_ms / 1000,
        "deliver": stats.deliver_ms / 1000,
    }
    yield counter("round_seconds", "Time spent in rounds, by part.", "part", parts)
    yield count(
        "compiles_after_ready", "Programs compiled under traffic; a bug.", stats.late_compiles
    )
