"""Families of /metrics that are made from more than one source."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from ignisd.engine.stats import Counters
from ignisd.http.counters import HttpCounters
from ignisd.http.metrics import Metrics
from ignisd.http.service import Facts, Service
from tests.chat.toy import toy_model
from tests.fakes import Script, ScriptedEngine


class Half(ScriptedEngine):
    """A quarter of its pages and three of its eight slots are in use."""

    def stats(self):
        return replace(super().stats(), num_pages_free=75, num_slots_free=5)


def samples() -> dict[tuple[str, ...], float]:
    engine = Half(Script(), counters=Counters().add(lost_tokens=70, volatile=2))
    model = toy_model()
    service = Service(model.name)
    memory = (("weights", "device", 1000), ("host slots", "host", 24))
    service.set_ready(engine, model, Facts(page_bytes=10, image_bytes=100, memory=memory))
    text = Metrics(service, HttpCounters()).render().decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_bytes_are_told_by_what_they_are_for():
    found = samples()
    assert found["ignis_tier_bytes", "device", "full", "used"] == 250
    assert found["ignis_tier_bytes", "device", "free", "full"] == 750
    assert found["ignis_tier_bytes", "device", "linear", "used"] == 300
    assert found["ignis_tier_bytes", "device", "free", "linear"] == 500
    assert found["ignis_memory_plan_bytes", "device", "weights"] == 1000
    assert found["ignis_memory_plan_bytes", "host", "host slots"] == 24


def test_what_reuse_lost_is_counted():
    found = samples()
    assert found["ignis_lost_match_tokens_total",] == 70
    assert found["ignis_volatile_prompts_total",] == 2
