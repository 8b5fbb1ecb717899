// Parser of JSON values that writes them as MessagePack.
#pragma once
#include <string>
#include <string_view>

#include "stream/packed.h"

namespace walle::stream {

// A fault in the JSON, at this byte.
struct JsonFault {
  std::size_t at;
  std::string what;
};

// Upper bound of the bytes that `size` bytes of JSON become: `1.5,` becomes 9 bytes.
constexpr std::size_t packed_bound(std::size_t size) noexcept { return 9 * (size / 4 + 1) + 64; }

class JsonParser {
 public:
  // Writes to `out`, which has packed_bound(json.size()) bytes.
  JsonParser(std::string_view json, std::uint8_t* out);

  [[gnu::always_inline]] void skip_space() noexcept {
    if (at_ != end_ && static_cast<unsigned char>(*at_) <= ' ') skip_spaces();
  }
  bool at_end() const noexcept { return at_ == end_; }
  char peek() const noexcept { return at_ == end_ ? '\0' : *at_; }
  // Consumes the character, or returns false.
  bool take(char character) noexcept {
    if (at_ == end_ || *at_ != character) return false;
    ++at_;
    return true;
  }
  // Consumes this text, or returns false.
  bool take(std::string_view text) noexcept {
    if (static_cast<std::size_t>(end_ - at_) < text.size() || std::memcmp(at_, text.data(), text.size()) != 0) return false;
    at_ += text.size();
    return true;
  }

  // Parses a value of at most `depth` levels of containers. They throw JsonFault.
  void value(int depth);
  // Parses the contents of an event, an object. Events repeat much of the contents of the one before them: pairs that stand in
  // both alike, byte for byte, are copied and not parsed again. Objects within others are not remembered.
  void contents(int depth);
  // The contents that were parsed last were moved within the output.
  void contents_moved(std::ptrdiff_t bytes) noexcept { before_.moved += bytes; }
  // Parses a text and returns it, where it stands in the JSON or in the output.
  std::string_view text();
  [[noreturn]] void refuse(std::string what) const;
  [[noreturn]] void refuse_here() const;

  std::uint8_t* out() noexcept { return out_; }
  void set_out(std::uint8_t* out) noexcept { out_ = out; }
  std::size_t at() const noexcept { return static_cast<std::size_t>(at_ - begin_); }

 private:
  static constexpr std::size_t kStamps = 2048;
  struct Key {
    std::uint32_t at, fingerprint;       // place of its head in the output
    std::uint32_t key_json, value_json;  // places in the JSON
  };
  struct Open {
    std::uint32_t number;
    bool may_have_equal_keys;
  };
  // The contents of the event before: their keys, and by how many bytes they were moved within the output.
  struct Contents {
    std::ptrdiff_t moved = 0;
    Vector<Key> keys;
  };
  // How far contents repeat those before: their next pair, and keys that those do not have.
  struct Repetition {
    static constexpr std::size_t kMaxOthers = 8;
    std::size_t next = 0, others = 0;
    std::uint32_t fingerprints[kMaxOthers];
  };

  template <bool is_contents>
  void object(int depth);
  void array(int depth);
  void skip_spaces() noexcept;
  void number();
  void word(std::string_view text, std::uint8_t byte);
  std::string_view long_text(const char* from);
  std::string_view escaped_text(const char* from, const char* first_escape);
  std::uint32_t hex4(const char* from) const;
  void real(const char* from, std::size_t length);
  void check_utf8(const char* from, const char* to) const;

  void key();
  void mark_key(const Key& key) noexcept;
  bool repeat_pairs(Repetition& repetition);
  bool find_key(Repetition& repetition) const noexcept;
  bool has_equal_keys(std::size_t first_key);
  void merge_equal_keys(std::uint8_t* body, std::size_t first_key, std::uint32_t& count);
  std::string_view key_text(const Key& key) const noexcept;
  static std::size_t head_bytes(std::size_t count) noexcept;
  std::ptrdiff_t close(std::uint8_t* head, const std::uint8_t* body, std::uint32_t count, bool is_map);

  const char *begin_, *at_, *end_;
  std::uint8_t *start_, *out_;
  Vector<Key> keys_;              // keys of the open objects
  Vector<Open> open_;             // objects, each within the one before it
  Vector<std::uint32_t> stamps_;  // by fingerprint: the latest object with such a key
  std::uint32_t objects_ = 0;
  Contents before_;
};

}  // namespace walle::stream
