#include "core/attributes.h"

namespace walle {

namespace {
[[noreturn]] void wrong_type(std::string_view name, const char* expected) {
  throw Error(ErrorKind::model, "attribute '" + std::string(name) + "' has the wrong type; it must be " + expected);
}
}  // namespace

const Attribute* Attributes::find(std::string_view name) const noexcept {
  for (const auto& [key, value] : items_)
    if (key == name) return &value;
  return nullptr;
}

std::int64_t Attributes::get_int(std::string_view name, std::int64_t fallback) const {
  const Attribute* value = find(name);
  if (value == nullptr) return fallback;
  if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
  wrong_type(name, "an int");
}

double Attributes::get_float(std::string_view name, double fallback) const {
  const Attribute* value = find(name);
  if (value == nullptr) return fallback;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(value)) return static_cast<double>(*number);
  wrong_type(name, "a float");
}

std::string Attributes::get_string(std::string_view name, std::string_view fallback) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::string(fallback);
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  wrong_type(name, "a string");
}

std::optional<Dims> Attributes::get_ints(std::string_view name) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* numbers = std::get_if<Dims>(value)) return *numbers;
  if (const auto* number = std::get_if<std::int64_t>(value)) return Dims{*number};
  wrong_type(name, "a list of ints");
}

Attributes Attributes::only(std::span<const std::string_view> names) const {
  Attributes result;
  for (const std::string_view name : names)
    if (const Attribute* value = find(name)) result.set(std::string(name), *value);
  return result;
}

DType target_dtype(const Attributes& attributes) {
  // ONNX's TensorProto.DataType numbers.
  constexpr std::pair<std::int64_t, DType> onnx[] = {
      {1, DType::f32},     {2, DType::u8},          {3, DType::i8},    {4, DType::u16},       {5, DType::i16},
      {6, DType::i32},     {7, DType::i64},         {9, DType::b8},    {10, DType::f16},      {11, DType::f64},
      {12, DType::u32},    {13, DType::u64},        {16, DType::bf16}, {17, DType::f8e4m3fn}, {18, DType::f8e4m3fnuz},
      {19, DType::f8e5m2}, {20, DType::f8e5m2fnuz}, {21, DType::u4},   {22, DType::i4},       {23, DType::f4e2m1},
      {24, DType::f8e8m0}, {25, DType::u2},         {26, DType::i2},   {14, DType::c64},      {15, DType::c128}};
  for (const auto& [key, value] : attributes.items()) {
    if (key != "to") continue;
    for (const auto& [number, dtype] : onnx) {
      if (const auto* given = std::get_if<std::int64_t>(&value); given != nullptr && *given == number) return dtype;
      if (const auto* given = std::get_if<std::string>(&value); given != nullptr && *given == dtype_name(dtype)) return dtype;
    }
    const auto* number = std::get_if<std::int64_t>(&value);
    const auto* name = std::get_if<std::string>(&value);
    throw Error(ErrorKind::unsupported, "attribute 'to' is " +
                                            (number != nullptr ? std::to_string(*number)
                                             : name != nullptr ? "'" + *name + "'"
                                                               : std::string("a list")) +
                                            ", which is not a dtype of the engine");
  }
  throw Error(ErrorKind::model, "attribute 'to' is missing");
}

std::optional<std::vector<double>> Attributes::get_floats(std::string_view name) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* numbers = std::get_if<std::vector<double>>(value)) return *numbers;
  if (const auto* numbers = std::get_if<Dims>(value)) return std::vector<double>(numbers->begin(), numbers->end());
  wrong_type(name, "a list of floats");
}

std::optional<Texts> Attributes::get_strings(std::string_view name) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* texts = std::get_if<Texts>(value)) return *texts;
  if (const auto* numbers = std::get_if<Dims>(value); numbers != nullptr && numbers->empty())
    return Texts{};  // an empty list has no element type
  wrong_type(name, "a list of strings");
}

}  // namespace walle
