"""The sharded map against a dict."""

from hypothesis import given
from hypothesis import strategies as st

from state.shards import NUM_SHARDS, ShardMap

KEYS = st.sampled_from([-3, 0, 1, 2, NUM_SHARDS, NUM_SHARDS + 1, 2 * NUM_SHARDS, 10**9])


@given(st.lists(st.tuples(KEYS, st.none() | st.integers())))
def test_is_a_dict_and_leaves_earlier_values_alone(changes: list[tuple[int, int | None]]) -> None:
    held: ShardMap[int] = ShardMap()
    plain: dict[int, int] = {}
    history: list[tuple[ShardMap[int], dict[int, int]]] = []
    for key, value in changes:
        history.append((held, plain))
        if value is not None:
            held, plain = held.put(key, value), plain | {key: value}
        elif key in plain:
            held, plain = held.drop(key), {k: v for k, v in plain.items() if k != key}
    for sharded, expected in (*history, (held, plain)):
        assert dict(sharded.items()) == expected
        assert sorted(sharded.values()) == sorted(expected.values())
        assert len(sharded) == len(expected)
        for key in range(-3, 8):
            assert sharded.get(key) == expected.get(key)
            assert (key in sharded) == (key in expected)
