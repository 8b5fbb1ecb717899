// A graph as a Python object: built from parts, or opened to read its parts. walle.nn traces functions to graphs, and replays
// models' graphs.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "graph/graph.h"

namespace walle {

struct BoundGraph {
  std::shared_ptr<const Graph> graph;
};

// Returns the graph of a model: a Graph object, a path, a task's file, or the bytes of a file. Throws as load_graph does.
std::shared_ptr<const Graph> load_model(pybind11::handle model);

}  // namespace walle
