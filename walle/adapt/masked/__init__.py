"""A network whose channels are weighed one by one, so that one plan trains it at every width (§4.2)."""
