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
      if (is_product(program_.ops[i]) && !read_joined(i)) read_strided(i);
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
    if (!is_product(product) || product.epilogue.bias || product.epilogue.bounded()) return;
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
    for (std::size_t operand = 0; operand < 2; ++operand) {
      const int before = op.inputs[operand];
      layouts.push_back(layout_of(i, operand));
      any = any || op.inputs[operand] != before;
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
    op.step = make_matmul_step(layouts, {result.dtype, result.shape}, table_, op.epilogue);
  }

  // Return the layout of an operand of a product, which reads the source of a view from here on.
  Layout layout_of(std::size_t i, std::size_t operand) {
    int& input = program_.ops[i].inputs[operand];
    const ProgramValue& read = value(input);
    Layout layout{read.dtype, read.shape, contiguous_strides(read.shape), nullptr, false};
    if (const auto view = readable_view(i, input)) {
      reads_instead(i, input, view->source);
      input = view->source;
      layout.strides = view->strides;
    }
    return layout;
  }

  void reads_instead(std::size_t i, int operand, int source) {
    --readers_[at(operand)];
    ++readers_[at(source)];
    last_[at(source)] = std::max(last_[at(source)], i);
  }

  // Makes the step of a product that reads the parts of an operand, which is not made then; false where there are none.
  bool read_joined(std::size_t i) {
    ProgramOp& op = program_.ops[i];
    const bool swaps = i < swapped_.size() && swapped_[i];
    const Dims& shape = value(op.output).shape;
    if (value(op.output).dtype != DType::f32 || !table_.gemm[0].finishes || value(op.inputs[1]).shape.size() != 2 ||
        element_count(shape) < JoinedOperand::kLeastRows * std::max<std::int64_t>(shape.back(), 1))
      return false;
    for (std::size_t operand = 0; operand < 2; ++operand) {
      const auto joined = readable_parts(i, op.inputs[operand]);
      const bool is_second = (operand == 1) != swaps;
      if (!joined || joined->is_transposed != swaps) continue;
      if ((is_second || swaps) && value(op.inputs[0]).shape.size() != 2) continue;
      const std::size_t rest = 1 - operand;
      Layout other = layout_of(i, rest);
      if (swaps) std::swap(other.shape[0], other.shape[1]), std::swap(other.strides[0], other.strides[1]);
      JoinedProduct product{element_count(shape) / shape.back(),
                            shape.back(),
                            other.shape[is_second ? 1 : 0],
                            {},
                            op.epilogue.bias,
                            op.epilogue.low,
                            op.epilogue.high};
      product.joined = {{}, is_second, other.strides[0], other.strides[1]};
      std::vector<int> inputs;
      for (const RasterPart& part : joined->parts) {
        product.joined.parts.push_back({part.columns, part.row, part.offset});
        inputs.push_back(part.source);
        ++readers_[at(part.source)];
        last_[at(part.source)] = std::max(last_[at(part.source)], i);
      }
      --readers_[at(op.inputs[operand])];
      inputs.push_back(op.inputs[rest]);
      inputs.insert(inputs.end(), op.inputs.begin() + 2, op.inputs.end());
      op.inputs = std::move(inputs);
      op.step = make_joined_product_step(std::move(product), table_);
      return true;
    }
    return false;
  }

  // Return the parts of an operand that nothing else reads, if holding them takes no more memory than the operand.
  std::optional<RasterParts> readable_parts(std::size_t i, int operand) const {
    if (producer_[at(operand)] < 0 || readers_[at(operand)] != 1) return std::nullopt;
    auto joined = parts_of(program_, program_.ops[at(producer_[at(operand)])]);
    if (!joined || joined->parts.size() > JoinedOperand::kMostParts) return std::nullopt;
    const std::int64_t rows = element_count(value(operand).shape) / columns_of(*joined);
    for (const RasterPart& part : joined->parts)
      if (!is_held(i, part.source) && element_count(value(part.source).shape) > rows * part.columns) return std::nullopt;
    return joined;
  }

  static std::int64_t columns_of(const RasterParts& joined) {
    std::int64_t columns = 0;
    for (const RasterPart& part : joined.parts) columns += part.columns;
    return columns;
  }

  bool is_held(std::size_t i, int operand) const { return last_[at(operand)] >= i || producer_[at(operand)] < 0; }

  // Return the view that the operand of a product is, if its source may be read in its place: one of its last two axes has
  // neighbouring elements, and holding the source takes no more memory than the copy.
  std::optional<RasterView> readable_view(std::size_t i, int operand) const {
    if (producer_[at(operand)] < 0) return std::nullopt;
    auto view = view_of(program_, program_.ops[at(producer_[at(operand)])]);
    if (!view || view->offset != 0 || view->strides.size() < 2) return std::nullopt;
    const std::int64_t row = view->strides[view->strides.size() - 2], column = view->strides.back();
    if ((row != 1 && column != 1) || std::min(row, column) < 0) return std::nullopt;
    if (!is_held(i, view->source) && element_count(value(view->source).shape) > element_count(value(operand).shape))
      return std::nullopt;
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
