// Video formats with less chroma than luma (ITU-R BT.601, studio range), in integers with 20 fractional bits.

inline void from_yuv(const YuvRow& row, bool blue_first, int channels, std::uint8_t* out, std::int64_t pixels) noexcept {
  Planes<std::uint8_t> planes;
  std::int32_t u[kBlock], v[kBlock], y[kBlock];
  for (std::int64_t start = 0; start < pixels; start += kBlock, out += kBlock * channels) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock, half = (count + 1) / 2;
    const std::uint8_t *pu = row.u + start / 2 * row.chroma_step, *pv = row.v + start / 2 * row.chroma_step;
    for (std::int64_t i = 0; i < half; ++i) u[2 * i] = u[2 * i + 1] = pu[i * row.chroma_step] - 128;
    for (std::int64_t i = 0; i < half; ++i) v[2 * i] = v[2 * i + 1] = pv[i * row.chroma_step] - 128;
    const std::uint8_t* luma = row.luma + start * row.luma_step;
    if (row.luma_step == 1)
      for (std::int64_t i = 0; i < count; ++i) y[i] = luma[i];
    else
      for (std::int64_t i = 0; i < count; ++i) y[i] = luma[2 * i];
    std::uint8_t *b = planes.p[blue_first ? 0 : 2], *g = planes.p[1], *r = planes.p[blue_first ? 2 : 0];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t bright = (y[i] < 16 ? 0 : y[i] - 16) * 1220542 + (1 << 19);
      b[i] = static_cast<std::uint8_t>(clamped((bright + 2116026 * u[i]) >> 20, 0, 255));
      g[i] = static_cast<std::uint8_t>(clamped((bright - 852492 * v[i] - 409993 * u[i]) >> 20, 0, 255));
      r[i] = static_cast<std::uint8_t>(clamped((bright + 1673527 * v[i]) >> 20, 0, 255));
    }
    if (channels == 4)
      for (std::int64_t i = 0; i < count; ++i) planes.p[3][i] = 255;
    merge<std::uint8_t>(planes.at, channels, out, count);
  }
}

inline void to_yuv(const std::uint8_t* in, int channels, bool blue_first, std::uint8_t* luma, std::uint8_t* u, std::uint8_t* v,
                   std::int64_t chroma_step, std::int64_t pixels) noexcept {
  Planes<std::uint8_t> planes;
  constexpr std::int32_t half = 1 << 19, grey = 128 << 20;
  for (std::int64_t start = 0; start < pixels; start += kBlock, in += kBlock * channels) {
    const std::int64_t count = pixels - start < kBlock ? pixels - start : kBlock;
    split(in, channels, planes.at, count);
    const std::uint8_t *b = planes.p[blue_first ? 0 : 2], *g = planes.p[1], *r = planes.p[blue_first ? 2 : 0];
    for (std::int64_t i = 0; i < count; ++i)
      luma[start + i] = static_cast<std::uint8_t>((269484 * r[i] + 528482 * g[i] + 102760 * b[i] + half + (16 << 20)) >> 20);
    if (u == nullptr) continue;
    const auto put_chroma = [&](std::int64_t step) __attribute__((always_inline)) {
      for (std::int64_t i = 0; i < count / 2; ++i) {
        const std::int32_t blue = b[2 * i], green = g[2 * i], red = r[2 * i];
        u[(start / 2 + i) * step] =
            static_cast<std::uint8_t>((-155188 * red - 305135 * green + 460324 * blue + half + grey) >> 20);
        v[(start / 2 + i) * step] = static_cast<std::uint8_t>((460324 * red - 385875 * green - 74448 * blue + half + grey) >> 20);
      }
    };
    chroma_step == 1 ? put_chroma(1) : put_chroma(chroma_step);  // unit strides are vectorised
  }
}
