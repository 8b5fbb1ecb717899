// Tests of every raster algorithm on every instruction set of this CPU, compared with the scalar raster, in buffers of exactly
// the needed size.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>

#include "atomic/raster_step.h"
#include "check.h"
#include "geometry/raster.h"

using namespace walle;

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

struct Case {
  std::vector<Region> regions;
  std::vector<Layout> sources;
  TensorType result;
};

Layout plain(DType dtype, Dims shape, const Tensor* constant = nullptr) {
  Dims strides = contiguous_strides(shape);
  return {dtype, std::move(shape), std::move(strides), constant, false};
}

// Runs a case and returns the algorithm's name; elements that no region writes must be unchanged.
std::string compare(const Case& one, const Table& table) {
  const std::size_t item = item_size(one.result.dtype);
  std::vector<std::vector<std::byte>> sources;
  std::vector<std::byte*> addresses;
  std::uint8_t next = 1;
  for (const Layout& source : one.sources) {
    sources.emplace_back(at(element_count(source.shape)) * item);
    for (std::size_t i = 0; i < sources.back().size(); ++i)
      sources.back()[i] = source.constant != nullptr ? source.constant->raw()[i]
                                                     : static_cast<std::byte>(next = static_cast<std::uint8_t>(next * 5 + 3));
  }
  for (auto& source : sources) addresses.push_back(source.data());
  std::vector<std::byte> expected(at(element_count(one.result.shape)) * item, std::byte{0x5a}), found = expected;
  for (const Region& region : one.regions) raster(region, addresses[at(region.source)], expected.data(), item);
  const auto step = make_raster_step(one.regions, one.sources, one.result, table);
  step->run(addresses.data(), found.data(), nullptr);
  CHECK(found == expected);
  return std::string(step->algorithm());
}

// A transposition of random axes, or a box of one.
Case random_transpose(std::mt19937_64& random) {
  constexpr DType kTypes[] = {DType::f32, DType::f32, DType::i32, DType::u8, DType::i16, DType::i64};
  const DType dtype = kTypes[check::whole(random, 0, 5)];
  Dims shape(at(check::whole(random, 1, 4)));
  for (auto& dim : shape) dim = check::whole(random, 0, 2) ? check::whole(random, 1, 6) : check::whole(random, 7, 40);
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  const Dims strides = contiguous_strides(shape);
  Dims size, src_stride, all;
  for (const std::size_t axis : order) {
    all.push_back(shape[axis]);
    size.push_back(check::whole(random, 0, 3) ? shape[axis] : check::whole(random, 1, shape[axis]));
    src_stride.push_back(check::whole(random, 0, 9) ? strides[axis] : 0);
  }
  const std::int64_t count = element_count(shape);
  return {{Region::make(0, size, src_stride, 0, contiguous_strides(all), 0, count, count)}, {plain(dtype, shape)}, {dtype, all}};
}

// Conversion from plain to packed layout or back; unused lanes of the last block are zero.
Case random_packing(std::mt19937_64& random, std::int64_t pack, const Tensor& zero, bool there) {
  const std::int64_t channels = check::whole(random, 1, 40), pixels = check::whole(random, 1, 50);
  const std::int64_t blocks = (channels + pack - 1) / pack, whole = channels / pack, rest = channels % pack;
  const std::int64_t packed = blocks * pixels * pack, count = channels * pixels;
  Case one;
  const auto add = [&](const Dims& size, const Dims& in_plain, std::int64_t from, const Dims& in_packed, std::int64_t to) {
    one.regions.push_back(there ? Region::make(0, size, in_plain, from, in_packed, to, count, packed)
                                : Region::make(0, size, in_packed, to, in_plain, from, packed, count));
  };
  if (whole > 0) add({whole, pixels, pack}, {pack * pixels, 1, pixels}, 0, {pixels * pack, pack, 1}, 0);
  if (rest > 0) add({pixels, rest}, {1, pixels}, whole * pack * pixels, {pack, 1}, whole * pixels * pack);
  if (there && rest > 0)
    one.regions.push_back(
        Region::make(1, Dims{pixels, pack - rest}, Dims{0, 0}, 0, Dims{pack, 1}, whole * pixels * pack + rest, 1, packed));
  one.sources = {plain(DType::f32, there ? Dims{1, channels, pixels} : Dims{1, blocks, pixels, pack}),
                 plain(DType::f32, {1}, &zero)};
  one.result = {DType::f32, there ? Dims{1, blocks, pixels, pack} : Dims{1, channels, pixels}};
  return one;
}

// Random channels of one or two packed sources in random order; some lanes are zero, some not written.
Case random_lanes(std::mt19937_64& random, std::int64_t pack, const Tensor& zero) {
  const std::int64_t pixels = check::whole(random, 1, 20), blocks = check::whole(random, 1, 4);
  const std::int64_t plane = pixels * pack;
  Case one;
  std::vector<std::int64_t> blocks_of;
  for (std::int64_t i = check::whole(random, 1, 2); i > 0; --i) {
    blocks_of.push_back(check::whole(random, 1, 4));
    one.sources.push_back(plain(DType::f32, {1, blocks_of.back(), 1, pixels, pack}));
  }
  one.sources.push_back(plain(DType::f32, {1}, &zero));
  one.result = {DType::f32, {1, blocks, 1, pixels, pack}};
  const auto place = [&](std::int64_t channel) { return channel / pack * plane + channel % pack; };
  const std::int64_t whole = blocks * plane, channels = blocks * pack;
  const auto fill = static_cast<int>(one.sources.size() - 1);
  for (std::int64_t to = 0; to < channels;) {
    const std::int64_t run = std::min(check::whole(random, 1, 2 * pack), channels - to);
    const auto source = static_cast<int>(check::whole(random, 0, fill));
    if (check::whole(random, 0, 9) > 0)
      for (std::int64_t i = 0; i < run; ++i) {
        const std::int64_t extent = source == fill ? 1 : blocks_of[at(source)] * plane;
        const std::int64_t from =
            source == fill ? 0 : place((to * 7 + i * check::whole(random, 1, 2)) % (blocks_of[at(source)] * pack));
        one.regions.push_back(
            Region::make(source, Dims{pixels}, Dims{source == fill ? 0 : pack}, from, Dims{pack}, place(to + i), extent, whole));
      }
    to += run;
  }
  // Whole blocks side by side, as one region.
  if (blocks_of[0] >= blocks && check::whole(random, 0, 5) == 0)
    one.regions = {
        Region::make(0, Dims{blocks * pixels, pack - 1}, Dims{pack, 1}, 1, Dims{pack, 1}, 0, blocks_of[0] * plane, whole)};
  return one;
}

}  // namespace

int main() {
  std::mt19937_64 random(11);
  Tensor zero = Tensor::empty(DType::f32, {1});
  zero.data<float>()[0] = 0;
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Table& table = kernels(set.name);
    std::map<std::string, int> ran;
    for (int round = 0; round < check::rounds(4000) && check::failures < 5; ++round) {
      ++ran[compare(random_transpose(random), table)];
      ++ran[compare(random_packing(random, table.pack, zero, true), table)];
      ++ran[compare(random_packing(random, table.pack, zero, false), table)];
      ++ran[compare(random_lanes(random, table.pack, zero), table)];
    }
    std::string report(set.name);
    for (const auto& [name, count] : ran) report += " " + name + " " + std::to_string(count);
    std::printf("%s\n", report.c_str());
    for (const char* name : {"copy", "lanes", "rows", "strided", "transpose"}) CHECK(ran[name] > check::rounds(100));
  }
  return check::failures != 0;
}
