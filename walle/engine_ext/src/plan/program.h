// A program: a graph for given input shapes, written as atomic operators and rasters (steps 2 and 3 of a session, §4.2).
#pragma once
#include <optional>

#include "graph/graph.h"

namespace walle {

class KernelSet;

struct ProgramValue {
  DType dtype = DType::f32;
  Dims shape;
  Tensor constant;                              // value that does not depend on inputs; undefined otherwise
  int input = -1;                               // number of the graph's input that it is, or -1
  std::shared_ptr<const ScaledWeights> scaled;  // what the constant is computed from: compute_scaled() does that

  bool is_constant() const noexcept { return constant.storage() != nullptr || scaled != nullptr; }
  // Compute the constant where it is not there yet; plans that need it as it is share it.
  void compute_scaled(PackedWeights& weights) {
    if (scaled != nullptr && constant.storage() == nullptr)
      constant = weights.get(scaled->weights, scaled->key, [&] { return multiplied(*scaled); });
  }
};

// The predicted cost of an algorithm with its parameter, as plans show it.
struct AlgorithmCost {
  std::string_view algorithm;
  std::int64_t parameter = 0;
  double us = 0;
};

struct ProgramOp {
  std::string name;           // name of the node that it came from
  const OpDef* op = nullptr;  // atomic, or a composite with a kernel of its own; null: a raster
  std::vector<int> inputs;    // value numbers; a region's source counts in these
  int output = -1;
  std::vector<std::size_t> axes;          // axes of a reduction
  Attributes attributes;                  // attributes of an operator with a kernel of its own shape
  Epilogue epilogue;                      // epilogue of Conv, Linear and MatMul
  ScoreScale score_scale{};               // scale of Softmax
  std::vector<Region> regions;            // regions of a raster
  std::shared_ptr<const Step> step;       // made by search; null: the operator has one algorithm
  std::vector<AlgorithmCost> candidates;  // all that search weighed, the chosen one first
  double predicted_us = 0;                // by the kernels' rates (eq. 3)

  bool is_copy = false;  // a raster that moves its elements, where others like it rename memory

  bool is_raster() const noexcept { return op == nullptr; }
  std::string title() const {  // for messages
    return "node '" + name + "' (" + (is_raster() ? "Raster" : std::string(op->name)) + ")";
  }
};

struct Program {
  std::vector<ProgramValue> values;
  std::vector<ProgramOp> ops;   // sorted in the order of running
  std::vector<int> outputs;     // value numbers
  int rasters_made = 0;         // rasters before merging
  bool differentiated = false;  // gradients are computed: a training step
};

// Thrown where shapes or movements depend on the values of these inputs of the graph: lower again with those given.
class InputsNeeded : public Error {
 public:
  InputsNeeded(std::vector<int> inputs, std::size_t node, const std::string& what)
      : Error(ErrorKind::unsupported, what), inputs_(std::move(inputs)), node_(node) {}
  const std::vector<int>& inputs() const noexcept { return inputs_; }  // positions in the graph's list of inputs
  std::size_t node() const noexcept { return node_; }                  // index of the node that needs them

 private:
  std::vector<int> inputs_;
  std::size_t node_;
};

// Walks the nodes in order: infers shapes, turns transform operators into rasters, takes composites apart, and computes what
// depends on constants alone. `types` are those of the graph's inputs; a defined tensor in `given` (empty, or one for each input)
// makes that input a constant of this program. Throws Error that names the node, InputsNeeded among them.
Program lower(const Graph& graph, std::span<const TensorType> types, std::span<const Tensor> given, const KernelSet& kernels);

// Vertical merging, horizontal merging, and removal of operators whose result is not read.
void merge(Program& program);
// Keeps one of several operators that compute the same from the same values; before anything is fused into them.
void merge_operators(Program& program);
// The removal alone: merging is measured against it.
void remove_unread(Program& program);

// Moves the scale and the mask of attention scores into the softmax after them.
void fuse_softmax(Program& program);
// Replaces arithmetic that is a LayerNormalization or a Gelu by that, where the kernel set has it.
void fuse_chains(Program& program, const KernelSet& kernels);
// Replaces x * sigmoid(x) and similar gates by one operator.
void fuse_gates(Program& program);
// Moves bias, residual, bounds and activations into the epilogue of the convolution or matrix product before them.
void fuse(Program& program);
// Moves operators, such as the updates of parameters, to the earliest place at which their operands exist, where that takes no
// more memory. Those that write outputs of `last`, by output, stay in their order.
void advance(Program& program, const std::vector<bool>& last = {});
// Computes cheap values of the forward pass again for the backward pass, where that frees memory when most is in use.
void recompute(Program& program);
// Return, where the raster is a rename of a stretch of its source's memory, the element of the source at which it begins.
std::optional<std::int64_t> rename_offset(const Program& program, const ProgramOp& op);

}  // namespace walle
