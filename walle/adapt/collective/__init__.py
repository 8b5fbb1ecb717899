"""Collective adaptation: many goals in few passes (§4.3)."""
