// Tests of the gradient of rasters: the transpose of a linear map, for random regions whose sources are read more than once.
#include "gradients.h"

using namespace gradients;

namespace {

// Regions that write the elements of a result one after the other, and read any of their source.
std::vector<Region> random_regions(std::mt19937_64& random, std::int64_t source_extent, std::int64_t& result_extent) {
  struct Draft {
    Dims size, from, to;
    std::int64_t from_offset, to_offset;
  };
  std::vector<Draft> drafts;
  result_extent = 0;
  for (std::int64_t count = check::whole(random, 1, 3); count > 0; --count) {
    Draft draft{{}, {}, {}, 0, result_extent};
    std::int64_t low = 0, high = 0;
    for (std::int64_t axes = check::whole(random, 0, 3); axes > 0; --axes) {
      const std::int64_t size = check::whole(random, 0, 4), step = check::whole(random, -3, 3),
                         span = std::max<std::int64_t>(size - 1, 0) * step;
      if (high - low + std::abs(span) >= source_extent) continue;
      (span < 0 ? low : high) += span;
      draft.size.push_back(size);
      draft.from.push_back(step);
    }
    draft.from_offset = check::whole(random, -low, source_extent - 1 - high);
    draft.to = contiguous_strides(draft.size);
    result_extent += element_count(draft.size);
    drafts.push_back(std::move(draft));
  }
  std::vector<Region> regions;
  for (const Draft& draft : drafts)
    if (element_count(draft.size) > 0)
      regions.push_back(Region::make(static_cast<int>(check::whole(random, 0, 1)), draft.size, draft.from, draft.from_offset,
                                     draft.to, draft.to_offset, source_extent, result_extent));
  return regions;
}

void test_rasters(std::mt19937_64& random) {
  std::int64_t most_layers = 0;
  for (int round = 0; round < check::rounds(2000); ++round) {
    const std::int64_t extent = check::whole(random, 1, 24);
    std::int64_t result_extent = 0;
    const auto regions = random_regions(random, extent, result_extent);
    const Tensor gradient = random_tensor(random, {result_extent});
    for (const int source : {0, 1}) {
      // Row i of the transpose: what the i-th unit vector becomes.
      std::vector<double> expected(static_cast<std::size_t>(extent));
      for (std::int64_t i = 0; i < extent; ++i) {
        Tensor unit = Tensor::empty(DType::f64, {extent}), moved = Tensor::empty(DType::f64, {result_extent});
        std::fill_n(unit.data<double>(), extent, 0.0);
        std::fill_n(moved.data<double>(), result_extent, 0.0);
        unit.data<double>()[i] = 1;
        for (const Region& region : regions)
          if (region.source == source) raster(region, unit.raw(), moved.raw(), sizeof(double));
        expected[static_cast<std::size_t>(i)] = dot(moved, gradient);
      }
      const RasterGradient found = raster_gradient(regions, source, extent, result_extent);
      most_layers = std::max(most_layers, found.layers);
      Tensor layers = Tensor::empty(DType::f64, {found.layers, extent}),
             writes = Tensor::empty(DType::f64, {found.layers, extent});
      std::fill_n(layers.data<double>(), layers.size(), 0.0);
      std::fill_n(writes.data<double>(), writes.size(), 0.0);
      Tensor ones = Tensor::empty(DType::f64, {result_extent});
      std::fill_n(ones.data<double>(), result_extent, 1.0);
      double written = 0, moved = 0;
      for (const Region& region : found.regions) {
        raster(region, gradient.raw(), layers.raw(), sizeof(double));
        raster(region, ones.raw(), writes.raw(), sizeof(double));
        moved += static_cast<double>(region.count());
      }
      for (std::int64_t i = 0; i < writes.size(); ++i) written += writes.data<double>()[i];
      CHECK(written == moved);  // no element is written twice
      for (std::int64_t i = 0; i < extent; ++i) {
        double sum = 0;
        for (std::int64_t layer = 0; layer < found.layers; ++layer) sum += layers.data<double>()[layer * extent + i];
        CHECK(std::fabs(sum - expected[static_cast<std::size_t>(i)]) < 1e-12);
      }
    }
  }
  CHECK(most_layers > 8);
  // Windows of 3 by 3 over 10 by 10 pixels at every place: nine layers, not one for each place.
  const std::int64_t size[] = {8, 8, 3, 3}, from[] = {10, 1, 10, 1}, to[] = {72, 9, 3, 1};
  const Region windows[] = {Region::make(0, size, from, 0, to, 0, 100, 576)};
  CHECK(raster_gradient(windows, 0, 100, 576).layers == 9);
  CHECK(raster_gradient(windows, 1, 100, 576).layers == 0);
}

// One element of a large source, repeated: layers of any size could be asked for.
void test_rasters_of_too_many_layers() {
  const std::int64_t size[] = {1 << 20}, from[] = {0}, to[] = {1};
  for (const std::int64_t extent : {std::int64_t{1} << 13, std::int64_t{1} << 41, std::int64_t{1} << 62}) {
    const Region one = Region::make(0, size, from, 0, to, 0, extent, 1 << 21),
                 other = Region::make(0, size, from, 0, to, 1 << 20, extent, 1 << 21);
    const Region both[] = {one, other};
    CHECK_ERROR(raster_gradient(both, 0, extent, 1 << 21), shape);
  }
  const Region largest[] = {Region::make(0, size, from, 0, to, 0, 1 << 12, 1 << 20)};
  CHECK(raster_gradient(largest, 0, 1 << 12, 1 << 20).layers == 1 << 20);
}

}  // namespace

int main() {
  std::mt19937_64 random(35);
  test_rasters(random);
  test_rasters_of_too_many_layers();
  return check::failures != 0;
}
