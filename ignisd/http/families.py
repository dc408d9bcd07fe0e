"""Metric families of this daemon: one prefix, and a line for each way they are made."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ignisd.engine.histogram import Histogram

PREFIX = "ignis_"

Label = TypeVar("Label", bound=str)
Labels = tuple[str, ...]


def value(name: str, help_text: str, amount: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(PREFIX + name, help_text, value=amount)


def count(name: str, help_text: str, amount: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(PREFIX + name, help_text, value=amount)


def gauge(name: str, help_text: str, label: str, values: Mapping[Label, float]) -> Metric:
    """A gauge for each value of one label."""
    return gauges(name, help_text, (label,), (((key,), amount) for key, amount in values.items()))


def counter(name: str, help_text: str, label: str, values: Mapping[Label, float]) -> Metric:
    """A counter for each value of one label."""
    return counters(name, help_text, (label,), (((key,), amount) for key, amount in values.items()))


def gauges(
    name: str, help_text: str, labels: Labels, values: Iterable[tuple[Iterable[str], float]]
) -> Metric:
    """A gauge for each combination of labels that is given."""
    return _filled(GaugeMetricFamily(PREFIX + name, help_text, labels=labels), values)


def counters(
    name: str, help_text: str, labels: Labels, values: Iterable[tuple[Iterable[str], float]]
) -> Metric:
    """A counter for each combination of labels that is given."""
    return _filled(CounterMetricFamily(PREFIX + name, help_text, labels=labels), values)


def histogram(name: str, help_text: str, observed: Histogram) -> Metric:
    """A histogram without labels."""
    family = HistogramMetricFamily(PREFIX + name, help_text)
    family.add_metric([], buckets=list(observed.buckets()), sum_value=observed.sum)
    return family


def histograms(
    name: str, help_text: str, label: str, observed: Mapping[Label, Histogram]
) -> Metric:
    """A histogram for each value of one label."""
    family = HistogramMetricFamily(PREFIX + name, help_text, labels=[label])
    for key, one in observed.items():
        family.add_metric([str(key)], buckets=list(one.buckets()), sum_value=one.sum)
    return family


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily,
    values: Iterable[tuple[Iterable[str], float]],
) -> Metric:
    for labels, amount in values:
        family.add_metric([str(label) for label in labels], amount)
    return family
