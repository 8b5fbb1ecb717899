// Objects of JSON: equal keys, and pairs that the contents of consecutive events have in common.
#include <algorithm>
#include <unordered_map>

#include "stream/json_parser.h"
#include "stream/text_scan.h"

namespace walle::stream {

namespace {

std::uint32_t fingerprint_of(std::string_view key) noexcept {
  std::uint64_t first = 0, last = 0;
  if (key.size() >= 8) {
    std::memcpy(&first, key.data(), 8);
    std::memcpy(&last, key.data() + key.size() - 8, 8);
  } else {
    for (std::size_t i = 0; i < key.size(); ++i) first = first << 8 | static_cast<unsigned char>(key[i]);
  }
  first += key.size();
  return static_cast<std::uint32_t>(((first * 0x9e3779b97f4a7c15) ^ (last * 0xc2b2ae3d27d4eb4f)) * 0xff51afd7ed558ccd >> 32);
}

constexpr std::size_t kMaxRepeatedKeys = 256;  // keys of contents that are remembered: each new key is searched for among them
constexpr std::uint8_t kShortText = 0xa0;      // head of a text of less than 32 bytes: 0xa0 to 0xbf

}  // namespace

// Parses a key of the innermost object and what separates it from its value.
void JsonParser::key() {
  Key& key = keys_.emplace_back();
  key.at = static_cast<std::uint32_t>(out_ - start_);
  key.key_json = static_cast<std::uint32_t>(at());
  key.fingerprint = fingerprint_of(text());
  skip_space();
  if (!take(':')) refuse_here();
  skip_space();
  key.value_json = static_cast<std::uint32_t>(at());
}

// Notes in `open_` where the key may be equal to another one of its object.
void JsonParser::mark_key(const Key& key) noexcept {
  std::uint32_t& stamp = stamps_[key.fingerprint % kStamps];
  const std::uint32_t before = stamp;
  stamp = open_.back().number;
  if (before < open_.front().number) return;  // the earlier key's object is closed
  for (Open& open : open_) open.may_have_equal_keys = open.may_have_equal_keys || open.number == before;
}

// Copies the pairs that stand here as they stood in the contents before, and then the key alone where only the value is another
// one. Returns whether it copied that key.
bool JsonParser::repeat_pairs(Repetition& repetition) {
  const Vector<Key>& before = before_.keys;
  if (repetition.next == before.size()) return false;
  const Key* const first = before.data() + repetition.next;
  const Key* const last = &before.back();  // the last pair is not copied: what follows it is not known to be a key
  const char* json = at_;
  const std::size_t same =
      common_bytes(begin_ + first->key_json, json,
                   std::min<std::size_t>(static_cast<std::size_t>(end_ - json), last->value_json - first->key_json));
  const Key* key = first;
  while (key != last && key[1].key_json - first->key_json <= same) ++key;
  const std::uint8_t* packed = start_ + before_.moved + key->at;
  const bool has_key = key->value_json - first->key_json <= same && *packed >= kShortText && *packed < kShortText + 32;
  const Key* const end = key + (has_key ? 1 : 0);
  const auto moved_json = static_cast<std::uint32_t>(json - begin_) - first->key_json;
  const auto moved_out = static_cast<std::uint32_t>(out_ - start_) - first->at;  // modulo 2^32
  for (const Key* one = first; one != end; ++one)
    keys_.push_back({one->at + moved_out, one->fingerprint, one->key_json + moved_json, one->value_json + moved_json});
  repetition.next += static_cast<std::size_t>(end - first);
  if (key != first) {
    std::memcpy(out_, packed - (key->at - first->at), key->at - first->at);
    out_ += key->at - first->at;
  }
  at_ = json + ((has_key ? key->value_json : key->key_json) - first->key_json);
  if (!has_key) {
    skip_space();  // there may be more space than in the contents before
    return false;
  }
  std::uint8_t block[32];  // the places may overlap
  std::memcpy(block, packed, 32);
  std::memcpy(out_, block, 32);
  out_ += 1 + (*packed - kShortText);
  return true;
}

// Finds the latest key of the innermost object, which was parsed, among those of the contents before. While all keys of an object
// are found in the order of those before, or are few other ones, no two are equal. Returns false where that is not known.
bool JsonParser::find_key(Repetition& repetition) const noexcept {
  const std::uint32_t fingerprint = keys_.back().fingerprint;
  const Vector<Key>& before = before_.keys;
  for (std::size_t i = repetition.next; i < before.size(); ++i) {
    if (before[i].fingerprint != fingerprint) continue;
    repetition.next = i + 1;
    return true;
  }
  for (std::size_t i = 0; i < repetition.next; ++i)
    if (before[i].fingerprint == fingerprint) return false;
  for (std::size_t i = 0; i < repetition.others; ++i)
    if (repetition.fingerprints[i] == fingerprint) return false;
  if (repetition.others == Repetition::kMaxOthers) return false;
  repetition.fingerprints[repetition.others++] = fingerprint;
  return true;
}

// Returns the bytes of the head of a container.
std::size_t JsonParser::head_bytes(std::size_t count) noexcept { return count < 16 ? 1 : count <= 0xffff ? 3 : 5; }

// Writes the head of a container before its body, which is moved where it is in the way. Returns by how many bytes.
std::ptrdiff_t JsonParser::close(std::uint8_t* head, const std::uint8_t* body, std::uint32_t count, bool is_map) {
  const std::ptrdiff_t moved = head + head_bytes(count) - body;
  if (moved != 0) std::memmove(head + head_bytes(count), body, static_cast<std::size_t>(out_ - body));
  is_map ? write_map_head(head, count) : write_list_head(head, count);
  out_ += moved;
  return moved;
}

template <bool is_contents>
void JsonParser::object(int depth) {
  if (depth == 0) refuse("nested deeper than 90 levels; flatten it");
  ++at_;
  // Contents mostly need as long a head as those before: their body then stands in its place from the beginning.
  std::uint8_t* head = out_;
  std::uint8_t* body = out_ += is_contents ? head_bytes(before_.keys.size()) : 1;
  const std::size_t first_key = keys_.size();
  open_.push_back({++objects_, false});
  Repetition repetition;
  bool is_repetition = is_contents && !before_.keys.empty();
  skip_space();
  if (!take('}')) {
    for (;;) {
      if (!is_repetition) {
        key();
        mark_key(keys_.back());
      } else if (!repeat_pairs(repetition)) {
        key();
        is_repetition = find_key(repetition);
        if (!is_repetition)
          for (std::size_t i = first_key; i < keys_.size(); ++i) mark_key(keys_[i]);
      }
      value(depth - 1);
      skip_space();
      if (take('}')) break;
      if (!take(',')) refuse_here();
      skip_space();
    }
  }
  const bool has_equal = open_.back().may_have_equal_keys && has_equal_keys(first_key);
  open_.pop_back();
  auto count = static_cast<std::uint32_t>(keys_.size() - first_key);
  if (has_equal) merge_equal_keys(body, first_key, count);
  const std::ptrdiff_t moved = close(head, body, count, true);
  if (is_contents) {  // contents are in no other object: all keys are theirs
    before_.moved = moved;
    before_.keys.swap(keys_);
    if (has_equal || before_.keys.size() > kMaxRepeatedKeys) before_.keys.clear();
  }
  keys_.resize(first_key);
}

template void JsonParser::object<false>(int);

void JsonParser::contents(int depth) {
  skip_space();
  return peek() == '{' ? object<true>(depth) : value(depth);
}

std::string_view JsonParser::key_text(const Key& key) const noexcept {
  PackedReader reader(start_, static_cast<std::size_t>(out_ - start_), key.at);
  Value text;
  reader.read(text);
  return {reinterpret_cast<const char*>(start_) + text.place, text.length};
}

bool JsonParser::has_equal_keys(std::size_t first_key) {
  const std::size_t count = keys_.size() - first_key;
  if (count <= 48) {
    for (std::size_t i = first_key; i < keys_.size(); ++i)
      for (std::size_t j = first_key; j < i; ++j)
        if (keys_[i].fingerprint == keys_[j].fingerprint && key_text(keys_[i]) == key_text(keys_[j])) return true;
    return false;
  }
  Vector<std::string_view> texts(count);
  for (std::size_t i = 0; i < count; ++i) texts[i] = key_text(keys_[first_key + i]);
  std::sort(texts.begin(), texts.end());
  return std::adjacent_find(texts.begin(), texts.end()) != texts.end();
}

// Keeps each key once, where it first stands, with its last value.
void JsonParser::merge_equal_keys(std::uint8_t* body, std::size_t first_key, std::uint32_t& count) {
  struct Place {
    std::size_t key, value;  // indices into keys_
  };
  std::unordered_map<std::string_view, std::size_t> found;
  std::vector<Place> places;
  for (std::size_t i = first_key; i < keys_.size(); ++i) {
    const auto [where, is_new] = found.emplace(key_text(keys_[i]), places.size());
    if (is_new) places.push_back({i, i});
    places[where->second].value = i;
  }
  Vector<std::uint8_t> merged;
  for (const Place& place : places) {
    const std::uint8_t* key = start_ + keys_[place.key].at;
    PackedReader reader(start_, static_cast<std::size_t>(out_ - start_), keys_[place.value].at);
    Value name;
    reader.read(name);
    const std::string_view text = key_text(keys_[place.key]);
    merged.insert(merged.end(), key, reinterpret_cast<const std::uint8_t*>(text.data() + text.size()));
    const std::uint8_t* next = place.value + 1 == keys_.size() ? out_ : start_ + keys_[place.value + 1].at;
    merged.insert(merged.end(), static_cast<const std::uint8_t*>(start_ + reader.at()), next);
  }
  std::copy(merged.begin(), merged.end(), body);
  out_ = body + merged.size();
  count = static_cast<std::uint32_t>(places.size());
}

}  // namespace walle::stream
