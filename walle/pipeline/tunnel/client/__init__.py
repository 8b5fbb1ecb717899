"""Client of the real-time tunnel (§5.2), on a device."""
