"""The compute container (§4): the C++ engine, its faces, and the task VMs."""
