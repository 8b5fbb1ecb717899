// out[i] += factor * in[i * stride] over the including instruction set's vec.h (see AxpyFn): the accumulation step of direct and
// depthwise convolution.

inline void axpy(const void* factor, const void* in, std::int64_t stride, void* out, std::int64_t count) noexcept {
  const float scale = *static_cast<const float*>(factor);
  const auto* from = static_cast<const float*>(in);
  auto* to = static_cast<float*>(out);
  if (stride != 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += scale * from[i * stride];
    return;
  }
  const Vec all = set(scale);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, fma(all, load(from + i), load(to + i)));
  if (i < count) store_first(to + i, fma(all, load_first(from + i, count - i), load_first(to + i, count - i)), count - i);
}
