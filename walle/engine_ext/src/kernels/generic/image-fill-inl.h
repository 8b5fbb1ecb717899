// Function that puts the including instruction set's image kernels into a table.

void fill_image(ImageTable& table) noexcept {
  table.color[0] = &color<std::uint8_t>;
  WALLE_WORDS(table.color[1] = &color<std::uint16_t>;)
  WALLE_ANY_WIDTH(table.color[2] = &color<float>;)
  table.resample_row[0] = &resample_row<std::uint8_t>;
  WALLE_WORDS(table.resample_row[1] = &resample_row<std::uint16_t>;)
  table.resample_row[2] = &resample_row<float>;
  table.resample_bytes = &resample_whole<std::int32_t>;
  table.resample_short = &resample_whole<std::int16_t>;
  table.join_rows[0] = &join_rows<std::uint8_t>;
  WALLE_WORDS(table.join_rows[1] = &join_rows<std::uint16_t>;)
  table.join_rows[2] = &join_rows<float>;
  table.join_bytes = &join_bytes;
  table.join_linear_bytes = &join_linear_bytes;
  table.halve_rows[0] = &halve_rows<std::uint8_t>;
  WALLE_WORDS(table.halve_rows[1] = &halve_rows<std::uint16_t>;)
  WALLE_ANY_WIDTH(table.halve_rows[2] = &halve_rows<float>;)
  table.pick_row = &pick_row;
  table.sample[0] = &sample<std::uint8_t>;
  WALLE_WORDS(table.sample[1] = &sample<std::uint16_t>;)
  table.sample[2] = &sample<float>;
  table.affine = &affine_places;
  table.perspective = &perspective_places;
  WALLE_ANY_WIDTH(table.reverse = &reverse_items;)
  table.planes3 = &planes3;
  table.weave = &weave;
  fill_filters(table);
  fill_pointwise(table);
  table.from_yuv = &from_yuv;
  table.to_yuv = &to_yuv;
}
