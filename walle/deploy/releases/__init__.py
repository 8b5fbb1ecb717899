"""Release of a version in steps (§6): state machine, journal, service, release table."""
