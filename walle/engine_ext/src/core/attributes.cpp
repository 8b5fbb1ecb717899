#include "core/attributes.h"

namespace walle {

namespace {
[[noreturn]] void wrong_type(std::string_view name, const char* wanted) {
  throw Error(ErrorKind::model, "attribute '" + std::string(name) + "' is no " + wanted);
}
}  // namespace

const Attribute* Attributes::find(std::string_view name) const noexcept {
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].first != name) continue;
    if (read_ && i < read_->size()) (*read_)[i] = true;
    return &items_[i].second;
  }
  return nullptr;
}

Attributes Attributes::watched() const {
  Attributes copy = *this;
  copy.read_ = std::make_shared<std::vector<bool>>(items_.size(), false);
  return copy;
}

std::string_view Attributes::unread() const noexcept {
  for (std::size_t i = 0; read_ && i < read_->size(); ++i)
    if (!(*read_)[i]) return items_[i].first;
  return {};
}

std::int64_t Attributes::get_int(std::string_view name, std::int64_t fallback) const {
  const Attribute* value = find(name);
  if (value == nullptr) return fallback;
  if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
  wrong_type(name, "int");
}

double Attributes::get_float(std::string_view name, double fallback) const {
  const Attribute* value = find(name);
  if (value == nullptr) return fallback;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(value)) return static_cast<double>(*number);
  wrong_type(name, "float");
}

std::string Attributes::get_string(std::string_view name, std::string_view fallback) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::string(fallback);
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  wrong_type(name, "string");
}

std::optional<Dims> Attributes::get_ints(std::string_view name) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* numbers = std::get_if<Dims>(value)) return *numbers;
  if (const auto* number = std::get_if<std::int64_t>(value)) return Dims{*number};
  wrong_type(name, "list of ints");
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
      {24, DType::f8e8m0}, {25, DType::u2},         {26, DType::i2}};
  for (const auto& [key, value] : attributes.items()) {
    if (key != "to") continue;
    for (const auto& [number, dtype] : onnx) {
      if (const auto* asked = std::get_if<std::int64_t>(&value); asked != nullptr && *asked == number) return dtype;
      if (const auto* asked = std::get_if<std::string>(&value); asked != nullptr && *asked == dtype_name(dtype)) return dtype;
    }
    throw Error(ErrorKind::unsupported, "'to' names a type that the engine does not have");
  }
  throw Error(ErrorKind::model, "the attribute 'to' is missing");
}

std::optional<std::vector<double>> Attributes::get_floats(std::string_view name) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* numbers = std::get_if<std::vector<double>>(value)) return *numbers;
  if (const auto* numbers = std::get_if<Dims>(value)) return std::vector<double>(numbers->begin(), numbers->end());
  wrong_type(name, "list of floats");
}

std::optional<Texts> Attributes::get_strings(std::string_view name) const {
  const Attribute* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (const auto* texts = std::get_if<Texts>(value)) return *texts;
  if (const auto* numbers = std::get_if<Dims>(value); numbers != nullptr && numbers->empty())
    return Texts{};  // no element tells the type
  wrong_type(name, "list of texts");
}

}  // namespace walle
