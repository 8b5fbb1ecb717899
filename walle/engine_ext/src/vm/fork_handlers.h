// Fork handlers of VMs. The child has only the thread that forked, so it has no VMs: those of the parent report that they are
// closed, and new ones can be created.
#pragma once

namespace walle::vm {

// Installs the handlers, once; under the main interpreter's GIL.
void install_fork_handlers();

}  // namespace walle::vm
