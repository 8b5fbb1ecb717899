#include "search/performance_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "core/error.h"

namespace walle {

namespace {

constexpr std::string_view kModelMagic = "walle performance model 1\n";
constexpr std::size_t kMostLayers = 16, kMostWidth = 4096, kMostPrimitives = 256;
constexpr std::array<double ConvLayer::*, 5> kLayerNumbers{&ConvLayer::k, &ConvLayer::c, &ConvLayer::im, &ConvLayer::s,
                                                           &ConvLayer::f};

[[noreturn]] void refuse_model(const std::string& reason) {
  throw Error(ErrorKind::backend, "the performance model cannot be used: " + reason + "; calibrate again");
}

// Reads little-endian numbers. Throws Error where bytes are missing.
class ModelReader {
 public:
  explicit ModelReader(std::string_view bytes) : rest_(bytes) {}

  std::string_view text(std::size_t size) {
    if (size > rest_.size()) refuse_model("it is cut off");
    const std::string_view found = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return found;
  }
  template <class T>
  std::vector<T> numbers(std::size_t count) {
    if (count > rest_.size() / sizeof(T)) refuse_model("it is cut off");
    std::vector<T> found(count);
    if (count > 0) std::memcpy(found.data(), text(count * sizeof(T)).data(), count * sizeof(T));
    if constexpr (std::is_floating_point_v<T>)
      if (!std::all_of(found.begin(), found.end(), [](T number) { return std::isfinite(number); }))
        refuse_model("it has a number that is not finite");
    return found;
  }
  // Return a number from 1 to `most`.
  std::size_t size(const char* what, std::size_t most) {
    const std::uint32_t found = numbers<std::uint32_t>(1)[0];
    if (found < 1 || found > most)
      refuse_model("it has " + std::to_string(found) + " " + what + "; 1 to " + std::to_string(most) + " are supported");
    return found;
  }
  bool at_end() const noexcept { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace

PerformanceModel::PerformanceModel(std::string_view bytes) : bytes_(bytes) {
  ModelReader reader(bytes);
  if (!bytes.starts_with(kModelMagic)) refuse_model("its format is another one");
  reader.text(kModelMagic.size());
  if (const std::size_t features = reader.size("features", kMostWidth); features != kLayerFeatures)
    refuse_model("it has " + std::to_string(features) + " features, and this engine " + std::to_string(kLayerFeatures));
  const std::size_t layer_count = reader.size("layers", kMostLayers);
  std::vector<std::size_t> widths{kLayerFeatures};
  for (std::size_t i = 0; i < layer_count; ++i) widths.push_back(reader.size("numbers in a layer", kMostWidth));
  if (widths.back() > kMostPrimitives) refuse_model("it has " + std::to_string(widths.back()) + " primitives");
  for (ConvLayer* limit : {&least_, &most_}) {
    const std::vector<double> numbers = reader.numbers<double>(kLayerNumbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) (*limit).*kLayerNumbers[i] = numbers[i];
  }
  for (std::size_t i = 0; i < widths.back(); ++i) primitives_.emplace_back(reader.text(reader.numbers<std::uint8_t>(1)[0]));
  if (std::set(primitives_.begin(), primitives_.end()).size() != primitives_.size())
    refuse_model("two of its primitives have one name");
  mean_ = reader.numbers<double>(kLayerFeatures);
  factor_ = reader.numbers<double>(kLayerFeatures);
  linear_ = {kLayerFeatures, widths.back(), reader.numbers<float>(kLayerFeatures * widths.back()),
             reader.numbers<float>(widths.back())};
  for (std::size_t i = 0; i < layer_count; ++i) {
    Dense layer{widths[i], widths[i + 1], {}, {}};
    const std::vector<float> steps = reader.numbers<float>(layer.columns);
    const std::vector<std::int8_t> multiples = reader.numbers<std::int8_t>(layer.rows * layer.columns);
    layer.weight.reserve(multiples.size());
    for (std::size_t at = 0; at < multiples.size(); ++at)
      layer.weight.push_back(static_cast<float>(multiples[at]) * steps[at % layer.columns]);
    layer.bias = reader.numbers<float>(layer.columns);
    layers_.push_back(std::move(layer));
  }
  if (!reader.at_end()) refuse_model("it has bytes after its end");
}

bool PerformanceModel::covers(const ConvLayer& layer) const noexcept {
  return std::all_of(kLayerNumbers.begin(), kLayerNumbers.end(), [&](double ConvLayer::* number) {
    return layer.*number >= least_.*number && layer.*number <= most_.*number;
  });
}

void PerformanceModel::Dense::add_product(const std::vector<float>& x, std::size_t count, std::vector<float>& out) const {
  for (std::size_t i = 0; i < count; ++i) {
    float* sums = out.data() + i * columns;
    for (std::size_t k = 0; k < rows; ++k) {
      const float factor = x[i * rows + k];
      if (factor == 0) continue;  // half of what a ReLU gives
      const float* row = weight.data() + k * columns;
      for (std::size_t j = 0; j < columns; ++j) sums[j] += factor * row[j];
    }
  }
}

std::vector<float> PerformanceModel::predict(std::span<const ConvLayer> layers) const {
  constexpr float kMostLog = 30;      // 10^13 us
  constexpr double kMostInput = 1e6;  // far beyond any sample's
  const std::size_t count = layers.size();
  std::vector<float> inputs;
  inputs.reserve(count * kLayerFeatures);
  std::array<double, kLayerFeatures> features;
  for (const ConvLayer& layer : layers) {
    layer_features(layer, features);
    for (std::size_t i = 0; i < kLayerFeatures; ++i)
      inputs.push_back(static_cast<float>(std::clamp((features[i] - mean_[i]) * factor_[i], -kMostInput, kMostInput)));
  }
  const auto biases = [&](const Dense& layer) {
    std::vector<float> sums;
    sums.reserve(count * layer.columns);
    for (std::size_t i = 0; i < count; ++i) sums.insert(sums.end(), layer.bias.begin(), layer.bias.end());
    return sums;
  };
  std::vector<float> hidden = inputs;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    std::vector<float> sums = biases(layers_[i]);
    layers_[i].add_product(hidden, count, sums);
    if (i + 1 < layers_.size())
      for (float& sum : sums) sum = std::max(sum, 0.0f);
    hidden = std::move(sums);
  }
  std::vector<float> logs = biases(linear_);
  linear_.add_product(inputs, count, logs);
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const float log = logs[i] + hidden[i];
    logs[i] = std::abs(log) <= kMostLog ? std::exp(log) : std::numeric_limits<float>::quiet_NaN();
  }
  return logs;
}

}  // namespace walle
