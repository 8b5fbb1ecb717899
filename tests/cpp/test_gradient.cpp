// Tests of gradient rules against central differences in float64, over broadcast operands, attributes, zero sizes, and values at
// which a derivative jumps; and second derivatives of a few.
#include "gradients.h"

using namespace gradients;

namespace {

// Every atomic operator has one entry; composites may have one.
void test_table() {
  for (const OpDef& op : operators()) CHECK((op.category() == Category::atomic) <= (find_gradient(op.name) != nullptr));
  for (const GradientRule& rule : gradient_rules()) {
    CHECK(find_gradient(rule.op) == &rule);
    const OpDef* op = find_operator(rule.op);
    CHECK(op != nullptr && (op->category() == Category::atomic || op->category() == Category::composite));
    CHECK((rule.make != nullptr) == (rule.kind == Differentiable::by_rule));
    CHECK(rule.reason.empty() == (rule.kind != Differentiable::refused));
  }
  CHECK(find_gradient("Floor")->kind == Differentiable::flat);
  CHECK(find_gradient("Transpose") == nullptr);
}

void test_elementwise(std::mt19937_64& random) {
  const std::vector<std::pair<Dims, Dims>> pairs = {{{2, 3}, {2, 3}}, {{2, 3}, {3}},       {{1, 3}, {2, 1}},
                                                    {{}, {2, 2}},     {{2, 1, 3}, {4, 1}}, {{0, 3}, {3}}};
  for (const GradientRule& rule : gradient_rules()) {
    const OpDef& op = *find_operator(rule.op);
    if (rule.kind != Differentiable::by_rule) continue;
    if (op.is(Family::unary)) {
      const bool is_small = rule.op == "Asin" || rule.op == "Acos" || rule.op == "Atanh";
      const bool is_large = rule.op == "Acosh";
      for (const Dims& shape : {Dims{2, 3}, Dims{}, Dims{0, 2}})
        compare(random, rule.op, {random_tensor(random, shape, is_large ? 1.1 : 0.2, is_small ? 0.9 : 1.9)});
    }
    if (op.is(Family::binary))
      for (const auto& [a, b] : pairs) compare(random, rule.op, {a, b});
  }
  for (const char* op : {"Abs", "Relu", "Tanh", "Sigmoid", "Softplus", "Expm1", "Erf", "Cbrt", "Mantissa", "Sinh"})
    compare(random, op, {random_tensor(random, {4, 5}, -2, -0.1)});
  for (const char* op : {"FloorMod", "Fmod", "CopySign", "Atan2", "Hypot", "Maximum", "Minimum"})
    compare(random, op, {random_tensor(random, {3, 3}, -7, -3), random_tensor(random, {3, 1}, 0.9, 1.9)});
  for (const double exponent : {0.0, 0.5, 1.0, 2.0, 3.0, -1.5}) {
    compare(random, "Power", {random_tensor(random, {3}), tensor_of({}, {exponent})}, {}, {true, false});
    if (exponent > 0) compare(random, "Power", {random_tensor(random, {3}), tensor_of({1}, {exponent})});
  }
  compare(random, "Where",
          {cast(tensor_of({2, 1}, {1, 0}), DType::b8), random_tensor(random, {2, 3}), random_tensor(random, {3})});
}

// The rules' values where a derivative jumps: PyTorch's.
void test_jumps() {
  const auto gradient_at = [](std::string_view op, const std::vector<Tensor>& inputs, Attributes attributes = {}) {
    Tape tape;
    std::vector<Ref> refs;
    for (const Tensor& input : inputs) refs.push_back(tape.constant(input));
    const Ref y = tape.emit(op, refs, std::move(attributes), 1)[0];
    Tensor ones = Tensor::empty(DType::f64, tape.at(y).shape());
    std::fill_n(ones.data<double>(), ones.size(), 1.0);
    const auto found = tape.differentiate(y, tape.constant(std::move(ones)), {refs[0]});
    const Tensor& value = tape.at(found[0]);
    return std::vector<double>(value.data<double>(), value.data<double>() + value.size());
  };
  const Tensor zero = tensor_of({1}, {0});
  CHECK(gradient_at("Relu", {zero}) == std::vector<double>{0});
  CHECK(gradient_at("Abs", {zero}) == std::vector<double>{0});
  // Attributes are Relu6's bounds, at which it is 0; operands are torch.clamp's, at which it is 1.
  const Tensor steps = tensor_of({6}, {-1, 0, 2, 6, 7, INFINITY});
  CHECK(gradient_at("Clip", {steps}, {{"min", 0.0}, {"max", 6.0}}) == (std::vector<double>{0, 0, 1, 0, 0, 0}));
  CHECK(gradient_at("Clip", {steps, zero, tensor_of({1}, {6})}) == (std::vector<double>{0, 1, 1, 1, 0, 0}));
  CHECK(gradient_at("Clip", {steps}, {{"min", 2.0}}) == (std::vector<double>{0, 0, 0, 1, 1, 1}));
  CHECK(gradient_at("Clip", {steps}, {{"min", 3.0}, {"max", 1.0}}) == (std::vector<double>(6, 0)));
  CHECK(gradient_at("Relu", {steps}) == (std::vector<double>{0, 0, 1, 1, 1, 1}));
  CHECK(gradient_at("Maximum", {zero, zero}) == std::vector<double>{0.5});
  CHECK(gradient_at("Minimum", {zero, zero}) == std::vector<double>{0.5});
  CHECK(gradient_at("ReduceMax", {tensor_of({4}, {1, 3, 3, 2})}) == (std::vector<double>{0, 0.5, 0.5, 0}));
  CHECK(gradient_at("ReduceL2", {tensor_of({2}, {0, 0})}) == (std::vector<double>{0, 0}));
}

void test_reductions(std::mt19937_64& random) {
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp"})
    for (const std::int64_t keepdims : {0, 1}) {
      for (const Dims& axes : {Dims{1}, Dims{0, 2}, Dims{-1, 0}, Dims{}})
        compare(random, op, {random_tensor(random, {2, 3, 4}, -2, 2)}, {{"axes", axes}, {"keepdims", keepdims}});
      compare(random, op, {random_tensor(random, {0, 3})}, {{"axes", Dims{1}}, {"keepdims", keepdims}});
    }
  compare(random, "ReduceSum", {random_tensor(random, {2, 3}), whole_tensor({1}, {1})});
  compare(random, "ReduceProd", {tensor_of({3, 3}, {1, 0, 2, 0, 3, 0, 2, 3, 4})}, {{"axes", Dims{1}}});
  for (const char* op : {"CumSum", "CumProd"})
    for (const std::int64_t exclusive : {0, 1})
      for (const std::int64_t reverse : {0, 1})
        for (const std::int64_t axis : {0, -1}) {
          const Attributes attributes{{"exclusive", exclusive}, {"reverse", reverse}};
          compare(random, op, {random_tensor(random, {3, 4}, -2, 2), whole_tensor({}, {axis})}, attributes);
          compare(random, op, {tensor_of({4, 3}, {1, 0, 2, 0, 3, 0, 2, 3, 0, 4, 5, 6}), whole_tensor({}, {axis})}, attributes);
        }
}

void test_products(std::mt19937_64& random) {
  const std::vector<std::pair<Dims, Dims>> products = {{{2, 3}, {3, 4}}, {{3}, {3, 2}},       {{2, 3}, {3}},
                                                       {{3}, {3}},       {{5, 2, 3}, {3, 4}}, {{2, 1, 2, 3}, {4, 3, 1}},
                                                       {{3}, {2, 3, 4}}, {{2, 2, 3}, {3}},    {{0, 3}, {3, 2}}};
  for (const auto& [a, b] : products) compare(random, "MatMul", {a, b});
}

void test_activations(std::mt19937_64& random) {
  for (const char* op : {"Elu", "Selu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Swish"})
    compare(random, op, {random_tensor(random, {3, 7}, -4, 4)});
  compare(random, "Gelu", {random_tensor(random, {9}, -3, 3)}, {{"approximate", std::string("tanh")}});
  compare(random, "Elu", {random_tensor(random, {9}, -3, 3)}, {{"alpha", 0.3}});
  compare(random, "Elu", {random_tensor(random, {9}, -3, 3)}, {{"alpha", -0.3}});
  compare(random, "LeakyRelu", {random_tensor(random, {9}, -3, 3)}, {{"alpha", -0.3}});
  compare(random, "Swish", {random_tensor(random, {9}, -3, 3)}, {{"alpha", 1.7}});
  compare(random, "HardSigmoid", {random_tensor(random, {9}, -3, 3)}, {{"alpha", 0.3}, {"beta", 0.4}});
  for (const Dims& slope : {Dims{3, 1}, Dims{}, Dims{2, 3, 4}, Dims{1}})
    compare(random, "PRelu", {random_tensor(random, {2, 3, 4}, -2, 2), random_tensor(random, slope)});
  compare(random, "PRelu", {random_tensor(random, {2, 3, 4}, -2, 2), random_tensor(random, {2, 1, 4})});
  for (const Dims& slope : {Dims{3, 1}, Dims{4}, Dims{1, 1, 1}})
    compare(random, "PReluGradient",
            {random_tensor(random, {2, 3, 4}, -2, 2), random_tensor(random, {2, 3, 4}, -2, 2), random_tensor(random, slope)});
  compare(random, "PReluGradient", {random_tensor(random, {0, 3}), random_tensor(random, {0, 3}), random_tensor(random, {3})});
  const Tensor x = random_tensor(random, {4, 5}, -3, 3);
  compare(random, "Clip", {x}, {{"min", -1.0}, {"max", 1.5}});
  compare(random, "Clip", {x, tensor_of({}, {-1}), tensor_of({}, {2})});
  compare(random, "Clip", {x, tensor_of({}, {-1})});
  compare(random, "Clip", {x, Tensor(), tensor_of({}, {1})});
  compare(random, "Clip", {x, tensor_of({}, {1}), tensor_of({}, {-1})});
  compare(random, "Clip", {x});
}

void test_normalizations(std::mt19937_64& random) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (const std::int64_t axis : {0, 1, -1}) compare(random, op, {random_tensor(random, {2, 3, 4}, -2, 2)}, {{"axis", axis}});
    compare(random, op, {random_tensor(random, {0, 3})});
    compare_recorded(random, op, {random_tensor(random, {2, 3})}, {}, 2);
  }
  for (const std::int64_t axis : {1, -1}) {
    const Dims row = axis == 1 ? Dims{3, 4} : Dims{4};
    const Tensor x = random_tensor(random, {2, 3, 4}, -2, 2), scale = random_tensor(random, row),
                 bias = random_tensor(random, row);
    compare(random, "LayerNormalization", {x, scale, bias}, {{"axis", axis}});
    compare(random, "LayerNormalization", {x, scale}, {{"axis", axis}, {"epsilon", 0.1}});
    compare(random, "RMSNormalization", {x, scale}, {{"axis", axis}});
  }
  const Tensor x = random_tensor(random, {2, 4, 3}, -2, 2), scale = random_tensor(random, {4}), bias = random_tensor(random, {4});
  compare_recorded(random, "LayerNormalization", {x, random_tensor(random, {3}), random_tensor(random, {3})}, {}, 2);
  for (const Dims& shape : {Dims{2, 4, 3}, Dims{3, 4}, Dims{2, 4, 1, 5}, Dims{1, 4, 2, 2, 2}}) {
    const std::vector<Tensor> operands{random_tensor(random, shape, -2, 2), scale, bias, random_tensor(random, {4}),
                                       random_tensor(random, {4})};
    for (const int order : {1, 2})
      compare_recorded(random, "BatchNormalization", operands, {{"training_mode", std::int64_t{1}}, {"epsilon", 0.1}}, order);
    compare_recorded(random, "BatchNormalization", operands);
  }
  compare_recorded(random, "GroupNormalization", {x, scale, bias}, {{"num_groups", std::int64_t{2}}});
  compare_recorded(random, "InstanceNormalization", {x, scale, bias});
}

void test_channels(std::mt19937_64& random) {
  for (const Dims& shape : {Dims{2, 3, 4}, Dims{4, 3}, Dims{1, 3, 2, 5}, Dims{0, 3, 2}}) {
    const Tensor x = random_tensor(random, shape, -2, 2), g = random_tensor(random, shape, -2, 2), a = random_tensor(random, {3}),
                 b = random_tensor(random, {3}), p = random_tensor(random, {3});
    if (shape[0] > 0) compare(random, "ChannelMoments", {x});
    compare(random, "ChannelSums", {g, x, a});
    compare(random, "ChannelAffine", {x, a});
    compare(random, "ChannelAffine", {x, a, b});
    compare(random, "ChannelAffine", {x, a, b, g, p});
    compare(random, "ChannelAffine", {x, a, Tensor(), g, p});
    compare(random, "Gate", {g, x}, {{"low", -0.5}, {"high", 1.0}});
  }
  // Its gradient includes that of its moments, so that it is compared as part of BatchNormalization.
  compared.insert("ChannelNormalize");
}

void test_linear(std::mt19937_64& random) {
  // Linear takes float32 only: against the same by MatMul, in float64.
  const Tensor x = random_tensor(random, {2, 2, 3}, -1, 1), w = random_tensor(random, {3, 4}, -1, 1),
               bias = random_tensor(random, {4}, -1, 1), residual = random_tensor(random, {2, 2, 4}, -1, 1);
  const Tensor gradient = random_tensor(random, {2, 2, 4}, -1, 1);
  for (const char* activation : {"", "Relu", "Sigmoid", "Softplus"}) {
    Tape narrow, wide;
    std::vector<Ref> of_narrow, of_wide;
    for (const Tensor& tensor : {x, w, bias, residual}) {
      of_narrow.push_back(narrow.constant(cast(tensor, DType::f32)));
      of_wide.push_back(wide.constant(tensor));
    }
    Attributes attributes;
    if (*activation != '\0') attributes.set("activation", std::string(activation));
    const Ref y = narrow.one("Linear", of_narrow, attributes);
    Ref z = wide.one("Add", {wide.one("Add", {wide.one("MatMul", {of_wide[0], of_wide[1]}), of_wide[2]}), of_wide[3]});
    if (*activation != '\0') z = wide.one(activation, {z});
    const auto found = narrow.differentiate(y, narrow.constant(cast(gradient, DType::f32)), of_narrow);
    const auto expected = wide.differentiate(z, wide.constant(gradient), of_wide);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Tensor value = cast(narrow.at(found[i]), DType::f64), exact = wide.at(expected[i]);
      CHECK(value.shape() == exact.shape());
      for (std::int64_t j = 0; j < value.size(); ++j) CHECK(std::fabs(value.data<double>()[j] - exact.data<double>()[j]) < 1e-5);
    }
  }
  compared.insert("Linear");
}

void test_convolutions(std::mt19937_64& random) {
  struct Form {
    Dims x, w;
    Attributes attributes;
  };
  const auto list = [](Dims numbers) { return Attribute(std::move(numbers)); };
  const std::vector<Form> forms = {
      {{2, 2, 5}, {3, 2, 3}, {}},
      {{1, 2, 4, 5}, {2, 2, 3, 2}, {{"pads", list({1, 0, 1, 1})}}},
      {{2, 1, 6, 5}, {2, 1, 3, 3}, {{"strides", list({2, 3})}, {"pads", list({1, 0, 0, 2})}}},
      {{1, 2, 7, 7}, {2, 2, 2, 3}, {{"dilations", list({3, 2})}, {"pads", list({0, 2, 1, 1})}}},
      {{1, 1, 7, 6}, {2, 1, 3, 2}, {{"dilations", list({2, 3})}, {"strides", list({2, 2})}}},
      {{1, 4, 4, 4}, {4, 2, 2, 2}, {{"group", std::int64_t{2}}}},
      {{2, 3, 5, 4}, {3, 1, 3, 3}, {{"group", std::int64_t{3}}, {"strides", list({2, 1})}, {"pads", list({1, 1, 1, 1})}}},
      {{1, 2, 5, 6}, {2, 2, 3, 3}, {{"auto_pad", std::string("SAME_UPPER")}, {"strides", list({2, 2})}}},
      {{1, 2, 6, 5}, {2, 2, 2, 4}, {{"auto_pad", std::string("SAME_LOWER")}}},
      {{1, 1, 3, 3}, {1, 1, 1, 1}, {{"pads", list({2, 1, 1, 2})}}},
      {{1, 1, 5}, {2, 1, 1}, {{"strides", list({3})}}},
      {{1, 4, 5, 4}, {2, 2, 1, 1}, {{"strides", list({2, 3})}, {"pads", list({1, 0, 2, 3})}, {"group", std::int64_t{2}}}},
      {{1, 2, 6, 7}, {4, 1, 3, 2}, {{"strides", list({2, 3})}, {"group", std::int64_t{2}}, {"dilations", list({1, 2})}}},
      {{1, 2, 5}, {2, 1, 2}, {{"strides", list({2})}, {"group", std::int64_t{2}}, {"pads", list({3, 2})}}},
      {{1, 1, 3, 3, 3}, {2, 1, 2, 2, 2}, {{"pads", list({1, 0, 0, 0, 1, 0})}}},
      {{0, 1, 4}, {2, 1, 3}, {}},
      {{1, 1, 2}, {2, 1, 3}, {}},
  };
  for (const Form& form : forms) {
    const Tensor x = random_tensor(random, form.x, -1, 1), w = random_tensor(random, form.w, -1, 1);
    compare(random, "Conv", {x, w, random_tensor(random, {form.w[0]})}, form.attributes);
    if (element_count(form.x) == 0) continue;
    const Tensor of_result = random_tensor(random, evaluate_one("Conv", std::vector{x, w}, form.attributes).shape(), -1, 1);
    Attributes attributes = form.attributes;
    attributes.set("kernel_shape", Dims(form.w.begin() + 2, form.w.end()));
    compare(random, "ConvWeightGradient", {x, of_result}, attributes);
    attributes.set("shape", form.x);
    compare(random, "ConvInputGradient", {of_result, w}, attributes);
  }
  const Tensor x = random_tensor(random, {1, 2, 4, 4}, -1, 1), w = random_tensor(random, {2, 2, 3, 3}, -1, 1);
  Attributes padded{{"pads", Dims{1, 1, 1, 1}}, {"activation", std::string("Tanh")}};
  compare(random, "Conv", {x, w, Tensor(), random_tensor(random, {1, 2, 4, 4})}, padded);
  compare_recorded(random, "Conv", {x, w}, {{"strides", Dims{2, 1}}}, 2);
  compare_recorded(random, "ConvTranspose", {x, w}, {{"strides", Dims{2, 1}}, {"pads", Dims{1, 0, 0, 1}}});
  compare(random, "Col2Im", {random_tensor(random, {1, 8, 9}), whole_tensor({2}, {4, 4}), whole_tensor({2}, {2, 2})});
  compare(random, "Col2Im", {random_tensor(random, {2, 6, 6}), whole_tensor({2}, {5, 4}), whole_tensor({2}, {2, 3})},
          {{"strides", Dims{2, 2}}, {"pads", Dims{1, 1, 0, 1}}, {"dilations", Dims{1, 1}}});
}

// The gradient by weights in float32 on every instruction set against float64: several blocks of rows, places and images.
void test_weights_of_convolutions(std::mt19937_64& random) {
  struct Form {
    Dims x, w;
    std::int64_t groups, stride, pad;
  };
  const std::vector<Form> forms = {{{2, 59, 23, 25}, {7, 59, 3, 3}, 1, 1, 1}, {{3, 5, 7, 9}, {37, 5, 1, 1}, 1, 1, 0},
                                   {{2, 6, 30, 29}, {4, 3, 5, 3}, 2, 2, 2},   {{5, 9, 12, 13}, {18, 1, 3, 3}, 9, 1, 1},
                                   {{3, 9, 13, 12}, {9, 1, 5, 3}, 9, 2, 1},   {{1, 3, 1301}, {40, 3, 1}, 1, 1, 0},
                                   {{2, 3, 1301}, {40, 3, 4}, 1, 1, 2},       {{1, 12, 1300}, {2, 12, 5}, 1, 2, 3},
                                   {{2, 2, 70, 70}, {2, 1, 3, 3}, 2, 3, 0},   {{1, 70, 4, 4}, {520, 70, 3, 3}, 1, 1, 1}};
  for (const Form& form : forms) {
    const std::size_t rank = form.x.size() - 2;
    Attributes attributes{{"group", form.groups}, {"strides", Dims(rank, form.stride)}, {"pads", Dims(2 * rank, form.pad)}};
    const Tensor x = random_tensor(random, form.x, -1, 1), w = random_tensor(random, form.w, -1, 1);
    const Tensor y = evaluate_one("Conv", std::vector{x, w}, attributes), gradient = random_tensor(random, y.shape(), -1, 1);
    attributes.set("kernel_shape", Dims(form.w.begin() + 2, form.w.end()));
    const Tensor expected = evaluate_one("ConvWeightGradient", std::vector{x, gradient}, attributes);
    CHECK(std::fabs(dot(expected, w) - dot(y, gradient)) < 1e-9 * static_cast<double>(y.size()));  // y is linear in w
    const std::vector<Tensor> narrow{cast(x, DType::f32), cast(gradient, DType::f32)};
    for (const InstructionSet& set : instruction_sets()) {
      if (!set.available || !set.exact) continue;
      const Tensor found =
          cast(evaluate(*find_operator("ConvWeightGradient"), narrow, attributes, 1, kernels(set.name))[0], DType::f64);
      double largest = 0;
      for (std::int64_t i = 0; i < found.size(); ++i)
        largest = std::max(largest, std::fabs(found.data<double>()[i] - expected.data<double>()[i]));
      CHECK(largest < 1e-4 * std::sqrt(static_cast<double>(gradient.size() / gradient.shape()[1])));
    }
  }
}

void test_poolings(std::mt19937_64& random) {
  const std::vector<std::pair<Dims, Attributes>> forms = {
      {{2, 2, 6}, {{"kernel_shape", Dims{3}}}},
      {{1, 2, 4, 6}, {{"kernel_shape", Dims{2, 2}}, {"strides", Dims{2, 2}}}},
      {{1, 1, 5, 7}, {{"kernel_shape", Dims{2, 3}}, {"strides", Dims{3, 3}}, {"pads", Dims{1, 0, 1, 2}}}},
      {{1, 1, 6, 5}, {{"kernel_shape", Dims{3, 3}}, {"strides", Dims{2, 1}}, {"pads", Dims{1, 1, 1, 1}}}},
      {{1, 1, 7, 7}, {{"kernel_shape", Dims{2, 3}}, {"dilations", Dims{2, 2}}, {"strides", Dims{2, 1}}}},
      {{1, 1, 5, 6}, {{"kernel_shape", Dims{3, 2}}, {"strides", Dims{2, 2}}, {"ceil_mode", std::int64_t{1}}}},
      {{1, 1, 5, 6}, {{"kernel_shape", Dims{3, 2}}, {"strides", Dims{2, 2}}, {"auto_pad", std::string("SAME_UPPER")}}},
      {{1, 2, 3, 3}, {{"kernel_shape", Dims{3, 3}}}},
      {{0, 2, 3, 3}, {{"kernel_shape", Dims{2, 2}}}},
  };
  for (const auto& [shape, attributes] : forms) {
    for (const char* op : {"PoolSum", "PoolMean", "PoolMax"})
      compare(random, op, {random_tensor(random, shape, -2, 2)}, attributes);
    Attributes counted = attributes;
    counted.set("count_include_pad", std::int64_t{1});
    compare(random, "PoolMean", {random_tensor(random, shape, -2, 2)}, counted);
  }
  // A window of padding alone.
  Tape tape;
  const Ref x = tape.constant(random_tensor(random, {1, 1, 2}));
  const Ref y = tape.one("PoolMax", {x}, {{"kernel_shape", Dims{2}}, {"pads", Dims{2, 0}}});
  CHECK_ERROR(tape.differentiate(y, y, {x}), unsupported);
}

void test_indexed(std::mt19937_64& random) {
  const Tensor data = random_tensor(random, {3, 4}, -2, 2), rows = whole_tensor({2, 2}, {2, 0, -1, 2}),
               elements = whole_tensor({2, 4}, {0, 1, 2, 0, 2, 1, 2, 2}), unique = whole_tensor({2, 4}, {0, 1, 2, 0, 2, 2, 1, 1});
  // Gather with indices that are known only at run time becomes IndexedGather.
  compare_recorded(random, "Gather", {data, rows});
  compare_recorded(random, "Gather", {data, rows}, {{"axis", std::int64_t{1}}}, 2);
  compare_recorded(random, "GatherElements", {data, elements});
  compare_recorded(random, "GatherND", {data, whole_tensor({3, 2}, {0, 1, 2, 3, 0, 1})});
  for (const char* reduction : {"add", "mul", "max", "min"})
    compare_recorded(random, "ScatterElements", {data, elements, random_tensor(random, {2, 4}, -2, 2)},
                     {{"reduction", std::string(reduction)}});
  compare_recorded(random, "ScatterElements", {data, unique, random_tensor(random, {2, 4}, -2, 2)});
  compare_recorded(random, "ScatterElements", {data, elements, tensor_of({2, 4}, {0, 1, 0, 2, 3, 0, 0, 4})},
                   {{"reduction", std::string("mul")}});
  compare_recorded(random, "ScatterND", {data, whole_tensor({2, 1}, {1, 1}), random_tensor(random, {2, 4})},
                   {{"reduction", std::string("add")}});
  for (const std::int64_t largest : {0, 1})
    for (const std::int64_t axis : {0, 1})
      compare(random, "TopValues", {data}, {{"axis", axis}, {"k", std::int64_t{2}}, {"largest", largest}});
  compared.insert({"IndexedGather", "IndexedScatter"});
}

void test_recurrent(std::mt19937_64& random) {
  const std::int64_t steps = 4, batch = 3, hidden = 2;
  for (const auto& [cell, gates] : {std::pair{"RNN", 1}, {"GRU", 3}, {"LSTM", 4}})
    for (const std::int64_t backward : {0, 1})
      for (const std::int64_t variant : {0, 1})  // linear_before_reset of the GRU, peepholes of the LSTM
        for (const bool has_lens : {false, true}) {
          const bool is_gru = gates == 3, is_lstm = gates == 4;
          const auto number = [&](Dims shape) { return random_tensor(random, std::move(shape), -1, 1); };
          const std::vector<Tensor> inputs = {number({steps, batch, gates * hidden}),
                                              number({gates * hidden, hidden}),
                                              number({batch, hidden}),
                                              is_lstm ? number({batch, hidden}) : Tensor(),
                                              is_gru && variant == 1 ? number({hidden}) : Tensor(),
                                              is_lstm && variant == 1 ? number({3 * hidden}) : Tensor(),
                                              has_lens ? whole_tensor({batch}, {4, 0, 2}) : Tensor()};
          compare(random, "RecurrentSteps", inputs,
                  {{"cell", std::string(cell)}, {"backward", backward}, {"linear_before_reset", variant}});
          if (is_lstm && variant == 1)
            compare(random, "RecurrentSteps", inputs,
                    {{"cell", std::string(cell)}, {"backward", backward}, {"input_forget", std::int64_t{1}}});
        }
  // Of a whole layer, with the parts of which it is made.
  const Tensor x = random_tensor(random, {3, 2, 2}, -1, 1), w = random_tensor(random, {2, 6, 2}, -1, 1),
               r = random_tensor(random, {2, 6, 2}, -1, 1), bias = random_tensor(random, {2, 12}, -1, 1);
  compare_recorded(random, "GRU", {x, w, r, bias}, {{"direction", std::string("bidirectional")}});
  compare(random, "RecurrentSteps",
          {random_tensor(random, {1, 2, 2}), random_tensor(random, {2, 2}), random_tensor(random, {2, 2})},
          {{"cell", std::string("RNN")}});
}

void test_signals(std::mt19937_64& random) {
  const Tensor places = whole_tensor({3, 2}, {0, 1, 1, 1, 4, 0}), weights = random_tensor(random, {3, 2}, -1, 1);
  for (const auto& [shape, axis] : {std::pair{Dims{2, 5}, 1}, {Dims{5, 3}, 0}, {Dims{5, 0}, 0}})
    compare(random, "Resample", {random_tensor(random, shape), places, weights}, {{"axis", std::int64_t{axis}}},
            {true, false, false});
  for (const char* mode : {"linear", "cubic"})
    compare_recorded(random, "Resize", {random_tensor(random, {1, 1, 4, 3}), Tensor(), Tensor(), whole_tensor({4}, {1, 1, 7, 2})},
                     {{"mode", std::string(mode)}});
  for (const std::int64_t n : {1, 5, 6})
    for (const std::int64_t inverse : {0, 1}) {
      const Attributes attributes{{"inverse", inverse}, {"scale", 0.7}};
      compare(random, "FourierTransform", {random_tensor(random, {2, n, 1})}, attributes);
      compare(random, "FourierTransform", {random_tensor(random, {2, n, 2})}, attributes);
      if (inverse == 0)
        compare(random, "FourierTransform", {random_tensor(random, {2, n, 1})}, {{"onesided", std::int64_t{1}}, {"scale", 0.7}});
      else
        compare(random, "FourierTransform", {random_tensor(random, {2, n / 2 + 1, 2})},
                {{"onesided", std::int64_t{1}}, {"inverse", std::int64_t{1}}, {"length", n}});
    }
}

void test_grids(std::mt19937_64& random) {
  for (const char* mode : {"nearest", "linear", "cubic"})
    for (const char* padding : {"zeros", "border", "reflection"})
      for (const std::int64_t align : {0, 1}) {
        const Attributes attributes{
            {"mode", std::string(mode)}, {"padding_mode", std::string(padding)}, {"align_corners", align}};
        compare(random, "GridSample", {random_tensor(random, {2, 2, 3, 4}), random_tensor(random, {2, 2, 3, 2}, -1.9, 1.9)},
                attributes);
        compare(random, "GridSample", {random_tensor(random, {1, 2, 4}), random_tensor(random, {1, 3, 1}, -3, 3)}, attributes);
      }
  const Tensor boxes = tensor_of({3, 4}, {0.3, 0.2, 3.4, 4.1, -2, 1.3, 2.2, 6, 1.1, 1.2, 1.4, 1.3}),
               images = whole_tensor({3}, {1, 0, 1});
  for (const char* mode : {"avg", "max"})
    for (const char* coordinates : {"half_pixel", "output_half_pixel"})
      for (const std::int64_t ratio : {0, 2})
        compare(random, "RoiAlign", {random_tensor(random, {2, 2, 5, 4}), boxes, images},
                {{"mode", std::string(mode)},
                 {"coordinate_transformation_mode", std::string(coordinates)},
                 {"sampling_ratio", ratio},
                 {"output_height", std::int64_t{2}},
                 {"output_width", std::int64_t{3}}},
                {true, false, false});
  compare(random, "GridSample", {random_tensor(random, {1, 1, 2, 3, 2}), random_tensor(random, {1, 2, 2, 1, 3}, -1, 1)});
}

void test_linear_algebra(std::mt19937_64& random) {
  const auto square = [&](Dims shape) {  // far from singular
    Tensor matrices = random_tensor(random, shape, -1, 1);
    const std::int64_t n = shape.back();
    for (std::int64_t i = 0; i < matrices.size(); i += n * n)
      for (std::int64_t j = 0; j < n; ++j) matrices.data<double>()[i + j * (n + 1)] += 3;
    return matrices;
  };
  compare(random, "Solve", {square({2, 3, 3}), random_tensor(random, {2, 3, 2})});
  for (const std::int64_t logarithm : {0, 1}) compare(random, "Det", {square({2, 3, 3})}, {{"logarithm", logarithm}});
  // Cholesky reads the lower triangle and has a symmetric gradient: of a @ a', a symmetric matrix.
  Tensor a = square({3, 3});
  const Tensor gradient = random_tensor(random, {3, 3}, -1, 1);
  const auto factor = [&](Tape& tape, Ref& x) {
    x = tape.constant(copy_of(a));
    const Ref other = tape.one("Transpose", {x}, {{"perm", Dims{1, 0}}});
    return tape.one("Cholesky", {tape.one("MatMul", {x, other})});
  };
  Tape tape;
  Ref x;
  const Ref y = factor(tape, x);
  const Tensor found = tape.at(tape.differentiate(y, tape.constant(gradient), {x})[0]);
  for (std::int64_t j = 0; j < a.size(); ++j) {
    const double at = a.data<double>()[j];
    const auto moved = [&](double to) {
      a.data<double>()[j] = to;
      Tape again;
      Ref ignored;
      return dot(again.at(factor(again, ignored)), gradient);
    };
    const double above = moved(at + 1e-5), below = moved(at - 1e-5);
    a.data<double>()[j] = at;
    CHECK(is_close(found.data<double>()[j], (above - below) / 2e-5, above));
  }
  compared.insert("Cholesky");
}

void test_casts(std::mt19937_64& random) {
  compare_recorded(random, "CastLike", {random_tensor(random, {3}), random_tensor(random, {1})});
  Tape tape;
  const Ref x = tape.constant(random_tensor(random, {3})), y = tape.one("Cast", {x}, {{"to", std::string("float32")}});
  const Ref gradient = tape.constant(cast(random_tensor(random, {3}), DType::f32));
  CHECK(tape.at(tape.differentiate(y, gradient, {x})[0]).dtype() == DType::f64);
  const Ref whole = tape.one("Cast", {x}, {{"to", std::string("int64")}});
  CHECK(tape.differentiate(whole, whole, {x})[0] == Emitter::kAbsent);
  compared.insert("Cast");
}

void test_second_derivatives(std::mt19937_64& random) {
  for (const char* op : {"Exp", "Tanh", "Sigmoid", "Log", "Sqrt", "Rsqrt", "Softplus", "Reciprocal", "Square"})
    for (const int order : {2, 3}) compare_recorded(random, op, {random_tensor(random, {2, 2})}, {}, order);
  for (const char* op : {"Mul", "Div", "Power", "LogAddExp"})
    compare_recorded(random, op, {random_tensor(random, {2, 3}), random_tensor(random, {3})}, {}, 2);
  compare_recorded(random, "MatMul", {random_tensor(random, {2, 2, 3}), random_tensor(random, {3, 2})}, {}, 2);
  compare_recorded(random, "ReduceProd", {random_tensor(random, {2, 3})}, {{"axes", Dims{1}}}, 2);
}

void test_every_rule_was_compared() {
  for (const GradientRule& rule : gradient_rules())
    if (rule.kind == Differentiable::by_rule && !compared.contains(rule.op)) {
      ++check::failures;
      std::fprintf(stderr, "the rule of %s is not tested\n", std::string(rule.op).c_str());
    }
}

}  // namespace

int main() {
  std::mt19937_64 random(35);
  test_table();
  test_elementwise(random);
  test_jumps();
  test_reductions(random);
  test_products(random);
  test_activations(random);
  test_normalizations(random);
  test_channels(random);
  test_linear(random);
  test_convolutions(random);
  test_weights_of_convolutions(random);
  test_poolings(random);
  test_indexed(random);
  test_recurrent(random);
  test_signals(random);
  test_grids(random);
  test_linear_algebra(random);
  test_casts(random);
  test_second_derivatives(random);
  test_every_rule_was_compared();
  return check::failures != 0;
}
