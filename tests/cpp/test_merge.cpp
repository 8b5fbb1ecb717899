// Tests of vertical merging, compared with running both rasters.
#include <algorithm>

#include "check.h"
#include "geometry/merge.h"
#include "geometry/raster.h"
#include "geometry/transform/transform.h"

using namespace walle;

namespace {

const Transform& transform(std::string_view name) {
  const auto all = transforms();
  return *std::find_if(all.begin(), all.end(), [&](const Transform& t) { return t.name == name; });
}

struct Stage {
  std::vector<Movement> movements;
  std::vector<Dims> sources;
};

// Returns a random transform of an int32 tensor of the given shape; Concat and Stack take the tensor twice.
Stage random_stage(std::mt19937_64& random, const Dims& shape) {
  const std::size_t rank = shape.size();
  const Operand operand{DType::i32, shape, nullptr, false};
  const auto axis = static_cast<std::size_t>(check::whole(random, 0, static_cast<std::int64_t>(rank) - 1));
  const auto made = [&](std::string_view name, Attributes attributes, int sources, int outputs) {
    const std::vector<Operand> operands(static_cast<std::size_t>(sources), operand);
    return Stage{transform(name).make(operands, attributes, outputs),
                 std::vector<Dims>(static_cast<std::size_t>(sources), shape)};
  };
  switch (check::whole(random, 0, 7)) {
    case 0: {
      Dims order(rank);
      for (std::size_t i = 0; i < rank; ++i) order[i] = static_cast<std::int64_t>(i);
      std::shuffle(order.begin(), order.end(), random);
      return made("Transpose", {{"perm", order}}, 1, 1);
    }
    case 1: {  // another factorisation of the same count
      std::int64_t rest = element_count(shape);
      Dims to;
      for (const std::int64_t factor : {2, 3, 5})
        if (rest % factor == 0 && check::whole(random, 0, 1) == 0) {
          to.push_back(factor);
          rest /= factor;
        }
      to.push_back(rest);
      std::shuffle(to.begin(), to.end(), random);
      return made("Reshape", {{"shape", to}}, 1, 1);
    }
    case 2: {
      const std::int64_t step = check::whole(random, 0, 1) ? check::whole(random, 1, 3) : -check::whole(random, 1, 3);
      const std::int64_t a = check::whole(random, 0, shape[axis] - 1), b = check::whole(random, 0, shape[axis] - 1);
      const Dims start{step > 0 ? std::min(a, b) : std::max(a, b)};
      const Dims end{step > 0 ? std::max(a, b) + 1 : (std::min(a, b) == 0 ? INT64_MIN : std::min(a, b) - 1)};
      return made("Slice",
                  {{"starts", start}, {"ends", end}, {"axes", Dims{static_cast<std::int64_t>(axis)}}, {"steps", Dims{step}}}, 1,
                  1);
    }
    case 3: return made("Concat", {{"axis", static_cast<std::int64_t>(axis)}}, 2, 1);
    case 4: return made("Stack", {{"axis", static_cast<std::int64_t>(axis)}}, 2, 1);
    case 5: {
      Dims repeats(rank, 1);
      repeats[axis] = 2;
      return made("Tile", {{"repeats", repeats}}, 1, 1);
    }
    case 6: {
      Dims wide = shape;
      wide.insert(wide.begin(), 2);
      return made("Expand", {{"shape", wide}}, 1, 1);
    }
    default: {
      Dims pads(2 * rank, 0);
      pads[axis] = 1;
      pads[axis + rank] = check::whole(random, -1, 2);
      if (shape[axis] + pads[axis] + pads[axis + rank] < 1 || shape[axis] < 2) pads[axis + rank] = 0;
      return made("Pad", {{"pads", pads}}, 1, 1);
    }
  }
}

std::vector<std::int32_t> run(const Movement& movement, const std::vector<Region>& regions,
                              const std::vector<std::vector<std::int32_t>>& sources) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(element_count(movement.shape)), -7);
  const std::int32_t fill = 0;
  for (const Region& region : regions) {
    const auto* from = region.source == Movement::kFill ? &fill : sources[static_cast<std::size_t>(region.source)].data();
    raster(region, reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(result.data()), 4);
  }
  return result;
}

// Merges a chain of random transforms as a program is merged: every region reads the origin of its source, where they compose.
// Values are numbered: 0 and 1 are the inputs of the chain, then one for each stage; the source of a region is the number of the
// value that it reads.
void check_chain(std::mt19937_64& random, int& straight) {
  struct Link {
    Movement movement;
    std::vector<Region> regions;
  };
  Dims shape(static_cast<std::size_t>(check::whole(random, 1, 3)));
  for (auto& dim : shape) dim = check::whole(random, 1, 5);
  std::vector<std::vector<std::int32_t>> values(2, std::vector<std::int32_t>(static_cast<std::size_t>(element_count(shape))));
  std::int32_t next = 1;
  for (auto& value : values)
    for (auto& element : value) element = next++;
  std::vector<Link> chain;
  const std::int64_t length = check::whole(random, 2, 9);
  for (std::int64_t stage = 0; stage < length && element_count(shape) > 0 && !shape.empty(); ++stage) {
    Movement movement = random_stage(random, shape).movements[0];
    if (element_count(movement.shape) > 4000) break;
    // The first stage may read both inputs; a later one reads the value before it, twice if it takes two.
    for (Region& region : movement.regions)
      if (region.source != Movement::kFill) region.source = stage == 0 ? region.source : static_cast<int>(stage) + 1;
    values.push_back(run(movement, movement.regions, values));
    std::vector<Region> merged;
    for (const Region& region : movement.regions) {
      const int producer = region.source - 2;
      const auto pieces = producer < 0 ? std::nullopt : compose(region, chain[static_cast<std::size_t>(producer)].regions);
      if (pieces && pieces->size() < 64)
        merged.insert(merged.end(), pieces->begin(), pieces->end());
      else
        merged.push_back(region);
    }
    CHECK(run(movement, merged, values) == values.back());
    straight += stage > 1 && std::all_of(merged.begin(), merged.end(), [](const Region& region) { return region.source < 2; });
    shape = movement.shape;
    chain.push_back({std::move(movement), std::move(merged)});
  }
}

// Tests that the debug check of every composition detects wrong ones.
void check_the_check() {
  CHECK(kCompositionsChecked);
  const std::int64_t one = 1, back = -1;
  const std::vector<Region> writers{Region::make(0, Dims{6}, {&back, 1}, 5, {&one, 1}, 0, 6, 6)};
  const Region reader = Region::make(0, Dims{4}, {&one, 1}, 1, {&one, 1}, 0, 6, 4);
  const auto right = compose(reader, writers);
  CHECK(right && is_composition(reader, writers, *right));
  for (int fault = 0; fault < 4; ++fault) {
    auto wrong = *right;
    if (fault == 0) wrong[0].src.offset -= 1;
    if (fault == 1) wrong[0].source = 1;
    if (fault == 2) wrong[0].size[0] -= 1;
    if (fault == 3) wrong.clear();
    CHECK(!is_composition(reader, writers, wrong));
  }
}

}  // namespace

int main() {
  check_the_check();
  std::mt19937_64 random(2);
  int merged = 0, kept = 0;
  for (int round = 0; round < check::rounds(20000); ++round) {
    Dims shape(static_cast<std::size_t>(check::whole(random, 1, 4)));
    for (auto& dim : shape) dim = check::whole(random, 1, 6);
    const Stage first = random_stage(random, shape);
    const Movement& between = first.movements[0];
    if (between.shape.empty() || element_count(between.shape) == 0) continue;
    const Stage second = random_stage(random, between.shape);
    const Movement& last = second.movements[0];

    std::vector<std::vector<std::int32_t>> origins;
    std::int32_t next = 1;
    for (const Dims& source : first.sources) {
      origins.emplace_back(static_cast<std::size_t>(element_count(source)));
      for (auto& value : origins.back()) value = next++;
    }
    const auto middle = run(between, between.regions, origins);
    const auto expected = run(last, last.regions, std::vector(second.sources.size(), middle));

    std::vector<Region> direct, rest;
    for (const Region& region : last.regions) {
      const auto pieces = region.source == Movement::kFill ? std::nullopt : compose(region, between.regions);
      if (pieces) {
        direct.insert(direct.end(), pieces->begin(), pieces->end());
        ++merged;
      } else {
        rest.push_back(region);
        kept += region.source != Movement::kFill;
      }
    }
    auto result = run(last, direct, origins);
    for (const Region& region : rest) {
      const std::int32_t fill = 0;
      const auto* from = region.source == Movement::kFill ? &fill : middle.data();
      raster(region, reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(result.data()), 4);
    }
    CHECK(result == expected);
    if (check::failures > 5) break;
  }
  std::printf("%d regions merged, %d kept\n", merged, kept);
  CHECK(merged > 4 * kept);  // a merge that never merges would pass the comparison too

  int straight = 0;
  for (int round = 0; round < check::rounds(2000) && check::failures == 0; ++round) check_chain(random, straight);
  std::printf("%d values of long chains read only the inputs\n", straight);
  CHECK(straight > check::rounds(2000) / 2);

  // A slice across the boundary of a concatenation reads both parts.
  const std::int64_t one = 1;
  const std::vector<Region> seam{Region::make(0, Dims{4}, {&one, 1}, 0, {&one, 1}, 0, 4, 10),
                                 Region::make(1, Dims{6}, {&one, 1}, 0, {&one, 1}, 4, 6, 10)};
  const auto pieces = compose(Region::make(0, Dims{5}, {&one, 1}, 2, {&one, 1}, 0, 10, 5), seam);
  CHECK(pieces && pieces->size() == 2 && (*pieces)[0].count() == 2 && (*pieces)[1].count() == 3);
  // Elements that no region writes cannot be read.
  CHECK(!compose(Region::make(0, Dims{10}, {&one, 1}, 0, {&one, 1}, 0, 10, 10), std::span(seam).first(1)));
  return check::failures != 0;
}
