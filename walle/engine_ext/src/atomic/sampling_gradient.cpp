// GridSampleGradient: the gradient of GridSample by its image, or (attribute `by_grid`) by its grid. Inputs: the image, the grid,
// and the gradient of the result.
#include <cstring>

#include "atomic/conversion.h"
#include "atomic/grid_places.h"

namespace walle {

namespace {

template <class T>
class GridSampleGradientStep final : public HostStep {
 public:
  explicit GridSampleGradientStep(const StepRequest& request)
      : places_(request.inputs[0].shape, request.inputs[1].shape, request.attributes),
        bytes_(static_cast<std::size_t>(element_count(request.result.shape)) * sizeof(T)),
        by_grid_(request.attributes.get_int("by_grid", 0) != 0) {}

  void run(std::byte* const* inputs, std::byte* output, std::byte*) const noexcept override {
    const T* x = reinterpret_cast<const T*>(inputs[0]);
    const T* grid = reinterpret_cast<const T*>(inputs[1]);
    const T* gradient = reinterpret_cast<const T*>(inputs[2]);
    T* out = reinterpret_cast<T*>(output);
    std::memset(output, 0, bytes_);
    places_.walk(grid, [&](std::int64_t n, std::int64_t p, const GridTaps<T>& taps) {
      T* coordinates = out + (n * places_.count + p) * static_cast<std::int64_t>(places_.rank);
      for (std::int64_t c = 0; c < places_.channels; ++c) {
        const std::int64_t channel = n * places_.channels + c;
        const T of_place = gradient[channel * places_.count + p];
        if (by_grid_)
          add_slopes(x + channel * places_.plane, taps, of_place, coordinates);
        else
          add_weights(taps, of_place, out + channel * places_.plane);
      }
    });
  }

 private:
  // Calls visit(element of the plane, tap of each axis) for the taps inside.
  template <class F>
  void each_tap(const GridTaps<T>& taps, F&& visit) const noexcept {
    for (std::size_t z = 0; z < static_cast<std::size_t>(taps[0].count); ++z)
      for (std::size_t y = 0; y < static_cast<std::size_t>(taps[1].count); ++y)
        for (std::size_t k = 0; k < static_cast<std::size_t>(taps[2].count); ++k)
          if (taps[0].index[z] >= 0 && taps[1].index[y] >= 0 && taps[2].index[k] >= 0)
            visit((taps[0].index[z] * places_.size[1] + taps[1].index[y]) * places_.size[2] + taps[2].index[k], z, y, k);
  }

  void add_weights(const GridTaps<T>& taps, T gradient, T* plane) const noexcept {
    each_tap(taps, [&](std::int64_t at, std::size_t z, std::size_t y, std::size_t k) {
      plane[at] += gradient * taps[0].weight[z] * taps[1].weight[y] * taps[2].weight[k];
    });
  }

  // The grid's coordinates begin with the last axis.
  void add_slopes(const T* plane, const GridTaps<T>& taps, T gradient, T* coordinates) const noexcept {
    each_tap(taps, [&](std::int64_t at, std::size_t z, std::size_t y, std::size_t k) {
      const T value = gradient * plane[at];
      coordinates[0] += value * taps[0].weight[z] * taps[1].weight[y] * taps[2].slope[k];
      if (places_.rank > 1) coordinates[1] += value * taps[0].weight[z] * taps[1].slope[y] * taps[2].weight[k];
      if (places_.rank > 2) coordinates[2] += value * taps[0].slope[z] * taps[1].weight[y] * taps[2].weight[k];
    });
  }

  GridPlaces<T> places_;
  std::size_t bytes_;
  bool by_grid_;
};

}  // namespace

TensorType infer_grid_sample_gradient(std::span<const Operand> operands, const Attributes& attributes) {
  const Dims &x = operands[0].shape, &grid = operands[1].shape, &gradient = operands[2].shape;
  const DType dtype = operands[0].dtype;
  if ((dtype != DType::f32 && dtype != DType::f64 && !is_half(dtype)) || operands[1].dtype != dtype || operands[2].dtype != dtype)
    throw Error(ErrorKind::dtype, "GridSampleGradient of " + std::string(dtype_name(dtype)) + ", " +
                                      std::string(dtype_name(operands[1].dtype)) + " and " +
                                      std::string(dtype_name(operands[2].dtype)));
  bool fits = x.size() >= 3 && x.size() <= 5 && grid.size() == x.size() && grid[0] == x[0] &&
              grid.back() == static_cast<std::int64_t>(x.size()) - 2;
  if (fits) {
    Dims result{x[0], x[1]};
    result.insert(result.end(), grid.begin() + 1, grid.end() - 1);
    fits = gradient == result && (element_count(result) == 0 || element_count(x) > 0);
  }
  if (!fits)
    throw Error(ErrorKind::shape,
                "GridSampleGradient of " + to_string(x) + " at " + to_string(grid) + " with a gradient " + to_string(gradient));
  return {dtype, attributes.get_int("by_grid", 0) != 0 ? grid : x};
}

std::unique_ptr<HostStep> make_grid_sample_gradient(const StepRequest& given) {
  return widened(given, [](const StepRequest& request) -> std::unique_ptr<HostStep> {
    if (request.result.dtype == DType::f64) return std::make_unique<GridSampleGradientStep<double>>(request);
    return std::make_unique<GridSampleGradientStep<float>>(request);
  });
}

}  // namespace walle
