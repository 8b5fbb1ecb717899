"""Garbage collection: what collecting the tests made stays until the end, and is not looked through again and again.

That is some millions of objects in each worker: one full collection takes a third of a second, and tests ask for many.
"""

import gc


def pytest_configure() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
