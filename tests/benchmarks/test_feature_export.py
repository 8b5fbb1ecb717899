"""The benchmark of exports, as it is run, with few features."""

import json
import subprocess
import sys


def test_the_benchmark_exports_what_it_stored_and_says_its_cost() -> None:
    command = [sys.executable, "-m", "benchmarks.feature_export", "--features", "2000", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    assert found["features"] == 2000
    assert found["cpu_s"] > 0
    assert found["rss_mb"] > 0
