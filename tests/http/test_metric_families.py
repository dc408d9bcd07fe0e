"""Families of /metrics that are made from more than one source."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from ignisd.engine.stats import Counters
from ignisd.engine.types import Request, SamplingParams, Timings
from ignisd.engine.world import Sequence, with_sequence
from ignisd.http.counters import HttpCounters
from ignisd.http.metrics import Metrics
from ignisd.http.service import Service
from ignisd.http.serving import Facts
from state.chain import chain_of
from state.retention import Marks
from tests.chat.toy import toy_model
from tests.engine.harness import words
from tests.fakes import Script, ScriptedEngine, empty_world


class Half(ScriptedEngine):
    """A quarter of its pages and three of its eight slots are in use."""

    @property
    def world(self):
        """Ten pages are a running request's, one of which a retained state holds as well."""
        world = empty_world()
        pages, retained = world.pages.take(16)
        pages, mine = pages.share(retained[:1]).take(9)
        request = Request(1, "r", chain_of(words(640, 1)), Marks(), SamplingParams(), 8)
        seq = Sequence(request, 8, Timings(0.0), lane=0, table=(*retained[:1], *mine))
        slots = replace(world.slots, owners=(1, 2, 3, *world.slots.owners[3:]))
        return with_sequence(replace(world, pages=pages, slots=slots), seq)

    @world.setter
    def world(self, world):
        """It is always the same."""


def samples(compat: bool = False) -> dict[tuple[str, ...], float]:
    engine = Half(Script(), counters=Counters().add(lost_tokens=70, volatile=2))
    model = toy_model()
    service = Service(model.name)
    memory = (("weights", "device", 1000), ("host slots", "host", 24))
    service.set_ready(engine, model, Facts(page_bytes=10, image_bytes=100, memory=memory))
    text = Metrics(service, HttpCounters(), compat).render().decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_bytes_are_told_by_what_they_are_for():
    found = samples()
    assert found["ignis_tier_bytes", "device", "full", "live"] == 100
    assert found["ignis_tier_bytes", "device", "full", "retained"] == 150
    assert found["ignis_tier_bytes", "device", "free", "full"] == 750
    assert found["ignis_tier_bytes", "device", "linear", "retained"] == 300
    assert found["ignis_tier_bytes", "device", "free", "linear"] == 500
    assert found["ignis_memory_plan_bytes", "device", "weights"] == 1000
    assert found["ignis_memory_plan_bytes", "host", "host slots"] == 24


def test_what_reuse_lost_is_counted():
    found = samples()
    assert found["ignis_lost_match_tokens_total",] == 70
    assert found["ignis_volatile_prompts_total",] == 2


def test_pages_are_told_by_who_holds_them():
    found = samples()
    owners = {owner: found["ignis_pool_pages", owner] for owner in ("live", "retained", "free")}
    assert owners == {"live": 10, "retained": 15, "free": 75}


def test_times_of_the_engine_and_discards_are_there_from_the_start():
    found = samples()
    for name in ("lookup", "capture"):
        assert found[f"ignis_{name}_seconds_count",] == 0
        assert found[f"ignis_{name}_seconds_bucket", "+Inf"] == 0
    for use in ("used", "unused", "stranded"):
        for tier in ("device", "kv_ram", "kv_disk"):
            assert found[("ignis_discards_total", *sorted(("checkpoint", tier, use)))] == 0


def test_names_for_the_tools_of_others_are_there_when_asked_for():
    assert not [key for key in samples() if key[0].startswith("vllm")]
    found = {key: value for key, value in samples(compat=True).items() if key[0].startswith("vllm")}
    assert found == {
        ("vllm:num_requests_running", "toy"): 0,
        ("vllm:num_requests_waiting", "toy"): 0,
        ("vllm:kv_cache_usage_perc", "toy"): 0.1,
        ("vllm:gpu_cache_usage_perc", "toy"): 0.1,
    }
