// Tests of performance models: predictions by hand, and bytes that are cut or changed anywhere.
#include "search/performance_model.h"

#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "search/model_registry.h"

using namespace walle;

namespace {

template <class T>
void append(std::string& bytes, T number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof raw);
}

// Two layers and two primitives. The first hidden number is 2 * relu(features[0]), the second 0.
std::string small_model() {
  std::string bytes = "walle performance model 1\n";
  for (const std::uint32_t size : {32u, 2u, 2u, 2u}) append(bytes, size);
  for (int number = 0; number < 5; ++number) append(bytes, 1.0);
  for (int number = 0; number < 5; ++number) append(bytes, 64.0);
  for (const std::string name : {"direct(0)", "pack"}) bytes += static_cast<char>(name.size()) + name;
  for (std::size_t i = 0; i < kLayerFeatures; ++i) append(bytes, 0.0);                       // mean
  for (std::size_t i = 0; i < kLayerFeatures; ++i) append(bytes, 1.0);                       // factor
  for (std::size_t i = 0; i < 2 * kLayerFeatures; ++i) append(bytes, i == 3 ? 1.0f : 0.0f);  // features[1] → pack
  append(bytes, 0.5f);
  append(bytes, -0.5f);
  append(bytes, 0.5f);  // steps
  append(bytes, 1.0f);
  for (std::size_t i = 0; i < 2 * kLayerFeatures; ++i) bytes += static_cast<char>(i == 0 ? 4 : 0);
  append(bytes, 0.0f);
  append(bytes, -1.0f);
  append(bytes, 0.25f);
  append(bytes, 0.25f);
  for (const char multiple : {2, 0, 1, 1}) bytes += multiple;
  append(bytes, 0.0f);
  append(bytes, 0.0f);
  return bytes;
}

void predictions_are_those_of_the_definition() {
  const PerformanceModel model(small_model());
  CHECK(model.primitives() == (std::vector<std::string>{"direct(0)", "pack"}));
  const std::vector<ConvLayer> layers{{8, 3, 7, 1, 1}, {1, 5, 7, 2, 3}};
  const std::vector<float> us = model.predict(layers);
  CHECK(us.size() == 4);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    CHECK(std::abs(std::log(us[2 * i]) - (0.5 + 0.5 * 2 * std::log(layers[i].k))) < 1e-5);
    CHECK(std::abs(std::log(us[2 * i + 1]) - (-0.5 + std::log(layers[i].c))) < 1e-5);
  }
  CHECK(model.predict({}).empty());
  CHECK(model.covers({64, 64, 64, 64, 64}));
  CHECK(!model.covers({65, 64, 64, 64, 64}) && !model.covers({1, 1, 1, 1, 65}));
}

// Bytes either give a model that predicts something, or an Error.
void try_bytes(const std::string& bytes) {
  try {
    const PerformanceModel model(bytes);
    const std::vector<ConvLayer> layers{{8, 3, 7, 1, 1}};
    CHECK(model.predict(layers).size() == model.primitives().size());
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::backend);
  }
}

void changed_bytes_do_no_harm() {
  const std::string bytes = small_model();
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK_ERROR(PerformanceModel(bytes.substr(0, size)), backend);
  std::mt19937 draw(1);
  for (int round = 0; round < check::rounds(20'000); ++round) {
    std::string changed = bytes;
    for (int i = 0; i < 3; ++i) changed[draw() % changed.size()] = static_cast<char>(draw());
    try_bytes(changed);
  }
}

void a_model_is_kept_for_its_instruction_set() {
  CHECK(performance_model("avx2") == nullptr);
  set_performance_model("avx2", std::make_shared<const PerformanceModel>(small_model()));
  CHECK(performance_model("avx2")->bytes() == small_model() && performance_model("scalar") == nullptr);
  set_performance_model("avx2", nullptr);
  CHECK(performance_model("avx2") == nullptr);
}

}  // namespace

int main() {
  predictions_are_those_of_the_definition();
  changed_bytes_do_no_harm();
  a_model_is_kept_for_its_instruction_set();
  return check::failures == 0 ? 0 : 1;
}
