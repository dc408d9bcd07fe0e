"""The evaluation through a daemon: what is counted, and one real daemon that resumes a probe."""

import dataclasses

from ignisd.ember import WEIGHTS_DIR, evaluate, probes, served, tokenizer
from ignisd.ember.english import Prose
from ignisd.ember.served import Pass, Said, counted

TOOL_PROBES = probes.tool_probes(3)


def expected_of(probe, tier=None):
    calls = [each["function"] for each in probe.expected.get("tool_calls", ())]
    return Said(
        str(probe.expected["content"]),
        "",
        tuple((each["name"], each["arguments"]) for each in calls),
        tier,
    )


def test_a_pass_counts_right_answers_those_as_cold_and_those_from_its_tier():
    cold = Pass("cold", None, tuple(map(expected_of, TOOL_PROBES)))
    first, second, third = (expected_of(probe, "kv_ram") for probe in TOOL_PROBES)
    wrong = dataclasses.replace(second, content="Hm.")
    higher = dataclasses.replace(third, tier="device")
    count = counted(Pass("from kv_ram", "kv_ram", (first, wrong, higher)), cold, TOOL_PROBES)
    assert (count.num_right, count.num_as_cold, count.num_resumed) == (2, 2, 2)
    whole = counted(cold, cold, TOOL_PROBES)
    assert (whole.num_right, whole.num_as_cold, whole.num_resumed) == (3, 3, None)
    assert "100.0%" in whole.line()


def test_a_wrong_state_ends_the_evaluation_with_a_fault(monkeypatch, capsys):
    cold = Pass("cold", None, tuple(map(expected_of, TOOL_PROBES)))
    restored = [expected_of(probe, "kv_disk") for probe in TOOL_PROBES]
    for spoiled in (False, True):
        if spoiled:
            restored[1] = dataclasses.replace(restored[1], calls=())
        later = Pass("from kv_disk", "kv_disk", tuple(restored))
        monkeypatch.setattr(served, "passes", lambda *_, later=later: iter((cold, later)))
        assert evaluate.print_served(WEIGHTS_DIR, TOOL_PROBES) is not spoiled
    assert capsys.readouterr().out.count("from kv_disk") == 2


def test_a_daemon_resumes_a_probe_and_says_the_same(tmp_path):
    some = evaluate.served_probes(tokenizer.load(), Prose(), 1)
    probe = next(each for each in some if each.tools)
    cache = str(tmp_path / "compiled")
    with served.running(
        tmp_path, "--model-max-context", "2048", "--compile-cache-dir", cache
    ) as url:
        cold = served.asked(url, probe, reuse=False)
        left = served.asked(url, probe)
        again = served.asked(url, probe)
    assert (cold.tier, left.tier, again.tier) == (None, None, "device")
    assert again.same_as(cold)
