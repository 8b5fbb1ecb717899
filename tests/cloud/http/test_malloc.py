"""Settings of a server process's memory, each in a process of its own."""

import subprocess
import sys

KEEP = """
import gc
from walle.cloud.http.malloc import keep_what_is_loaded

class Node:
    count = 0
    def __init__(self):
        self.itself = self
    def __del__(self):
        Node.count += 1

Node()
keep_what_is_loaded()
assert Node.count == 1
loaded = gc.get_freeze_count()
walked = len(gc.get_objects())
assert loaded > 10 * walked, (loaded, walked)
Node()
gc.collect()
assert Node.count == 2
"""


def test_a_collection_walks_through_what_came_after_the_start_only() -> None:
    subprocess.run([sys.executable, "-c", KEEP], check=True, timeout=60)
