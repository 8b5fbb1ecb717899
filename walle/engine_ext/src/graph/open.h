// Graphs of files that are open already: sessions, modules and VMs of one process on one file share its mapped constants and what
// plans packed out of them.
#pragma once
#include <memory>
#include <string>

#include "graph/graph.h"

namespace walle {

// The graph of a `.walle` file, read at the first asking and again once the file has changed (device, inode, size or time of
// change) or nobody holds the graph any more. Thread-safe. Throws as load_graph does.
std::shared_ptr<const Graph> open_graph(const std::string& path);

}  // namespace walle
