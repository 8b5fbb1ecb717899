// Gradients of poolings.
#include "geometry/indexed_raster.h"
#include "geometry/window.h"
#include "operators/eager.h"
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// A pooling: its window, and shapes [n, channels, ...].
struct Pooling {
  Emitter& emitter;
  Dims x_shape;
  Window window;

  explicit Pooling(const GradientCall& call)
      : emitter(call.emitter),
        x_shape(emitter.operand(call.inputs[0]).shape),
        window(Window::make("Pool", std::span(x_shape).subspan(2), required_numbers({}, 0, call.attributes, "kernel_shape"),
                            call.attributes)) {}

  std::size_t rank() const noexcept { return window.rank; }
  std::size_t first() const noexcept { return Window::kAxes - window.rank; }
  bool is_empty(Ref gradient) const { return element_count(x_shape) == 0 || element_count(emitter.operand(gradient).shape) == 0; }
};

// Return `value` [n, channels, out...] with `step` elements for each one along each spatial axis: repeated ones, or zeros behind
// it.
Ref spread(const Pooling& pool, Ref value, bool repeats) {
  const Window& win = pool.window;
  Dims split{pool.x_shape[0], pool.x_shape[1]}, filled = split, joined = split, pads(2, 0), behind(2, 0);
  for (std::size_t axis = pool.first(); axis < Window::kAxes; ++axis) {
    split.insert(split.end(), {win.out[axis], 1});
    filled.insert(filled.end(), {win.out[axis], win.kernel[axis]});
    joined.push_back(win.out[axis] * win.stride[axis]);
    pads.insert(pads.end(), {0, 0});
    behind.insert(behind.end(), {0, win.stride[axis] - (repeats ? win.kernel[axis] : 1)});
  }
  Ref parts = reshape(pool.emitter, value, split);
  if (repeats) parts = expanded(pool.emitter, parts, filled);
  pads.insert(pads.end(), behind.begin(), behind.end());
  if (std::any_of(pads.begin(), pads.end(), [](std::int64_t count) { return count > 0; }))
    parts = pool.emitter.one("Pad", {parts}, {{"pads", pads}});
  return reshape(pool.emitter, parts, joined);
}

// Return what every window adds to the elements that it covers. Windows that do not overlap are repeated elements; those that do
// are sums over the windows of each element: a pooling itself, of `value` with zeros between its elements.
Ref spread_sums(const Pooling& pool, Ref value) {
  if (pool.is_empty(value)) return zeros(pool.emitter, pool.emitter.operand(value).dtype, pool.x_shape);
  const Window& win = pool.window;
  const std::size_t rank = pool.rank();
  bool apart = true;
  for (std::size_t axis = pool.first(); axis < Window::kAxes; ++axis)
    apart = apart && win.kernel[axis] <= win.stride[axis] && (win.dilation[axis] == 1 || win.kernel[axis] == 1);
  const Ref wide = spread(pool, value, apart);
  Dims pads(2 * (rank + 2), 0), kernel, dilations;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::size_t axis = pool.first() + i;
    const std::int64_t size = win.out[axis] * win.stride[axis], reach = apart ? 0 : (win.kernel[axis] - 1) * win.dilation[axis];
    pads[2 + i] = reach - win.begin[axis];
    pads[rank + 4 + i] = win.in[axis] + win.begin[axis] - size;
    kernel.push_back(win.kernel[axis]);
    dilations.push_back(win.dilation[axis]);
  }
  const Ref padded = std::all_of(pads.begin(), pads.end(), [](std::int64_t count) { return count == 0; })
                         ? wide
                         : pool.emitter.one("Pad", {wide}, {{"pads", pads}});
  if (apart) return padded;
  return pool.emitter.one("PoolSum", {padded}, {{"kernel_shape", kernel}, {"dilations", dilations}});
}

// Return the numbers of elements that the windows count, [out...]: those inside the input, or inside the padded one.
Tensor window_counts(const Pooling& pool, DType dtype, bool with_pads) {
  const Window& win = pool.window;
  Tensor counts = Tensor::empty(DType::f64, win.out_dims());
  double* to = counts.data<double>();
  const auto along = [&](std::size_t axis, std::int64_t o) {
    const auto [first, last] =
        with_pads ? win.taps_in(axis, o, -win.begin[axis], win.in[axis] + win.end[axis]) : win.taps_of(axis, o);
    return static_cast<double>(last - first);
  };
  for (std::int64_t z = 0; z < win.out[0]; ++z)
    for (std::int64_t y = 0; y < win.out[1]; ++y)
      for (std::int64_t x = 0; x < win.out[2]; ++x) *to++ = along(0, z) * along(1, y) * along(2, x);
  return walle::cast(counts, dtype);
}

}  // namespace

std::vector<Ref> of_pool_sum(const GradientCall& call) { return {spread_sums(Pooling(call), call.gradient)}; }

std::vector<Ref> of_pool_mean(const GradientCall& call) {
  const Pooling pool(call);
  if (pool.is_empty(call.gradient)) return {zeros(call.emitter, call.emitter.operand(call.gradient).dtype, pool.x_shape)};
  const Formula f = formula_of(call);
  const bool with_pads = call.attributes.get_int("count_include_pad", 0) != 0;
  const DType dtype = call.emitter.operand(call.gradient).dtype;
  const Window& win = pool.window;
  if (!win.padded()) return {spread_sums(pool, f.times(call.gradient, 1 / static_cast<double>(win.taps())))};
  return {spread_sums(pool, f.div(call.gradient, call.emitter.constant(window_counts(pool, dtype, with_pads))))};
}

// Each window adds to its first greatest element.
std::vector<Ref> of_pool_max(const GradientCall& call) {
  const Pooling pool(call);
  Emitter& emitter = call.emitter;
  const DType dtype = emitter.operand(call.gradient).dtype;
  if (pool.is_empty(call.gradient)) return {zeros(emitter, dtype, pool.x_shape)};
  const Window& win = pool.window;
  for (std::size_t axis = 0; axis < Window::kAxes; ++axis)
    for (std::int64_t o = 0; o < win.out[axis]; ++o)
      if (const auto [first, last] = win.taps_of(axis, o); first == last)
        throw Error(ErrorKind::unsupported, "a window that covers padding alone has no greatest element, so no gradient");
  const Ref places = emitter.one("PoolArgMax", {call.inputs[0]}, call.attributes);
  const std::int64_t count = element_count(emitter.operand(places).shape);
  Attributes scatter = IndexedMovement{{count}, {0}, {1}, {1}, 0, 0, 0, 0, {1}, {element_count(pool.x_shape)}}.attributes();
  scatter.set("reduction", std::string("add"));
  return {emitter.one("IndexedScatter", {zeros(emitter, dtype, pool.x_shape), places, call.gradient}, std::move(scatter))};
}

}  // namespace walle::gradient
