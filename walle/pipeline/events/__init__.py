"""Events of a device: logs, mappings, journal, live source."""
