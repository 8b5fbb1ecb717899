"""Task VMs (§4.3): interpreters with their own GIL, their pool, the imports that a task may make, and the sandbox."""
