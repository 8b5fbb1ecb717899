// Convolution in groups whose channels fill no whole blocks of a packed layout: as many groups as do fill them become one, whose
// weights are 0 between different groups, and the algorithms of whole blocks compute it.
#include <algorithm>

#include "atomic/packed_convolution.h"

namespace walle {

namespace {

// What the plain algorithms take for each multiplication of a group, in those of the tile kernel: they gather the input for as
// few rows of weights as a group has output channels, about as dear as this many rows more (fitted by hand).
constexpr std::int64_t kGatheredRows = 24;

// How many groups become one; 0: none do.
std::int64_t together(const PackedConv& conv) {
  const ConvShape& shape = conv.shape;
  if (shape.groups == 1 || conv.plain_input) return 0;
  const auto whole = [&](std::int64_t groups) {
    return groups == shape.groups ||
           (groups * shape.in_channels % conv.pack() == 0 && groups * shape.out_channels % conv.pack() == 0);
  };
  if (whole(1)) return 0;
  const std::int64_t most = 1 + kGatheredRows / std::max<std::int64_t>(1, shape.out_channels);
  for (std::int64_t groups = 2; groups <= std::min(most, shape.groups); ++groups)
    if (shape.groups % groups == 0 && whole(groups)) return groups;
  return 0;
}

PackedConv merged(PackedConv conv) {
  const std::int64_t groups = together(conv);
  conv.shape.groups /= groups;
  conv.shape.in_channels *= groups;
  conv.shape.out_channels *= groups;
  return conv;
}

// A parameter is Winograd's unit; 0: none, but direct.
const PackedAlgorithm& inner(std::int64_t parameter) { return parameter == 0 ? kPackedTiles : kPackedWinograd; }

std::vector<std::int64_t> groups_parameters(const PackedConv& conv) {
  if (together(conv) == 0) return {};
  std::vector<std::int64_t> parameters = kPackedTiles.parameters(merged(conv));
  for (const std::int64_t unit : kPackedWinograd.parameters(merged(conv))) parameters.push_back(unit);
  return parameters;
}

Work groups_work(const PackedConv& conv, std::int64_t parameter) { return inner(parameter).work(merged(conv), parameter); }

Tensor groups_pack(const PackedConv& conv, std::int64_t parameter, const float* w) {
  const std::int64_t groups = together(conv), taps = conv.shape.window.taps(), row = conv.shape.in_channels * taps;
  std::vector<float> spread(static_cast<std::size_t>(conv.channels_out() * groups * row), 0.0f);
  for (std::int64_t channel = 0; channel < conv.channels_out(); ++channel) {
    const std::int64_t place = channel / conv.shape.out_channels % groups;
    std::copy_n(w + channel * row, row, spread.data() + (channel * groups + place) * row);
  }
  return inner(parameter).pack(merged(conv), parameter, spread.data());
}

std::unique_ptr<Step> groups_make(const PackedConv& conv, std::int64_t parameter, float low, float high) {
  return inner(parameter).make(merged(conv), parameter, low, high);
}

}  // namespace

const PackedAlgorithm kPackedGroups{"merged groups", &groups_parameters, &groups_work, &groups_pack, &groups_make};

}  // namespace walle
