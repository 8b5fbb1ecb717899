"""Interface and rules of the stores of uploads: consumer groups, retention, quota, readers."""
