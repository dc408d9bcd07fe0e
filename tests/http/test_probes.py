import dataclasses

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ignisd.engine.histogram import Histogram
from ignisd.engine.types import FinishReason, Reuse, Timings
from ignisd.http.counters import HttpCounters
from ignisd.http.metrics import Metrics
from ignisd.http.options import HttpOptions
from ignisd.http.reply import Outcome, Usage
from ignisd.http.service import Service
from tests.fakes import Script
from tests.http.rig import CHAT, ask, make_rig


async def get(rig, path):
    async with rig.client() as client:
        return await client.get(path)


async def test_health_follows_the_daemon():
    rig = make_rig(ready=False)
    rig.service.report_progress(0.5)
    response = await get(rig, "/health")
    assert (response.status_code, response.json()) == (503, {"status": "loading", "progress": 0.5})
    rig.service.set_ready(rig.engine, rig.model)
    response = await get(rig, "/health")
    assert (response.status_code, response.json()) == (
        200,
        {"status": "ready", "exact": True, "degraded": [], "notes": []},
    )
    rig.service.set_draining()
    assert (await get(rig, "/health")).json() == {"status": "draining"}
    rig.service.set_failed("x")
    response = await get(rig, "/health")
    assert (response.status_code, response.json()) == (503, {"status": "failed"})


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({}, 200, "ready"),
        ({"alive": False}, 503, "failed"),
        ({"draining": True}, 503, "draining"),
        ({"busy": True, "idle_ms": 5001.0}, 503, "stalled"),
        ({"busy": True, "idle_ms": 4999.0}, 200, "ready"),
        ({"busy": False, "idle_ms": 1e9}, 200, "ready"),
    ],
)
async def test_health_looks_at_the_engine(monkeypatch, changes, status, word):
    rig = make_rig(options=HttpOptions(stall_s=5.0))
    stats = dataclasses.replace(rig.engine.stats(), **changes)
    monkeypatch.setattr(rig.engine, "stats", lambda: stats)
    response = await get(rig, "/health")
    assert (response.status_code, response.json()["status"]) == (status, word)


async def test_models_are_listed_and_described():
    rig = make_rig()
    listed = (await get(rig, "/v1/models")).json()
    assert listed["object"] == "list"
    (entry,) = listed["data"]
    assert entry["id"] == "toy"
    assert entry["object"] == "model"
    assert entry["status"] == "serving"
    assert entry["max_model_len"] == entry["meta"]["n_ctx"] == rig.model.context_tokens
    assert (await get(rig, "/v1/models/toy")).json() == entry
    assert (await get(rig, "/v1/models/other")).status_code == 404


async def test_a_model_that_loads_is_listed_as_such():
    rig = make_rig(ready=False)
    (entry,) = (await get(rig, "/v1/models")).json()["data"]
    assert (entry["id"], entry["status"], entry["max_model_len"]) == ("toy", "loading", None)


async def scrape(rig):
    response = await get(rig, "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return samples_of(response.text)


def samples_of(text):
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("ignis_"), family.name
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return samples


async def test_metrics_count_what_happened():
    rig = make_rig(Script([104, 105]))
    async with rig.client() as client:
        await client.post(CHAT, json=ask())
        await client.post(CHAT, json=ask(temperature=5))
        await client.get("/nowhere")
    samples = await scrape(rig)
    assert samples["ignis_requests_submitted_total",] == 1
    assert samples["ignis_requests_finished_total", ("reason", "stop")] == 1
    assert samples["ignis_http_errors_total", ("code", "invalid_value")] == 1
    assert samples["ignis_http_errors_total", ("code", "route_not_found")] == 1
    assert samples["ignis_answers_total", ("reason", "stop")] == 1
    assert samples["ignis_phase", ("phase", "ready")] == 1
    assert samples["ignis_pool_pages", ("owner", "free")] == 100


async def test_what_never_happened_is_exported_as_zero():
    samples = await scrape(make_rig())
    for reason in FinishReason:
        assert samples["ignis_requests_finished_total", ("reason", reason.value)] == 0
    assert samples["ignis_misses_total", ("reason", "corrupt")] == 0
    assert samples["ignis_hits_total", ("kind", "checkpoint"), ("tier", "kv_disk")] == 0
    assert samples["ignis_prompt_tokens_total", ("source", "device")] == 0


async def test_metrics_are_there_while_loading():
    samples = await scrape(make_rig(ready=False))
    assert samples["ignis_phase", ("phase", "loading")] == 1
    assert samples["ignis_phase", ("phase", "ready")] == 0


def test_times_go_into_histograms():
    counters = HttpCounters()
    timings = Timings(0.0, 1.0, 200.0, 600.0, 100.0, 700.0)
    counters.observe(Outcome("stop", Usage(9, 0, 5, 0), Reuse(), timings))
    service = Service("toy")
    text = Metrics(service, counters).render().decode()
    samples = samples_of(text)
    assert samples["ignis_ttft_seconds_bucket", ("le", "0.1")] == 0
    assert samples["ignis_ttft_seconds_bucket", ("le", "0.25")] == 1
    assert samples["ignis_ttft_seconds_sum",] == pytest.approx(0.2)
    assert samples["ignis_inter_token_seconds_sum",] == pytest.approx(0.1)
    assert samples["ignis_request_duration_seconds_count",] == 1
    assert samples["ignis_request_duration_seconds_sum",] == pytest.approx(0.7)


def test_a_histogram_counts_up_to_and_including_its_bounds():
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert list(histogram.buckets()) == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.sum == 12.0
