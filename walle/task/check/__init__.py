"""Static check of a task: its findings, each with file, line and column, without running the task's code."""

from walle.task.check.check import check_task
from walle.task.check.finding import Finding

__all__ = ["Finding", "check_task"]
