"""Stream processing in a task (§5.1): filter, group, window, aggregate; `ctx`."""
