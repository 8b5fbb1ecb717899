"""Trigger management (§5.1): trie of conditions, timers, queues of tasks, stream engine."""
