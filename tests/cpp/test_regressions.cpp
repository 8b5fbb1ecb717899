// Regression tests of the model reader, planner and kernels: models that the fuzzer found, and hostile models written by hand.
// Meant for sanitized builds.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "attempt.h"
#include "check.h"
#include "core/truncate.h"
#include "form_parts.h"

// A request for more memory than exists must throw std::bad_alloc under the sanitizer too.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace {

using namespace fuzz;

constexpr std::uint8_t kF32 = 0, kI64 = 7, kB8 = 12;

ModelForm gather(std::vector<std::int64_t> plain_stride) {
  return one_node("IndexedGather", {value("x", kInput, kF32, {4, 3}), value("i", kInput, kI64, {2})},
                  {numbers("size", {2, 3}), numbers("indexed_stride", {0, 1}), numbers("plain_stride", std::move(plain_stride)),
                   numbers("index_stride", {1, 0}), numbers("offsets", {0, 0, 0, 0}), numbers("weight", {3}),
                   numbers("extent", {4}), numbers("shape", {2, 3})});
}

// A Loop whose body always returns "continue".
ModelForm endless() {
  GraphForm round;
  round.values = {value("i", kInput, kI64), value("go", kInput, kB8), value("x", kInput, kF32, {2}), value("again", kResult),
                  value("next", kResult)};
  round.nodes = {{"Identity", "go on", {1}, {3}, {}}, {"Neg", "turn", {2}, {4}, {}}};
  round.outputs = {{"again", 3}, {"next", 4}};
  ModelForm model = one_node("Loop", {value("x", kInput, kF32, {2})}, {body("body", round)});
  model.graph.nodes[0].inputs = {kLeftOut, kLeftOut, 0};
  return model;
}

GraphForm nested(int depth) {
  GraphForm graph;
  graph.values = {value("v", kResult)};
  if (depth > 0)
    graph.nodes = {{"If", "deeper", {0}, {0}, {body("then_branch", nested(depth - 1))}}};
  else
    graph.nodes = {{"SequenceEmpty", "end", {}, {0}, {}}};
  graph.outputs = {{"v", 0}};
  return graph;
}

bool runs(const ModelForm& model) { return attempt(write(model)) == Outcome::ran; }
bool refused(const ModelForm& model) { return attempt(write(model)) == Outcome::refused; }

void hostile() {
  CHECK(runs(gather({3, 1})));
  CHECK(refused(gather({0, 1})));  // most of the result would be uninitialised
  CHECK(refused(gather({3, 2})));  // the result would be written out of bounds
  CHECK(refused(gather({1, 1})));
  CHECK(attempt(write(endless())) != Outcome::ran);  // stopped at the iteration limit of the attempt
  ModelForm deep;
  deep.graph = nested(17);
  CHECK(refused(deep));
  const auto pads = [](std::int64_t by) { return one_node("Pad", {value("x", kInput, kF32, {2})}, {numbers("pads", {by, by})}); };
  CHECK(runs(pads(3)));
  CHECK(refused(pads(INT64_MIN)));
  CHECK(refused(pads(std::int64_t{1} << 39)));  // more than the machine's memory
  CHECK(refused(one_node("Abs", {value("x", kInput, kF32, {0, std::int64_t{1} << 47})}, {})));
  CHECK(refused(one_node("Unsqueeze", {value("x", kInput, kF32, {1})}, {numbers("axes", [] {
                           std::vector<std::int64_t> axes(1000);
                           for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<std::int64_t>(i);
                           return axes;
                         }())})));
  ModelForm subgraph = one_node("Abs", {value("x", kInput, kF32, {1})}, {body("body", nested(0))});
  CHECK(refused(subgraph));  // Abs has no attributes
  ModelForm many = one_node("Abs", {value("x", kInput, kF32, {1})}, {});
  for (int i = 0; i < 300; ++i) many.graph.nodes[0].attributes.push_back(numbers("a" + std::to_string(i), {}));
  CHECK(refused(many));
  ModelForm named = one_node("Abs", {value("x", kInput, kF32, {1})}, {});
  named.graph.values[0].name.assign(5000, 'x');
  CHECK(refused(named));
}

void fuzzer_findings() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(WALLE_REGRESSIONS)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  CHECK(!files.empty());
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    Bytes bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    CHECK(!bytes.empty());
    seal(bytes);
    attempt(bytes);
  }
  std::printf("%zu models found by the fuzzer\n", files.size());
}

void truncation() {
  using walle::truncate_to_int64;
  CHECK(truncate_to_int64(-2.9) == -2);
  CHECK(truncate_to_int64(1e300) == std::int64_t{1} << 60);
  CHECK(truncate_to_int64(-INFINITY) == -(std::int64_t{1} << 60));
  CHECK(truncate_to_int64(NAN) == 0);
}

}  // namespace

int main() {
  truncation();
  hostile();
  fuzzer_findings();
  return check::failures != 0;
}
