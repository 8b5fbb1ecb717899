"""Load tests with locust, against real processes; each fails on a wrong result, not only on a slow one."""
