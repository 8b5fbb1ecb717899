"""Fig. 12: delay and count of uploads over their size, on an emulated mobile link."""
