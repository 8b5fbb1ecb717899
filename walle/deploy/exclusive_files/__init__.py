"""Exclusive files of single devices and of groups (§6), sealed to each device."""
