"""Networks and timing of the livestream app's models."""
