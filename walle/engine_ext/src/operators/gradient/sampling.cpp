// Gradients of sampled and transformed signals, which are linear: each is the transposed map.
#include "operators/eager.h"
#include "operators/gradient/rules.h"

namespace walle::gradient {

namespace {

// Taps of the transposed map, [in, most taps of one element]: for each element the results that read it.
struct Taps {
  Tensor places, weights;

  Taps(const Tensor& from, const Tensor& given, std::int64_t in) {
    const std::int64_t out = from.shape()[0], taps = from.shape()[1];
    const Tensor wide = walle::cast(given, DType::f64);
    std::vector<std::vector<std::pair<std::int64_t, double>>> readers(static_cast<std::size_t>(in));
    std::size_t most = 1;
    for (std::int64_t i = 0; i < out * taps; ++i) {
      const std::int64_t place = from.data<std::int64_t>()[i];
      const double weight = wide.data<double>()[i];
      if (place < 0 || place >= in) throw Error(ErrorKind::shape, "a place of Resample is out of range");
      if (weight == 0) continue;
      auto& of_place = readers[static_cast<std::size_t>(place)];
      of_place.emplace_back(i / taps, weight);
      most = std::max(most, of_place.size());
    }
    places = Tensor::empty(DType::i64, {in, static_cast<std::int64_t>(most)});
    weights = Tensor::empty(DType::f64, places.shape());
    std::fill_n(places.data<std::int64_t>(), places.size(), 0);
    std::fill_n(weights.data<double>(), weights.size(), 0.0);
    for (std::size_t i = 0; i < readers.size(); ++i)
      for (std::size_t t = 0; t < readers[i].size(); ++t) {
        places.data<std::int64_t>()[i * most + t] = readers[i][t].first;
        weights.data<double>()[i * most + t] = readers[i][t].second;
      }
  }
};

}  // namespace

std::vector<Ref> of_resample(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  if (needs(call, 2)) refuse("Resample by its weights");
  const Dims shape = emitter.operand(call.inputs[0]).shape;
  std::vector<Ref> gradients = no_gradients(call);
  const DType dtype = emitter.operand(call.gradient).dtype;
  if (element_count(emitter.operand(call.gradient).shape) == 0 || element_count(shape) == 0) {
    gradients[0] = zeros(emitter, dtype, shape);
    return gradients;
  }
  const std::size_t axis = normal_axis(call.attributes.get_int("axis", -1), shape.size());
  const Taps taps(emitter.value(call.inputs[1], "the places of Resample"),
                  emitter.value(call.inputs[2], "the weights of Resample"), shape[axis]);
  gradients[0] = emitter.one("Resample",
                             {call.gradient, emitter.constant(taps.places), cast(emitter, emitter.constant(taps.weights), dtype)},
                             {{"axis", static_cast<std::int64_t>(axis)}});
  return gradients;
}

std::vector<Ref> of_grid_sample(const GradientCall& call) {
  std::vector<Ref> gradients = no_gradients(call);
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) {
    if (!needs(call, input)) continue;
    Attributes attributes = call.attributes;
    attributes.set("by_grid", static_cast<std::int64_t>(input));
    gradients[input] =
        call.emitter.one("GridSampleGradient", {call.inputs[0], call.inputs[1], call.gradient}, std::move(attributes));
  }
  return gradients;
}

std::vector<Ref> of_roi_align(const GradientCall& call) {
  if (needs(call, 1)) refuse("RoiAlign by its boxes");
  std::vector<Ref> gradients = no_gradients(call);
  gradients[0] =
      call.emitter.one("RoiAlignGradient", {call.inputs[0], call.inputs[1], call.inputs[2], call.gradient}, call.attributes);
  return gradients;
}

// The transform with the opposite sign of the exponent. Of real numbers its real part; of half a spectrum each number counts for
// its mirror image too.
std::vector<Ref> of_fourier_transform(const GradientCall& call) {
  Emitter& emitter = call.emitter;
  const Dims x = emitter.operand(call.inputs[0]).shape;
  const bool inverse = call.attributes.get_int("inverse", 0) != 0, onesided = call.attributes.get_int("onesided", 0) != 0;
  const double scale = call.attributes.get_float("scale", 1);
  const auto transform = [&](Ref value, bool back, bool half) {
    return emitter.one("FourierTransform", {value},
                       {{"inverse", std::int64_t{back}}, {"onesided", std::int64_t{half}}, {"scale", scale}});
  };
  if (inverse && onesided) {
    const std::int64_t length = emitter.operand(call.result).shape[1];
    Tensor counts = Tensor::empty(DType::f64, {x[1], 2});
    for (std::int64_t k = 0; k < x[1]; ++k) {
      const bool is_own_image = k == 0 || 2 * k == length;
      counts.data<double>()[2 * k] = is_own_image ? 1 : 2;
      counts.data<double>()[2 * k + 1] = is_own_image ? 0 : 2;
    }
    const Ref spectrum = transform(call.gradient, false, true);
    return {emitter.one("Mul", {spectrum, cast(emitter, emitter.constant(std::move(counts)), emitter.operand(spectrum).dtype)})};
  }
  Ref g = call.gradient;
  const std::int64_t rows = emitter.operand(g).shape[1];
  if (rows < x[1]) g = emitter.one("Pad", {g}, {{"pads", Dims{0, 0, 0, 0, x[1] - rows, 0}}});
  const Ref back = transform(g, !inverse, false);
  return {x[2] == 1 ? sliced(emitter, back, 2, 0, 1) : back};
}

}  // namespace walle::gradient
