"""Garbage collection in tests: it works, and leaves out what was there before the first of them."""

import gc
import weakref


class _Node:
    other: "_Node | None" = None


def test_garbage_of_a_test_is_collected_and_the_collected_tests_are_left_out() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    first, second = _Node(), _Node()
    first.other, second.other = second, first
    gone = weakref.ref(first)
    del first, second
    gc.collect()
    assert gone() is None
