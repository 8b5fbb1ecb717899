#include "host/strided_products.h"

#include <algorithm>

#include "atomic/products/matmul.h"
#include "graph/index.h"
#include "host/raster_view.h"
#include "operators/op.h"

namespace walle {

namespace {

class TransposeJoin {
 public:
  TransposeJoin(Program& program, const Table& table)
      : program_(program),
        table_(table),
        readers_(program.values.size(), 0),
        last_(program.values.size(), 0),
        producer_(program.values.size(), -1) {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      for (const int input : program.ops[i].inputs) {
        if (input < 0) continue;
        ++readers_[at(input)];
        last_[at(input)] = i;
      }
      producer_[at(program.ops[i].output)] = static_cast<int>(i);
    }
    for (const int output : program.outputs) {
      ++readers_[at(output)];
      last_[at(output)] = program.ops.size();
    }
  }

  void run() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) write_transposed(i);
    for (std::size_t i = 0; i < program_.ops.size(); ++i)
      if (is_product(program_.ops[i])) read_strided(i);
    std::erase_if(program_.ops, [this](const ProgramOp& op) { return op.is_raster() && readers_[at(op.output)] == 0; });
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  bool is_product(const ProgramOp& op) const {
    return !op.is_raster() && op.step == nullptr && op.op->name == "MatMul" &&
           (value(op.output).dtype == DType::f32 || value(op.output).dtype == DType::f64);
  }

  // Makes the raster at `i` the product itself, where it transposes the result of one that nothing else reads: the product of its
  // transposed operands, which new rasters give.
  void write_transposed(std::size_t i) {
    const auto view = view_of(program_, program_.ops[i]);
    if (!view || view->offset != 0 || producer_[at(view->source)] < 0 || readers_[at(view->source)] != 1) return;
    const std::size_t from = at(producer_[at(view->source)]);
    const ProgramOp& product = program_.ops[from];
    if (!is_product(product)) return;
    const Dims &rows = value(product.inputs[0]).shape, &columns = value(product.inputs[1]).shape,
               &shape = value(program_.ops[i].output).shape;
    if (rows.size() != 2 || columns.size() != 2 || shape != Dims{columns[1], rows[0]} || view->strides != Dims{1, columns[1]})
      return;
    swapped_.resize(program_.ops.size(), false);
    swapped_[from] = true;
    ProgramOp& raster = program_.ops[i];
    program_.ops[from].output = raster.output;
    producer_[at(raster.output)] = static_cast<int>(from);
    readers_[at(view->source)] = 0;
    raster.output = view->source;  // removed at the end
  }

  // Makes the step of a product whose operands are views or whose result is transposed.
  void read_strided(std::size_t i) {
    ProgramOp& op = program_.ops[i];
    const bool swaps = i < swapped_.size() && swapped_[i];
    std::vector<Layout> layouts;
    bool any = swaps;
    for (int& input : op.inputs) {
      const ProgramValue& operand = value(input);
      Layout layout{operand.dtype, operand.shape, contiguous_strides(operand.shape), nullptr, false};
      if (const auto view = readable_view(i, input)) {
        --readers_[at(input)];
        ++readers_[at(view->source)];
        last_[at(view->source)] = std::max(last_[at(view->source)], i);
        input = view->source;
        layout.strides = view->strides;
        any = true;
      }
      layouts.push_back(std::move(layout));
    }
    if (!any) return;
    if (swaps) {
      std::swap(op.inputs[0], op.inputs[1]);
      std::swap(layouts[0], layouts[1]);
      for (Layout& layout : layouts) {
        std::swap(layout.shape[0], layout.shape[1]);
        std::swap(layout.strides[0], layout.strides[1]);
      }
    }
    const ProgramValue& result = value(op.output);
    op.step = make_matmul_step(layouts, {result.dtype, result.shape}, table_);
  }

  // Return the view that the operand of a product is, if its source may be read in its place: one of its last two axes has
  // neighbouring elements, and holding the source takes no more memory than the copy.
  std::optional<RasterView> readable_view(std::size_t i, int operand) const {
    if (producer_[at(operand)] < 0) return std::nullopt;
    auto view = view_of(program_, program_.ops[at(producer_[at(operand)])]);
    if (!view || view->offset != 0 || view->strides.size() < 2) return std::nullopt;
    const std::int64_t row = view->strides[view->strides.size() - 2], column = view->strides.back();
    const bool is_held = last_[at(view->source)] >= i || producer_[at(view->source)] < 0;
    if ((row != 1 && column != 1) || std::min(row, column) < 0) return std::nullopt;
    if (!is_held && element_count(value(view->source).shape) > element_count(value(operand).shape)) return std::nullopt;
    return view;
  }

  Program& program_;
  const Table& table_;
  std::vector<int> readers_;       // by value: how many operands and outputs it is
  std::vector<std::size_t> last_;  // by value: the last op that reads it; behind all: an output
  std::vector<int> producer_;      // by value: the op that computes it; -1: none
  std::vector<bool> swapped_;      // by op: a product whose result is to be transposed
};

}  // namespace

void join_transposes(Program& program, const Table& table) { TransposeJoin(program, table).run(); }

}  // namespace walle
