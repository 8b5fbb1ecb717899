"""Identities of devices in a cloud: enrolment, certificates, session tokens and revocation (docs/adr/0030).

The identity node alone has the keys that make them. Gateways have the public keys and the revoked set.
"""
