"""Fig. 13: a release that covers a fleet, by a simulation of 22 million devices and by real ones over HTTP."""
