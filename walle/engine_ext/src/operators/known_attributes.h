// The attributes that each operator knows.
#pragma once
#include <string_view>
#include <vector>

namespace walle {

// Return the names of the attributes that an operator knows, those that are subgraphs included; empty for an operator without
// attributes. A node with any other attribute is refused when its model is loaded (graph/load.cpp). A known attribute may have no
// effect: on the path that a node takes (`beta` of a Gemm without C), or at all (`nodes_hitrates`); a value of it that the engine
// does not support is refused where it is read.
std::vector<std::string_view> known_attributes(std::string_view op);

}  // namespace walle
