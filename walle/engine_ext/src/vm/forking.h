// What becomes of VMs when the process forks. The child has the thread that forked and no other, so that no VM is there: the
// child's report themselves closed, and new ones can be made in it.
#pragma once

namespace walle::vm {

// Once, under the main interpreter's GIL: from now on forks are met.
void watch_forks();

}  // namespace walle::vm
