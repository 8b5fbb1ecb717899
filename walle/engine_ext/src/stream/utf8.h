// UTF-8 as Python's strict decoder takes it: no surrogates, no overlong forms.
#pragma once
#include <cstddef>
#include <string_view>

namespace walle::stream {

// Returns the index of the first byte that is not UTF-8; the size of the text if all are.
std::size_t find_invalid_utf8(std::string_view text) noexcept;

inline bool is_utf8(std::string_view text) noexcept { return find_invalid_utf8(text) == text.size(); }

}  // namespace walle::stream
