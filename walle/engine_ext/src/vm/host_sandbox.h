// Kernel layers around the VM host's process: what it may read (Landlock), which system calls it may make (seccomp), and what it
// can never get (privileges, core files). A layer that the kernel lacks is left out and reported.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace walle::vm {

// The layers that are active.
struct SandboxLayers {
  bool no_new_privileges = false;
  bool not_dumpable = false;  // no core file, no debugger of the same user
  int landlock = 0;           // the version of the kernel's interface, 0 where it has none
  bool seccomp = false;
};

// Restricts this process, all its threads and its children, permanently. `readable` are the files and folders that may be opened,
// for reading; those that do not exist, or that the kernel's layer cannot name, stay closed. The calls by which programs read,
// write, duplicate and close files are refused for the `reserved` descriptors, which leaves those of sockets. Without Linux there
// is no layer. Memory that only this process writes (RLIMIT_DATA) has `max_memory_bytes` at most, 0 for no limit; descriptors and
// the sizes of memory files are limited too, and capabilities are dropped. `write_only` descriptors cannot be read.
SandboxLayers enter_sandbox(const std::vector<std::string>& readable, const std::vector<int>& reserved,
                            std::uint64_t max_memory_bytes = 0, const std::vector<int>& write_only = {});

}  // namespace walle::vm
