#include "search/layer_features.h"

#include <array>
#include <cmath>
#include <string_view>

namespace walle {

namespace {

// The numbers of a layer from which its features are computed.
enum Base : std::size_t { kK, kC, kIm, kS, kF, kOut, kBases };
constexpr std::array<std::string_view, kBases> kBaseNames{"k", "c", "im", "s", "f", "out"};

// A product of powers of the base.
struct Product {
  std::string_view name;
  std::array<int, kBases> powers;
};
constexpr std::array<Product, 7> kProducts{{{"flops", {1, 1, 0, 0, 2, 2}},
                                            {"input elements", {0, 1, 2, 0, 0, 0}},
                                            {"weight elements", {1, 1, 0, 0, 2, 0}},
                                            {"output elements", {1, 0, 0, 0, 0, 2}},
                                            {"im2col elements", {0, 1, 0, 0, 2, 2}},
                                            {"output pixels", {0, 0, 0, 0, 0, 2}},
                                            {"reduction", {0, 1, 0, 0, 2, 0}}}};
constexpr std::size_t kFirstMoved = 1, kLastMoved = 3;  // products that are moved: input, weights, output

struct BaseValue {
  Base base;
  int value;
};
// Tiles: the part of whole tiles that a number fills.
constexpr std::array<BaseValue, 13> kTiles{{{kK, 4},
                                            {kK, 8},
                                            {kK, 16},
                                            {kK, 32},
                                            {kC, 4},
                                            {kC, 8},
                                            {kC, 16},
                                            {kOut, 2},
                                            {kOut, 4},
                                            {kOut, 6},
                                            {kOut, 8},
                                            {kOut, 16},
                                            {kIm, 8}}};
// Flags: 1 where a number has the value.
constexpr std::array<BaseValue, 5> kFlags{{{kF, 1}, {kF, 3}, {kF, 5}, {kS, 1}, {kS, 2}}};

static_assert(kBases + kProducts.size() + 1 + kTiles.size() + kFlags.size() == kLayerFeatures);

std::string name_of(Base base) { return std::string(kBaseNames[base]); }

}  // namespace

std::vector<std::string> layer_feature_names() {
  std::vector<std::string> names;
  for (const std::string_view name : kBaseNames) names.push_back("log " + std::string(name));
  for (const Product& product : kProducts) names.push_back("log " + std::string(product.name));
  names.emplace_back("log bytes");
  for (const auto& [base, tile] : kTiles) names.push_back("log part of " + std::to_string(tile) + "s filled by " + name_of(base));
  for (const auto& [base, value] : kFlags) names.push_back(name_of(base) + " is " + std::to_string(value));
  return names;
}

void layer_features(const ConvLayer& layer, std::span<double, kLayerFeatures> features) noexcept {
  const std::array<double, kBases> base{layer.k, layer.c, layer.im, layer.s, layer.f, std::ceil(layer.im / layer.s)};
  std::size_t at = 0;
  for (const double number : base) features[at++] = std::log(number);
  double moved = 0;
  for (std::size_t i = 0; i < kProducts.size(); ++i) {
    double sum = 0;
    for (std::size_t number = 0; number < kBases; ++number) sum += features[number] * kProducts[i].powers[number];
    features[at++] = sum;
    if (i >= kFirstMoved && i <= kLastMoved) moved += std::exp(sum);
  }
  features[at++] = std::log(moved);
  for (const auto& [number, tile] : kTiles) {
    const double whole = std::ceil(base[number] / tile) * tile;
    features[at++] = whole == base[number] ? 0 : std::log(base[number] / whole);
  }
  for (const auto& [number, value] : kFlags) features[at++] = base[number] == value ? 1 : 0;
}

}  // namespace walle
