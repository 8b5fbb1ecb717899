"""Exception handling (§6): reports of outcomes, groups of failures, a verdict on each step."""
