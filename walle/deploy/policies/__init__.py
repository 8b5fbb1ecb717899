"""Policies of deployment (§6): app version, rules over attributes of devices."""
