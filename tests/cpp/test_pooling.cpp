// PoolMax of float32 by blocks of channels: random windows on every instruction set of this CPU give the numbers of float64,
// which is pooled row by row; NaN among them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check.h"
#include "operators/eager.h"

using namespace walle;

namespace {

Tensor random_tensor(std::mt19937_64& random, Dims shape) {
  Tensor tensor = Tensor::empty(DType::f32, std::move(shape));
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = normal(random);
  for (int i = 0; i < 2; ++i) tensor.data<float>()[check::whole(random, 0, tensor.size() - 1)] = NAN;
  return tensor;
}

void compare(const Tensor& x, const Attributes& attributes) {
  const Tensor wide = evaluate_one("PoolMax", std::vector{cast(x, DType::f64)}, attributes);
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.available) continue;
    const Tensor found = evaluate(*find_operator("PoolMax"), std::vector{x}, attributes, 1, kernels(set.name))[0];
    CHECK(found.shape() == wide.shape());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < found.size(); ++i) {
      const double expected = wide.data<double>()[i];
      const auto number = double{found.data<float>()[i]};
      wrong += std::isnan(expected) ? !std::isnan(number) : number != expected;
    }
    check::report(wrong == 0, __FILE__, __LINE__, std::string(set.name) + ": PoolMax of " + to_string(x.shape()));
  }
}

}  // namespace

int main() {
  std::mt19937_64 random(35);
  for (int round = 0; round < check::rounds(80); ++round) {
    Dims x{check::whole(random, 1, 3), check::whole(random, 1, 40)}, kernel, strides, dilations, pads(4);
    for (std::size_t axis = 0; axis < 2; ++axis) {
      kernel.push_back(check::whole(random, 1, 5));
      dilations.push_back(check::whole(random, 1, 2));
      strides.push_back(check::whole(random, 1, 3));
      const std::int64_t reach = (kernel[axis] - 1) * dilations[axis] + 1;
      pads[axis] = check::whole(random, 0, kernel[axis] - 1);
      pads[axis + 2] = check::whole(random, 0, kernel[axis] - 1);
      x.push_back(check::whole(random, std::max<std::int64_t>(reach - pads[axis], 1), 30));
    }
    compare(random_tensor(random, x), {{"kernel_shape", kernel}, {"strides", strides}, {"dilations", dilations}, {"pads", pads}});
  }
  // Several bands of rows, rows longer than a band, and one axis.
  compare(random_tensor(random, {2, 18, 75, 62}),
          {{"kernel_shape", Dims{3, 3}}, {"strides", Dims{2, 2}}, {"pads", Dims{1, 1, 1, 1}}});
  compare(random_tensor(random, {1, 16, 7, 1100}), {{"kernel_shape", Dims{2, 3}}});
  compare(random_tensor(random, {2, 20, 300}), {{"kernel_shape", Dims{4}}, {"strides", Dims{3}}});
  return check::failures != 0;
}
