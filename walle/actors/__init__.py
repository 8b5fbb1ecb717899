"""Thin Ray shells around devices and cloud services. Nothing below this package imports Ray."""
