"""The compute container (§4): the C++ engine, its Python interfaces, and the task VMs."""
