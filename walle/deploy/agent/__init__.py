"""The device side of deployment (§6): the agent, pulls, installed versions and their outcomes."""
