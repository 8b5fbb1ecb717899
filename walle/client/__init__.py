"""Clients of a cloud over HTTP, and of MQTT brokers, for commands and programs."""
