// Tests of one small model for each operator family that test_kernels.cpp does not call, in every supported type and odd sizes,
// with and without elements: every instruction set of this CPU compared with scalar. Meant for sanitized builds.
#include <cmath>
#include <cstring>

#include "attempt.h"
#include "check.h"
#include "form_parts.h"
#include "kernels/bfloat16.h"

namespace {

using namespace fuzz;
using walle::DType;

constexpr std::uint8_t code(DType dtype) { return static_cast<std::uint8_t>(dtype); }
ValueForm input(const char* name, DType dtype, std::vector<std::int64_t> dims) {
  return value(name, kInput, code(dtype), std::move(dims));
}

bool near(DType dtype, const std::byte* a, const std::byte* b) {
  if (std::memcmp(a, b, item_size(dtype)) == 0) return true;
  if (is_half(dtype)) {  // next to each other
    std::int16_t left, right;
    std::memcpy(&left, a, 2);
    std::memcpy(&right, b, 2);
    return std::abs(left - right) <= 2;
  }
  double left = 0, right = 0;
  if (dtype == DType::f32) {
    float one, other;
    std::memcpy(&one, a, sizeof(one));
    std::memcpy(&other, b, sizeof(other));
    left = one, right = other;
  } else if (dtype == DType::f64) {
    std::memcpy(&left, a, sizeof(left));
    std::memcpy(&right, b, sizeof(right));
  } else {
    return false;
  }
  return (std::isnan(left) && std::isnan(right)) || std::fabs(left - right) <= 1e-5 + 1e-5 * std::fabs(right);
}

bool near(const walle::Tensor& a, const walle::Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(a.size()); ++i)
    if (!near(a.dtype(), a.raw() + i * item_size(a.dtype()), b.raw() + i * item_size(b.dtype()))) return false;
  return true;
}

void run(const std::string& what, const ModelForm& model) {
  const Bytes file = write(model);
  try {
    const auto wanted = results(file, "scalar");
    for (const walle::InstructionSet& set : walle::instruction_sets()) {
      if (!set.available || !set.exact) continue;
      const auto got = results(file, set.name);
      check::report(got.size() == wanted.size(), __FILE__, __LINE__, what + " returns another number of results");
      for (std::size_t i = 0; i < got.size() && i < wanted.size(); ++i) {
        const auto *one = std::get_if<walle::Tensor>(&got[i]), *other = std::get_if<walle::Tensor>(&wanted[i]);
        check::report(got[i].index() == wanted[i].index() && (one == nullptr || near(*one, *other)), __FILE__, __LINE__,
                      what + " on " + std::string(set.name) + " returns another result " + std::to_string(i));
      }
    }
  } catch (const walle::Error& error) {
    check::report(false, __FILE__, __LINE__, what + ": " + error.what());
  }
}

constexpr DType kFloats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

std::string of(const char* op, DType dtype, std::int64_t size) {
  return std::string(op) + " of " + std::string(dtype_name(dtype)) + ", " + std::to_string(size);
}

void windows(DType t, std::int64_t n) {
  const std::vector<AttributeForm> window{numbers("kernel_shape", {3, 2}), numbers("pads", {1, 0, 2, 1}),
                                          numbers("strides", {2, 1}), numbers("dilations", {1, 2})};
  const ValueForm image = input("x", t, {2, 3, n, n + 2});
  for (const char* op : {"MaxPool", "AveragePool", "LpPool"}) run(of(op, t, n), one_node(op, {image}, window));
  run(of("MaxPool with places", t, n), one_node("MaxPool", {image}, window, 2));
  run(of("Conv", t, n), one_node("Conv", {image, input("w", t, {5, 3, 3, 2}), input("b", t, {5})}, window));
  run(of("Conv in groups", t, n), one_node("Conv", {image, input("w", t, {3, 1, 2, 2})}, {number("group", 3)}));
  run(of("ConvTranspose", t, n),
      one_node("ConvTranspose", {input("x", t, {1, 2, n, 3}), input("w", t, {2, 3, 3, 2})}, {numbers("strides", {2, 1})}));
  run(of("DeformConv", t, n),
      one_node("DeformConv", {input("x", t, {1, 2, n, 4}), input("w", t, {3, 2, 2, 2}), input("offset", t, {1, 8, n - 1, 3})},
               {}));
}

void recurrences(DType t, std::int64_t n) {
  for (const auto& [op, gates] : {std::pair{"RNN", 1}, {"GRU", 3}, {"LSTM", 4}})
    for (const char* algorithm : {"", "decomposed"})
      run(of(op, t, n) + algorithm,
          one_node(op,
                   {input("x", t, {3, 2, 3}), input("w", t, {2, gates * n, 3}), input("r", t, {2, gates * n, n}),
                    input("b", t, {2, 2 * gates * n}), input("lens", DType::i32, {2})},
                   {text("direction", "bidirectional"), text("algorithm", algorithm)}, 2));
}

void images(DType t, std::int64_t n) {
  ModelForm data;
  const ValueForm image = input("x", t, {1, 2, n, 5});
  for (const char* mode : {"nearest", "linear", "cubic"})
    for (const char* padding : {"zeros", "border", "reflection"})
      run(of("GridSample", t, n) + mode + padding,
          one_node("GridSample", {image, input("grid", t, {1, 3, 4, 2})}, {text("mode", mode), text("padding_mode", padding)}));
  const ValueForm sizes = constant<std::int64_t>(data, "sizes", code(DType::i64), {4}, {1, 2, 2 * n + 1, 3}),
                  none = constant<float>(data, "none", 0, {0}, {});
  for (const char* mode : {"nearest", "linear", "cubic"})
    run(of("Resize", t, n) + mode,
        one_node("Resize", {image, none, value("none too", kConstant, 0, {0}), sizes}, {text("mode", mode)}, 1, data.data));
  ModelForm boxes;
  const ValueForm rois = input("rois", t, {2, 4}), which = constant<std::int64_t>(boxes, "which", code(DType::i64), {2}, {0, 0});
  for (const char* mode : {"avg", "max"})
    run(of("RoiAlign", t, n),
        one_node("RoiAlign", {image, rois, which}, {text("mode", mode), number("output_height", 3), number("output_width", 2)}, 1,
                 boxes.data));
}

void orders(DType t, std::int64_t n) {
  ModelForm data;
  const ValueForm axis = constant<std::int64_t>(data, "axis", code(DType::i64), {}, {1}),
                  two = constant<std::int64_t>(data, "two", code(DType::i64), {1}, {2});
  const ValueForm x = input("x", t, {3, n});
  for (const char* op : {"CumSum", "CumProd"})
    run(of(op, t, n), one_node(op, {x, axis}, {number("exclusive", 1), number("reverse", 1)}, 1, data.data));
  if (n >= 2) run(of("TopK", t, n), one_node("TopK", {x, two}, {number("axis", 1)}, 2, data.data));
  run(of("Unique", t, n), one_node("Unique", {x}, {number("axis", 1)}, 4));
  run(of("NonZero", t, n), one_node("NonZero", {x}, {}));
  run(of("Compress", t, n), one_node("Compress", {x, input("which", DType::b8, {3})}, {number("axis", 0)}));
}

void movements(DType t, std::int64_t n) {
  ModelForm data;
  const ValueForm x = input("x", t, {4, n}), rows = constant<std::int64_t>(data, "rows", code(DType::i64), {3, 1}, {3, -4, 1});
  run(of("Gather", t, n), one_node("Gather", {x, rows}, {number("axis", 0)}, 1, data.data));
  run(of("GatherND", t, n), one_node("GatherND", {x, rows}, {}, 1, data.data));
  run(of("ScatterND", t, n), one_node("ScatterND", {x, rows, input("updates", t, {3, n})}, {}, 1, data.data));
  if (n > 0)
    run(of("ScatterElements", t, n), one_node("ScatterElements", {x, rows, input("updates", t, {3, 1})},
                                              {number("axis", 0), text("reduction", "max")}, 1, data.data));
  // Indices that are known only at run time make indexed rasters.
  run(of("Gather at run time", t, n), one_node("Gather", {x, input("rows", DType::i32, {2, 2})}, {number("axis", 0)}));
}

void quantised(std::int64_t n) {
  for (const DType t : {DType::u8, DType::i8}) {
    ModelForm data;
    const ValueForm scale = constant<float>(data, "scale", 0, {}, {0.25f}), zero = value("zero", kConstant, code(t), {});
    ValueForm point = constant<std::uint8_t>(data, "point", code(t), {}, {3});
    run(of("QuantizeLinear", t, n), one_node("QuantizeLinear", {input("x", DType::f32, {3, n}), scale, point}, {}, 1, data.data));
    run(of("DequantizeLinear", t, n), one_node("DequantizeLinear", {input("x", t, {3, n}), scale, point}, {}, 1, data.data));
    run(of("MatMulInteger", t, n),
        one_node("MatMulInteger", {input("a", t, {3, n}), input("b", t, {n, 5}), point}, {}, 1, data.data));
    run(of("ConvInteger", t, n),
        one_node("ConvInteger", {input("x", t, {1, 2, n + 2, 4}), input("w", t, {3, 2, 3, 2}), point}, {}, 1, data.data));
    const auto again = [](ValueForm form, const char* name) {
      form.name = name;
      return form;
    };
    run(of("QLinearMatMul", t, n), one_node("QLinearMatMul",
                                            {input("a", t, {3, n}), scale, point, input("b", t, {n, 5}), again(scale, "scale b"),
                                             again(point, "point b"), again(scale, "scale y"), again(point, "point y")},
                                            {}, 1, data.data));
  }
  run(of("DynamicQuantizeLinear", DType::f32, n), one_node("DynamicQuantizeLinear", {input("x", DType::f32, {3, n + 1})}, {}, 3));
}

void casts(std::int64_t n) {
  for (int from = 0; from < walle::kModelDTypeCount; ++from)
    for (int to = 0; to < walle::kModelDTypeCount; ++to) {
      const auto target = static_cast<DType>(to);
      run(of("Cast", static_cast<DType>(from), n) + " to " + std::string(dtype_name(target)),
          one_node("Cast", {input("x", static_cast<DType>(from), {n, 3})},
                   {text("to", std::string(dtype_name(target)).c_str())}));
    }
}

// A loop with a branch, a scan, and a path through a sequence.
void flows(std::int64_t n) {
  const std::uint8_t f32 = code(DType::f32), i64 = code(DType::i64), b8 = code(DType::b8);
  GraphForm branch;
  branch.values = {outer("x", 2), value("y", kResult)};
  branch.nodes = {{"Neg", "turn", {0}, {1}, {}}};
  branch.outputs = {{"y", 1}};
  GraphForm round;
  round.values = {value("i", kInput, i64), value("go", kInput, b8), value("x", kInput, f32, {n, 2}), value("again", kResult),
                  value("next", kResult)};
  round.nodes = {{"Identity", "again", {1}, {3}, {}},
                 {"If", "branch", {1}, {4}, {body("then_branch", branch), body("else_branch", branch)}}};
  round.outputs = {{"again", 3}, {"next", 4}, {"seen", 4}};
  ModelForm loop;
  const ValueForm three = constant<std::int64_t>(loop, "three", i64, {}, {3});
  loop = one_node("Loop", {three, input("x", DType::f32, {n, 2})}, {body("body", round)}, 2, loop.data);
  loop.graph.nodes[0].inputs = {0, kLeftOut, 1};
  run("Loop of " + std::to_string(n), loop);

  GraphForm step;
  step.values = {value("state", kInput, f32, {2}), value("row", kInput, f32, {2}), value("sum", kResult), value("out", kResult)};
  step.nodes = {{"Add", "add", {0, 1}, {2}, {}}, {"Identity", "show", {2}, {3}, {}}};
  step.outputs = {{"sum", 2}, {"out", 3}};
  run("Scan of " + std::to_string(n), one_node("Scan", {input("state", DType::f32, {2}), input("rows", DType::f32, {n, 2})},
                                               {body("body", step), number("num_scan_inputs", 1)}, 2));

  ModelForm sequence;
  sequence.graph.values = {input("x", DType::f32, {n, 2}), value("parts", kResult), value("longer", kResult),
                           value("joined", kResult), value("count", kResult)};
  sequence.graph.nodes = {{"SplitToSequence", "split", {0}, {1}, {number("axis", 0)}},
                          {"SequenceInsert", "insert", {1, 0}, {2}, {}},
                          {"ConcatFromSequence", "join", {2}, {3}, {number("axis", 0)}},
                          {"SequenceLength", "count", {2}, {4}, {}}};
  sequence.graph.outputs = {{"joined", 3}, {"count", 4}};
  run("a sequence of " + std::to_string(n), sequence);
}

}  // namespace

int main() {
  for (const DType t : kFloats)
    for (const std::int64_t n : {4, 7}) {
      windows(t, n);
      images(t, n);
    }
  for (const DType t : {DType::f32, DType::f64})
    for (const std::int64_t n : {1, 5, 17}) recurrences(t, n);
  for (int t = 0; t <= static_cast<int>(DType::u64); ++t)
    for (const std::int64_t n : {0, 1, 9}) {
      orders(static_cast<DType>(t), n);
      movements(static_cast<DType>(t), n);
    }
  for (const std::int64_t n : {1, 7}) quantised(n);
  for (const std::int64_t n : {0, 5, 17}) {
    casts(n);
    flows(n);
  }
  return check::failures != 0;
}
