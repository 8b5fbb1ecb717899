// A cache of open graphs: sessions, modules and VMs of one process on one file share its mapped constants and the packed forms of
// them.
#pragma once
#include <memory>
#include <string>

#include "graph/graph.h"

namespace walle {

// Return the graph of a `.walle` file. It is read at the first call, and again after the file has changed (device, inode, size or
// time of change) or the last user has released the graph. Thread-safe. Throws as load_graph does.
std::shared_ptr<const Graph> open_graph(const std::string& path);

}  // namespace walle
