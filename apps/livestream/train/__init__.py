"""Training of the app's own small models; a development tool that the demo does not need."""
