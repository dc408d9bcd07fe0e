"""When to come back, as clients are told while a model loads."""

from ignisd.load_times import LoadTimes


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def made() -> tuple[LoadTimes, Clock]:
    clock = Clock()
    return LoadTimes(clock), clock


def load(times: LoadTimes, clock: Clock, name: str, seconds: float) -> None:
    times.begin(name)
    clock.now_s += seconds
    assert times.end(loaded=True) == seconds


def test_the_first_load_of_all_goes_by_its_progress() -> None:
    times, clock = made()
    assert times.left_s("a", 0.0) == 5
    times.begin("a")
    assert times.left_s("a", 0.0) == 5
    clock.now_s += 30.0
    assert times.left_s("a", 0.75) == 10
    assert times.left_s("a", 1.0) == 1


def test_a_model_takes_what_it_took_the_last_time() -> None:
    times, clock = made()
    load(times, clock, "a", 7.25)
    load(times, clock, "b", 60.0)
    assert times.left_s("a", 0.0) == 8
    times.begin("a")
    clock.now_s += 5.0
    assert times.left_s("a", 0.1) == 3
    clock.now_s += 5.0
    assert times.left_s("a", 0.5) == 10, "beyond that, by its progress"


def test_a_new_model_takes_as_long_as_the_slowest() -> None:
    times, clock = made()
    load(times, clock, "a", 7.0)
    load(times, clock, "b", 60.0)
    load(times, clock, "a", 9.0)
    assert times.left_s("c", 0.0) == 60
    assert times.left_s("a", 0.0) == 9


def test_a_load_that_failed_says_nothing_of_the_next() -> None:
    times, clock = made()
    load(times, clock, "a", 7.0)
    times.begin("a")
    clock.now_s += 0.5
    times.end(loaded=False)
    assert times.left_s("a", 0.0) == 7


def test_nobody_is_told_to_wait_for_an_hour_or_not_at_all() -> None:
    times, clock = made()
    load(times, clock, "a", 7200.0)
    assert times.left_s("a", 0.0) == 600
    load(times, clock, "a", 0.0)
    assert times.left_s("a", 0.0) == 1
