// Tests of gradient rules: operators against central differences in float64, for broadcast operands and zero sizes; rasters as
// the transpose of a linear map, for random regions whose sources are read more than once.
#include <cmath>

#include "check.h"
#include "geometry/raster.h"
#include "operators/eager.h"
#include "operators/gradient/gradient.h"
#include "operators/gradient/raster.h"

using namespace walle;

namespace {

// Computes what is emitted at once.
class Tape final : public Emitter {
 public:
  Operand operand(Ref tensor) const override {
    const Tensor& value = at(tensor);
    return {value.dtype(), value.shape(), &value, false};
  }
  std::vector<Ref> emit(std::string_view op, std::vector<Ref> inputs, Attributes attributes, int outputs) override {
    std::vector<Tensor> values;
    for (const Ref input : inputs) values.push_back(at(input));
    std::vector<Ref> refs;
    for (Tensor& result : evaluate(*find_operator(op), values, attributes, outputs, kernels("scalar")))
      refs.push_back(constant(std::move(result)));
    return refs;
  }
  Ref constant(Tensor value) override {
    values_.push_back(std::move(value));
    return static_cast<Ref>(values_.size() - 1);
  }
  Tensor value(Ref tensor, const std::string&) const override { return at(tensor); }
  const Tensor& at(Ref tensor) const { return values_[static_cast<std::size_t>(tensor)]; }

 private:
  std::vector<Tensor> values_;
};

Tensor random_tensor(std::mt19937_64& random, Dims shape) {
  Tensor tensor = Tensor::empty(DType::f64, std::move(shape));
  std::uniform_real_distribution<double> positive(0.5, 2);  // a divisor is not near 0
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.data<double>()[i] = positive(random);
  return tensor;
}

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

void compare(std::mt19937_64& random, std::string_view op, const std::vector<Dims>& shapes) {
  std::vector<Tensor> inputs;
  for (const Dims& shape : shapes) inputs.push_back(random_tensor(random, shape));
  const auto forward = [&] { return evaluate_one(op, inputs); };
  const Tensor result = forward(), gradient = random_tensor(random, result.shape());
  Tape tape;
  std::vector<Emitter::Ref> refs;
  for (const Tensor& input : inputs) refs.push_back(tape.constant(input));
  const auto at_result = tape.constant(result), at_gradient = tape.constant(gradient);
  const auto found = find_gradient(op)({tape, refs, at_result, at_gradient, {}});
  CHECK(found.size() == inputs.size());
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(tape.at(found[i]).shape() == inputs[i].shape());
    for (std::int64_t j = 0; j < inputs[i].size(); ++j) {
      double& number = inputs[i].data<double>()[j];
      const double before = number;
      number = before + kStep;
      const double above = dot(forward(), gradient);
      number = before - kStep;
      const double below = dot(forward(), gradient);
      number = before;
      CHECK(std::fabs((above - below) / (2 * kStep) - tape.at(found[i]).data<double>()[j]) < 1e-6 * (1 + std::fabs(above)));
    }
  }
}

void test_operators(std::mt19937_64& random) {
  const std::vector<std::pair<Dims, Dims>> pairs = {{{2, 3}, {2, 3}}, {{2, 3}, {3}},       {{1, 3}, {2, 1}},
                                                    {{}, {2, 2}},     {{2, 1, 3}, {4, 1}}, {{0, 3}, {3}}};
  const std::vector<std::pair<Dims, Dims>> products = {{{2, 3}, {3, 4}}, {{3}, {3, 2}},       {{2, 3}, {3}},
                                                       {{3}, {3}},       {{5, 2, 3}, {3, 4}}, {{2, 1, 2, 3}, {4, 3, 1}},
                                                       {{3}, {2, 3, 4}}};
  for (const std::string_view op : operators_with_gradients()) {
    const OpDef& definition = *find_operator(op);
    CHECK(definition.category() == Category::atomic);
    if (definition.max_inputs == 1) compare(random, op, {{2, 3}});
    if (definition.max_inputs == 2)
      for (const auto& [a, b] : op == "MatMul" ? products : pairs) compare(random, op, {a, b});
  }
  CHECK(find_gradient("Add") != nullptr);
  CHECK(find_gradient("Floor") == nullptr);
}

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
  test_operators(random);
  test_rasters(random);
  test_rasters_of_too_many_layers();
  return check::failures != 0;
}
