from __future__ import annotations

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from gateway.journal.histogram import bucket_of, highest_of, lowest_of, percentile

VALUES = (
    st.integers(0, 2**62)
    | st.integers(0, 1000)
    | st.builds(lambda e, d: max(0, 2**e + d), st.integers(0, 62), st.integers(-1, 1))
)
MANY = st.lists(VALUES, min_size=1, max_size=200)
SHARES = st.sampled_from((0.0, 0.001, 0.5, 0.95, 0.99, 0.999, 1.0)) | st.floats(0, 1)


@given(VALUES)
def test_a_value_lies_in_its_bucket(value: int) -> None:
    assert lowest_of(bucket_of(value)) <= value <= highest_of(bucket_of(value))


@given(VALUES, VALUES)
def test_a_larger_value_is_in_no_smaller_bucket(one: int, other: int) -> None:
    assert (bucket_of(one) <= bucket_of(other)) or one > other


@given(st.integers(0, 16 * 59))
def test_buckets_leave_nothing_between_them_and_do_not_overlap(bucket: int) -> None:
    assert bucket_of(lowest_of(bucket)) == bucket
    assert bucket_of(highest_of(bucket)) == bucket
    assert bucket_of(highest_of(bucket) + 1) == bucket + 1
    assert lowest_of(bucket + 1) == highest_of(bucket) + 1


@given(VALUES)
def test_a_bucket_is_no_wider_than_a_sixteenth_of_its_values(value: int) -> None:
    bucket = bucket_of(value)
    assert highest_of(bucket) - lowest_of(bucket) <= lowest_of(bucket) / 16


@given(st.integers(0, 31))
def test_small_values_are_exact(value: int) -> None:
    assert lowest_of(bucket_of(value)) == value == highest_of(bucket_of(value))


@given(st.integers(max_value=-1))
def test_what_is_below_nothing_counts_as_nothing(value: int) -> None:
    assert bucket_of(value) == 0


def test_buckets_by_hand() -> None:
    assert [bucket_of(value) for value in (0, 1, 15, 16, 31, 32, 33, 34, 63, 64, 1000, 2**62)] == [
        0, 1, 15, 16, 31, 32, 32, 33, 47, 48, 111, 944,
    ]  # fmt: skip


@given(st.lists(MANY, max_size=5), SHARES)
def test_counts_added_up_say_what_the_whole_says(parts: list[list[int]], share: float) -> None:
    added: Counter[int] = Counter()
    for part in parts:
        added += Counter(map(bucket_of, part))
    whole = Counter(bucket_of(value) for part in parts for value in part)
    assert added == whole
    assert percentile(added, share) == percentile(whole, share)


@given(MANY, SHARES)
def test_a_percentile_is_never_too_small_and_too_large_by_less_than_a_bucket(values: list[int], share: float) -> None:
    rank = max(1, ceil(share * len(values)))
    true = sorted(values)[rank - 1]
    found = percentile(Counter(map(bucket_of, values)), share)
    assert found is not None
    assert true <= found <= true + (highest_of(bucket_of(true)) - lowest_of(bucket_of(true)))


@given(MANY, SHARES, st.sampled_from((0.5, 2.0, 4.0)))
def test_weights_that_all_values_share_change_little(values: list[int], share: float, weight: float) -> None:
    counts = Counter(map(bucket_of, values))
    found = percentile({bucket: n * weight for bucket, n in counts.items()}, share)
    assert found in {highest_of(bucket) for bucket in counts}


def test_no_values_have_no_percentile() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({3: 0.0}, 0.5) is None
