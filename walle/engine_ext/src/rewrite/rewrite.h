// Rewriting: operators that compute the same as several of a model's nodes, put in their place before a graph is planned. The
// file keeps the graph as the model's author wrote it, and so does whoever does not ask for this (training).
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "graph/graph.h"

namespace walle {

class Match;

// What a pass may find at a node of its pattern. A match refuses a node with anything else: an attribute or an operand that is
// not named here, such as an activation or a residual that is attached behind a product's sums, a second output, or (but where
// `shared`) a second reader of its result.
struct Crossing {
  std::string_view op;
  std::string_view attributes;  // separated by spaces
  std::size_t operands;         // the most that it may have
  bool shared = false;
};

// One rewriting: it is tried at each node that fits the first crossing, and reaches others only through the match.
struct Pass {
  std::string_view name;
  std::string_view statement;  // what it does, and what it crosses
  std::span<const Crossing> crossings;
  void (*apply)(Match& match);
};

// All passes, in the order of running.
std::span<const Pass> passes() noexcept;

// Return the graph after all passes, its subgraphs too, or the graph itself where nothing applies. Values keep their numbers; new
// ones come behind them. While any user of the result lives, it is made once. Thread-safe.
std::shared_ptr<const Graph> rewritten(const std::shared_ptr<const Graph>& graph);

// Of rewrite/batch_normalization.cpp and rewrite/quantised.cpp.
void fold_batch_normalization(Match& match);
void fuse_quantised(Match& match);

}  // namespace walle
