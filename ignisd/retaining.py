"""From `--reuse-retention-interval` to the policy of a model, and what the start says of it."""

import logging

from ignisd import log
from ignisd.errors import ConfigError
from ignisd.settings import Settings
from state.groups import Group, groups_of
from state.retention import RetentionPolicy
from state.spec import StateSpec

_log = logging.getLogger("ignisd.load")

_FLAG = "--reuse-retention-interval"
_SHARE_OF_SLOTS = 4
"""One full context may fill so much of the slots (one part of this many) before the start warns."""


def policy_of(settings: Settings, kept: StateSpec, chunk_tokens: int) -> RetentionPolicy:
    """What is kept of every prompt.

    Args:
        settings: what was asked for.
        kept: the geometry of the model's states.
        chunk_tokens: width of a prefill chunk, which dense retention follows.

    Raises:
        ConfigError: the model has no group for an interval that was given.
    """
    return policy_for(settings, groups_of(kept), chunk_tokens)


def policy_for(settings: Settings, groups: tuple[Group, ...], chunk_tokens: int) -> RetentionPolicy:
    """The same for a model of these groups."""
    intervals = settings.reuse_retention_interval
    try:
        resolved = intervals.resolved(groups, chunk_tokens)
    except ValueError as error:
        raise ConfigError(
            f"{_FLAG} {intervals} does not suit --model {settings.model}: {error}."
        ) from None
    if len({tokens for _, tokens in resolved}) <= 1:
        return RetentionPolicy(resolved[0][1] if resolved else 0)
    inert = frozenset(group.name for group in groups if group.is_inert)
    return RetentionPolicy(by_group=resolved, inert=inert)


def say_groups(
    settings: Settings, kept: StateSpec, policy: RetentionPolicy, max_context: int, num_slots: int
) -> None:
    """Log what each group keeps and takes, and warn where one prompt could fill the slots."""
    own = dict(policy.by_group)
    for group in groups_of(kept):
        interval = None if group.is_dense else own.get(group.name, policy.interval_tokens)
        log.write(
            _log,
            logging.INFO,
            "retained_group",
            group=group.name.value,
            interval_tokens="every page" if interval is None else interval,
            items_per_point=group.items_per_point,
            bytes_per_point=group.bytes_per_point,
        )
    points = len(policy.promised(max_context))
    if settings.reuse_prompt and points * _SHARE_OF_SLOTS > num_slots:
        log.write(
            _log,
            logging.WARNING,
            "retention_interval",
            warning=(
                f"a full context of {max_context} tokens has {points} periodic points "
                f"({_FLAG} {settings.reuse_retention_interval}), more than a quarter of the "
                f"{num_slots} slots: the densest are given up first; raise {_FLAG} or "
                "--reuse-retained-host"
            ),
        )
