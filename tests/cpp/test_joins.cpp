// Joins of training programs beside those of elementwise operators: products that read and write transposed matrices where they
// lie, or their parts, biases in products, gates in the gradients of a normalisation, and normalisations in depthwise
// convolutions. Against the program as it was, on every instruction set of this CPU and by one and three threads, which give the
// same bits.
#include <cmath>
#include <cstring>

#include "atomic/products/lane_depthwise.h"
#include "atomic/products/matmul.h"
#include "host/gated_channels.h"
#include "host/normalised_inputs.h"
#include "host/product_epilogues.h"
#include "host/strided_products.h"
#include "programs.h"

using namespace walle;
using namespace programs;

namespace {

using Join = void (*)(Program&, const Table&);

int count_of(const Program& program, std::string_view name) {
  return static_cast<int>(std::count_if(program.ops.begin(), program.ops.end(), [&](const ProgramOp& op) {
    return op.is_raster() ? name == "Raster" : op.op->name == name;
  }));
}

// Return the program after the join, having compared its outputs with those before.
Program joined(const Program& before, Join join, std::mt19937_64& random, const Table& table) {
  Program after = before;
  join(after, table);
  const std::vector<ValueBytes> inputs = random_inputs(before, random);
  const std::vector<ValueBytes> expected = run(before, table, 1, inputs);
  std::vector<ValueBytes> first;
  for (const int threads : {1, 3}) {
    const std::vector<ValueBytes> found = run(after, table, threads, inputs);
    if (threads == 1) first = found;
    for (const int output : before.outputs) {
      CHECK(found[at(output)] == first[at(output)]);
      const ProgramValue& value = before.values[at(output)];
      const auto number = [&](const ValueBytes& bytes, std::int64_t i) {
        return value.dtype == DType::f64 ? reinterpret_cast<const double*>(bytes.data())[i]
                                         : double{reinterpret_cast<const float*>(bytes.data())[i]};
      };
      CHECK(found[at(output)].size() == expected[at(output)].size());
      double largest = 0, apart = 0;
      for (std::int64_t i = 0; i < element_count(value.shape); ++i) {
        largest = std::max(largest, std::fabs(number(expected[at(output)], i)));
        apart = std::max(apart, std::fabs(number(expected[at(output)], i) - number(found[at(output)], i)));
      }
      // A join may exchange rows and columns: those of few rows are not rounded to bfloat16.
      const double error = table.bfloat16 == nullptr ? 1e-5 : 1e-2;
      CHECK(apart <= (value.dtype == DType::f64 ? 1e-13 : error) * largest);
    }
  }
  return after;
}

int add_transpose(Program& program, int source) {
  const Dims shape = program.values[at(source)].shape;
  return add_view(program, source, {shape[1], shape[0]}, {1, shape[1]}, 0);
}

// x w' and the gradients of both, as of a linear layer; the gradient of w is a transposed result.
void linear_layers(std::mt19937_64& random, const Table& table) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [rows, in, out] : {std::array<std::int64_t, 3>{3, 5, 7}, {8, 130, 90}, {40, 19, 33}, {170, 64, 41}}) {
      Program program;
      const int x = add_input(program, dtype, {rows, in}), w = add_input(program, dtype, {out, in}),
                g = add_input(program, dtype, {rows, out});
      const int turned = add_transpose(program, w), y = add_op(program, "MatMul", {x, turned}),
                of_x = add_op(program, "MatMul", {g, add_transpose(program, turned)}),
                of_turned = add_op(program, "MatMul", {add_transpose(program, x), g}), of_w = add_transpose(program, of_turned);
      program.outputs = {y, of_x, of_w};
      const Program after = joined(program, &join_transposes, random, table);
      CHECK(count_of(after, "MatMul") == 3);
      CHECK(count_of(after, "Raster") <= 1);  // the transpose of a transpose, which a plan has merged
    }
}

// Heads of an attention: rows that are parts of longer ones.
void batches(std::mt19937_64& random, const Table& table) {
  const std::int64_t batch = 2, places = 19, heads = 3, width = 8, all = heads * width;
  Program program;
  const int q = add_input(program, DType::f32, {batch, places, all}), k = add_input(program, DType::f32, {batch, places, all});
  const int queries = add_view(program, q, {batch, heads, places, width}, {places * all, width, all, 1}, 0),
            keys = add_view(program, k, {batch, heads, width, places}, {places * all, width, 1, all}, 0);
  const int scores = add_op(program, "MatMul", {queries, keys});
  program.outputs = {scores};
  CHECK(count_of(joined(program, &join_transposes, random, table), "Raster") == 0);
}

// A linear layer of several values side by side, and the gradient of its weights.
void joined_operands(std::mt19937_64& random, const Table& table) {
  if (!table.gemm[0].finishes) return;
  for (const auto& [rows, out, widths] : {std::tuple<std::int64_t, std::int64_t, std::vector<std::int64_t>>{3, 5, {1, 1}},
                                          {40, 19, {32, 32, 32}},
                                          {1100, 24, {7, 1, 90, 16}},
                                          {5000, 3, {3, 40}},
                                          {170, 64, {300, 500}}}) {
    Program program;
    std::vector<int> parts;
    std::int64_t all = 0;
    for (const std::int64_t width : widths) {
      parts.push_back(add_input(program, DType::f32, {rows, width}));
      all += width;
    }
    const int w = add_input(program, DType::f32, {out, all}), g = add_input(program, DType::f32, {rows, out});
    const int y = add_op(program, "MatMul", {add_joined(program, parts), add_transpose(program, w)}),
              of_w = add_transpose(program, add_op(program, "MatMul", {add_joined(program, parts, true), g}));
    const int plain = add_op(program, "MatMul", {add_transpose(program, g), add_joined(program, parts)});
    program.outputs = {y, of_w, plain};
    const int few = (rows < JoinedOperand::kLeastRows ? 1 : 0) + (out < JoinedOperand::kLeastRows ? 2 : 0);
    CHECK(count_of(joined(program, &join_transposes, random, table), "Raster") == few);
  }
  Program empty;  // nothing to compute
  const int one = add_input(empty, DType::f32, {20, 6}), other = add_input(empty, DType::f32, {20, 6});
  empty.outputs = {add_op(empty, "MatMul", {add_joined(empty, {one, other}), add_input(empty, DType::f32, {12, 0})})};
  joined(empty, &join_transposes, random, table);
}

// Matrices that are no parts of one: some elements are of no source, a source whose elements are not neighbours, and an operand
// that another operator reads.
void operands_that_stay(std::mt19937_64& random, const Table& table) {
  const auto program_of = [](auto&& change) {
    Program program;
    const int one = add_input(program, DType::f32, {20, 6}), other = add_input(program, DType::f32, {20, 6}),
              w = add_input(program, DType::f32, {12, 4});
    const int all = add_joined(program, {one, other});
    program.outputs = {add_op(program, "MatMul", {all, w})};
    change(program, all);
    return program;
  };
  const auto stays = [&](const Program& program) {
    return count_of(joined(program, &join_transposes, random, table), "Raster") == 1;
  };
  CHECK(stays(program_of([](Program& program, int all) { program.outputs.push_back(add_op(program, "Neg", {all})); })));
  CHECK(stays(program_of([](Program& program, int) { program.ops[0].regions[1].size[1] = 5; })));
  CHECK(stays(program_of([](Program& program, int) { program.ops[0].regions[1].src.stride = {1, 20}; })));
}

// A bias and Relu behind a product, which become part of it.
void epilogues(std::mt19937_64& random, const Table& table) {
  if (!table.gemm[0].finishes) return;
  for (const auto& [rows, in, out] :
       {std::array<std::int64_t, 3>{1, 5, 7}, {4, 130, 90}, {40, 1200, 33}, {170, 64, 300}, {2, 0, 3}}) {
    for (const bool has_bias : {false, true}) {
      Program program;
      const int x = add_input(program, DType::f32, {rows, in}), w = add_input(program, DType::f32, {out, in}),
                bias = add_input(program, DType::f32, {out});
      const int product = add_op(program, "MatMul", {x, add_transpose(program, w)});
      program.outputs = {add_op(program, "Relu", {has_bias ? add_op(program, "Add", {bias, product}) : product})};
      const Program after = joined(
          program,
          [](Program& changed, const Table& kernels) {
            join_epilogues(changed, kernels);
            join_transposes(changed, kernels);
          },
          random, table);
      CHECK(count_of(after, "MatMul") == 1 && count_of(after, "Add") == 0 && count_of(after, "Relu") == 0);
    }
  }
}

// Behind a product that is read elsewhere, of one column, or of float64; a summand of another shape.
void epilogues_that_stay(std::mt19937_64& random, const Table& table) {
  const auto stays = [&](std::int64_t out, DType dtype, const Dims& summand, bool is_read) {
    Program program;
    const int product = add_op(program, "MatMul", {add_input(program, dtype, {20, 6}), add_input(program, dtype, {6, out})});
    program.outputs = {add_op(program, "Add", {product, add_input(program, dtype, summand)})};
    if (is_read) program.outputs.push_back(product);
    return count_of(joined(program, &join_epilogues, random, table), "Add") == 1;
  };
  CHECK(stays(5, DType::f32, {5}, true));
  CHECK(stays(1, DType::f32, {1}, false));
  CHECK(stays(5, DType::f64, {5}, false));
  CHECK(stays(5, DType::f32, {20, 5}, false));
  CHECK(stays(5, DType::f32, {1}, false));
}

// What must stay: a part of a larger value that nothing else holds, elements that are not neighbours, and a result that is read.
void transposes_that_stay(std::mt19937_64& random, const Table& table) {
  Program part;
  const int large = add_op(part, "Neg", {add_input(part, DType::f32, {64, 20})});
  part.outputs = {add_op(part, "MatMul", {add_view(part, large, {20, 20}, {1, 20}, 0), add_input(part, DType::f32, {20, 4})})};
  CHECK(count_of(joined(part, &join_transposes, random, table), "Raster") == 1);
  Program apart;
  const int wide = add_input(apart, DType::f32, {20, 40});
  apart.outputs = {add_op(apart, "MatMul", {add_view(apart, wide, {20, 20}, {40, 2}, 0), add_input(apart, DType::f32, {20, 4})})};
  CHECK(count_of(joined(apart, &join_transposes, random, table), "Raster") == 1);
  Program read;
  const int product = add_op(read, "MatMul", {add_input(read, DType::f32, {20, 30}), add_input(read, DType::f32, {30, 25})});
  read.outputs = {add_transpose(read, product), add_op(read, "Neg", {product})};
  CHECK(count_of(joined(read, &join_transposes, random, table), "Raster") == 1);
}

// A normalisation with bounds behind it, and its gradients from that of the result.
struct Normal {
  Program program;
  int x, g, y, gated;

  Normal(const Dims& shape, DType dtype, const Attributes& bounds, const Attributes& gate) {
    const Dims channels{shape[1]};
    x = add_input(program, dtype, shape);
    g = add_input(program, dtype, shape);
    const int moments = add_op(program, "ChannelMoments", {x});
    Attributes attributes = bounds;
    attributes.set("epsilon", 0.1);
    y = add_op(program, "ChannelNormalize", {x, moments, number(dtype, channels), number(dtype, channels)}, attributes);
    gated = add_op(program, "Gate", {g, y}, gate);
    const int sums = add_op(program, "ChannelSums", {gated, x, number(dtype, channels)});
    const int of_x =
        add_op(program, "ChannelAffine", {x, number(dtype, channels), number(dtype, channels), gated, number(dtype, channels)});
    program.outputs = {y, sums, of_x};
  }
  int number(DType dtype, const Dims& channels) { return add_input(program, dtype, channels); }
};

void gates(std::mt19937_64& random, const Table& table) {
  const Attributes relu6{{"low", 0.0}, {"high", 6.0}}, narrow{{"low", -0.5}, {"high", 0.75}}, relu{{"low", 0.0}};
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Attributes& bounds : {relu6, narrow, relu})
      for (const Dims& shape : {Dims{3, 5, 4, 9}, Dims{2, 4, 70, 71}, Dims{1, 2, 1500}}) {
        const Program after = joined(Normal(shape, dtype, bounds, bounds).program, &join_gates, random, table);
        CHECK(count_of(after, "Gate") == 0 && after.ops.size() == 4);
      }
  const Dims shape{2, 3, 5};
  const auto stays = [&](const Program& program) { return count_of(joined(program, &join_gates, random, table), "Gate") == 1; };
  for (const Dims& single : {Dims{5, 7}, Dims{2, 33, 1, 1}}) CHECK(stays(Normal(single, DType::f32, relu6, relu6).program));
  CHECK(stays(Normal(shape, DType::f32, relu6, narrow).program));
  CHECK(stays(Normal(shape, DType::f32, relu6, relu).program));
  CHECK(stays(Normal(shape, DType::f32, {{"high", 1.0}}, {{"high", 1.0}}).program));
  Attributes included = relu6;
  included.set("includes_bounds", std::int64_t{1});
  CHECK(stays(Normal(shape, DType::f32, relu6, included).program));
  Normal shown(shape, DType::f32, relu6, relu6);
  shown.program.outputs.push_back(shown.gated);
  CHECK(stays(shown.program));
  Normal read(shape, DType::f32, relu6, relu6);
  read.program.outputs.push_back(add_op(read.program, "Neg", {read.gated}));
  CHECK(stays(read.program));
}

// A depthwise convolution of a normalised input and the gradient of its weights.
struct Depthwise {
  Program program;
  int y, of_weights;

  Depthwise(const Dims& shape, const Attributes& bounds, const Attributes& window, std::int64_t kernel, const Table& table) {
    const Dims channels{shape[1]}, weights{shape[1], 1, kernel, kernel};
    const auto number = [&](const Dims& size) { return add_input(program, DType::f32, size); };
    const int x = number(shape), moments = add_op(program, "ChannelMoments", {x});
    y = add_op(program, "ChannelNormalize", {x, moments, number(channels), number(channels)}, bounds);
    Attributes attributes = window;
    attributes.set("group", shape[1]);
    const int result = add_op(program, "Conv", {y, number(weights)}, attributes);
    program.ops.back().step =
        kLaneDepthwise.make({conv_shape(shape, weights, DType::f32, attributes), &table, false}, 0, EpilogueKernel());
    attributes.set("kernel_shape", Dims{kernel, kernel});
    of_weights = add_op(program, "ConvWeightGradient", {y, number(program.values[at(result)].shape)}, attributes);
    program.outputs = {result, of_weights};
  }
};

void normals(std::mt19937_64& random, const Table& table) {
  const Attributes relu6{{"low", 0.0}, {"high", 6.0}, {"epsilon", 0.1}}, linear{{"epsilon", 1e-3}};
  const Attributes same{{"pads", Dims{1, 1, 1, 1}}}, half{{"pads", Dims{1, 1, 1, 1}}, {"strides", Dims{2, 2}}},
      wide{{"pads", Dims{2, 2, 2, 2}}, {"dilations", Dims{2, 2}}};  // a padded row of pixels, whose padding stays 0
  for (const Attributes& bounds : {relu6, linear})
    for (const Attributes& window : {same, half, wide})
      for (const Dims& shape : {Dims{3, 5, 4, 9}, Dims{2, 33, 6, 6}, Dims{2, 4, 50, 41}}) {
        const Program after = joined(Depthwise(shape, bounds, window, 3, table).program, &join_normals, random, table);
        CHECK(count_of(after, "ChannelNormalize") == 0 && after.ops.size() == 3);
      }
  const Dims shape{2, 3, 5, 5};
  const auto stays = [&](const Program& program) {
    return count_of(joined(program, &join_normals, random, table), "ChannelNormalize") == 1;
  };
  Depthwise shown(shape, relu6, same, 3, table);
  shown.program.outputs.push_back(shown.y);
  CHECK(stays(shown.program));
  Depthwise read(shape, relu6, same, 3, table);
  read.program.outputs.push_back(add_op(read.program, "Neg", {read.y}));
  CHECK(stays(read.program));
  Depthwise searched(shape, relu6, same, 3, table);
  searched.program.ops[2].step = nullptr;  // a convolution by another algorithm
  CHECK(stays(searched.program));
}

}  // namespace

int main() {
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    std::mt19937_64 random(35);
    const Table& table = kernels(set.name);
    linear_layers(random, table);
    batches(random, table);
    joined_operands(random, table);
    operands_that_stay(random, table);
    epilogues(random, table);
    epilogues_that_stay(random, table);
    transposes_that_stay(random, table);
    gates(random, table);
    normals(random, table);
    std::printf("%s checked\n", std::string(set.name).c_str());
  }
  return check::failures != 0;
}
