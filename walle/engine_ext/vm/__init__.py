"""Task VMs (§4.3): interpreters with their own GIL, their pool, what a task may import, and the sandbox around it."""
