#include "core/attributes.h"

namespace walle {

namespace {
[[noreturn]] void wrong_type(std::string_view name, const char* wanted) {
  throw Error(ErrorKind::model, "attribute '" + std::string(name) + "' is no " + wanted);
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

}  // namespace walle
