#include "vm/message.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "vm/contiguous.h"
#include "vm/shared_memory.h"

namespace walle::vm {

namespace {

enum class Tag : std::uint8_t {
  none,
  no,
  yes,
  integer,
  big,
  number,
  text,
  bytes,
  list,
  tuple,
  dict,
  array,
  shared_array,
  encoded,
  buffer_array,
};
constexpr std::uint8_t kTags = 15;

constexpr std::size_t kReplySlack = std::size_t{1} << 20;        // beside a result: descriptions of errors
constexpr std::size_t kUnlimitedBytes = std::size_t{512} << 20;  // limit of a message with results that no limit bounds
constexpr std::int64_t kUnlimitedValue = kMaxArrayBytes + (std::int64_t{1} << 30);
constexpr std::int64_t kPairItems = 3;  // items of a callback, beside its arguments

// Elements of less than a byte, and booleans, lie in a byte each and have few valid values, which kernels rely on.
bool has_valid_elements(const Tensor& tensor) {
  const auto all = [&](auto&& is_valid) {
    const std::uint8_t* begin = tensor.data<std::uint8_t>();
    return std::all_of(begin, begin + tensor.size(), is_valid);
  };
  const auto within = [&](int low, int high) {
    return all([=](std::uint8_t byte) {
      const auto number = static_cast<std::int8_t>(byte);
      return number >= low && number <= high;
    });
  };
  switch (tensor.dtype()) {
    case DType::b8: return within(0, 1);
    case DType::f4e2m1: return within(0, 15);
    case DType::i4: return within(-8, 7);
    case DType::u4: return within(0, 15);
    case DType::i2: return within(-2, 1);
    case DType::u2: return within(0, 3);
    default: return true;
  }
}

bool is_hexadecimal(const std::string& text) {
  std::size_t begin = text.starts_with('-') ? 1 : 0;
  if (text.compare(begin, 2, "0x") != 0 || text.size() == begin + 2) return false;
  return text.find_first_not_of("0123456789abcdef", begin + 2) == std::string::npos;
}

}  // namespace

// An item takes at most 9 bytes where 8 are counted, or what is counted.
std::size_t max_reply_bytes(std::int64_t output_bytes) noexcept {
  return kReplySlack + (output_bytes > 0 ? 2 * static_cast<std::size_t>(output_bytes) : kUnlimitedBytes);
}

Limits result_limits(std::int64_t output_bytes) noexcept {
  Limits limits;
  limits.all_bytes = output_bytes > 0 ? output_bytes : kUnlimitedValue;
  return limits;
}

Limits callback_limits(std::int64_t output_bytes) noexcept {
  Limits limits = result_limits(output_bytes);
  limits.depth += 1;
  limits.nodes += kPairItems;
  limits.all_bytes += static_cast<std::int64_t>(kMaxNameBytes) + kPairItems * kItemBytes;
  return limits;
}

Limits error_limits() noexcept {
  Limits limits;
  limits.all_bytes = static_cast<std::int64_t>(kReplySlack) / 2;
  return limits;
}

// --- Writing

MessageWriter& MessageWriter::put_text(std::string_view text) {
  put(static_cast<std::uint32_t>(text.size()));
  message_.body.append(text);
  return *this;
}

MessageWriter& MessageWriter::put_descriptor(Descriptor descriptor) {
  message_.descriptors.push_back(std::move(descriptor));
  return *this;
}

void MessageWriter::put_items(const Items& items) {
  for (const Value& item : items) put_value(item);
}

MessageWriter& MessageWriter::put_value(const Value& value) {
  const auto put_counted = [&](Tag tag, std::string_view bytes) {
    put(tag);
    put_text(bytes);
  };
  const auto put_counted_items = [&](Tag tag, const Items& items) {
    put(tag).put(static_cast<std::uint32_t>(items.size()));
    put_items(items);
  };
  if (std::holds_alternative<std::monostate>(value.data)) {
    put(Tag::none);
  } else if (const auto* truth = std::get_if<bool>(&value.data)) {
    put(*truth ? Tag::yes : Tag::no);
  } else if (const auto* integer = std::get_if<std::int64_t>(&value.data)) {
    put(Tag::integer).put(*integer);
  } else if (const auto* big = std::get_if<BigInt>(&value.data)) {
    put_counted(Tag::big, big->hex);
  } else if (const auto* number = std::get_if<double>(&value.data)) {
    put(Tag::number).put(*number);
  } else if (const auto* text = std::get_if<Text>(&value.data)) {
    put_counted(Tag::text, text->utf8);
  } else if (const auto* bytes = std::get_if<Bytes>(&value.data)) {
    put_counted(Tag::bytes, bytes->data);
  } else if (const auto* encoded = std::get_if<Encoded>(&value.data)) {
    put_counted(Tag::encoded, encoded->data);
  } else if (const auto* list = std::get_if<List>(&value.data)) {
    put_counted_items(Tag::list, list->items);
  } else if (const auto* tuple = std::get_if<Tuple>(&value.data)) {
    put_counted_items(Tag::tuple, tuple->items);
  } else if (const auto* dict = std::get_if<Dict>(&value.data)) {
    put(Tag::dict).put(static_cast<std::uint32_t>(dict->keys.size()));
    for (std::size_t i = 0; i < dict->keys.size(); ++i) put_value(dict->keys[i]).put_value(dict->values[i]);
  } else {
    put_tensor(std::get<Tensor>(value.data));
  }
  return *this;
}

void MessageWriter::put_tensor(const Tensor& tensor) {
  const std::int64_t size = tensor.size();
  const auto item = static_cast<std::int64_t>(item_size(tensor.dtype()));
  if (size > kMaxArrayBytes / item || (array_bytes_ += size * item) > kMaxArrayBytes)
    throw NotPlain("arrays of more than " + std::to_string(kMaxArrayBytes) +
                   " bytes cannot cross to or from the VM host at once");
  const Tensor source = tensor.contiguous() ? tensor : contiguous_copy(tensor);
  const auto size_bytes = static_cast<std::size_t>(size * item);
  const auto put_head = [&](Tag tag) {
    put(tag).put(tensor.dtype()).put(static_cast<std::uint8_t>(tensor.ndim()));
    for (const std::int64_t dimension : tensor.shape()) put(dimension);
  };
  if (buffers_ != nullptr && size_bytes > 0) {
    if (auto range = find_shared(source.raw(), size_bytes); range && buffers_->send_buffer(*range)) {
      put_head(Tag::buffer_array);
      put(range->id).put(static_cast<std::uint64_t>(range->offset));
      in_buffers_.push_back(std::move(range->memory));
      return;
    }
  }
  Descriptor shared;
  if (size * item >= kSharedArrayBytes && message_.descriptors.size() < kMaxDescriptors) {
    try {
      shared = share_bytes(source.raw(), size_bytes);
    } catch (const std::system_error&) {  // no descriptor or memory for it: the array crosses as bytes
    }
  }
  put_head(shared ? Tag::shared_array : Tag::array);
  if (shared)
    put_descriptor(std::move(shared));
  else if (size_bytes > 0)
    message_.body.append(reinterpret_cast<const char*>(source.raw()), size_bytes);
}

// --- Reading

void MessageReader::fail(const std::string& what) const {
  throw MalformedMessage("message " + std::to_string(static_cast<int>(message_.type)) + " " + what);
}

void MessageReader::check_whole() const {
  if (message_.is_cut) throw ReceiveFailure("this process has too little memory, or too many open files");
}

const char* MessageReader::take(std::size_t size) {
  if (size > message_.body.size() - position_) {
    check_whole();
    fail("ends before its fields do");
  }
  const char* found = message_.body.data() + position_;
  position_ += size;
  return found;
}

// Returns a count of items, each of which takes at least `item_bytes`.
std::size_t MessageReader::get_size(std::size_t item_bytes) {
  const std::size_t count = get<std::uint32_t>();
  if (count > (message_.body.size() - position_) / item_bytes) {
    check_whole();
    fail("has a count beyond its bytes");
  }
  return count;
}

std::string MessageReader::get_text(std::size_t max_bytes) {
  const std::size_t size = get_size(1);
  if (size > max_bytes) fail("has a text of " + std::to_string(size) + " bytes");
  return {take(size), size};
}

Descriptor MessageReader::get_descriptor() {
  if (next_descriptor_ >= message_.descriptors.size()) {
    check_whole();
    fail("has too few descriptors");
  }
  return std::move(message_.descriptors[next_descriptor_++]);
}

void MessageReader::skip() noexcept {
  position_ = message_.body.size();
  next_descriptor_ = message_.descriptors.size();
}

void MessageReader::end() const {
  check_whole();
  if (position_ != message_.body.size()) fail("has bytes after its fields");
  if (next_descriptor_ != message_.descriptors.size()) fail("has descriptors that nothing refers to");
}

Value MessageReader::get_value(const Limits& limits) {
  limits_ = limits;
  nodes_ = all_bytes_ = 0;
  return read_value(0);
}

void MessageReader::count_bytes(std::size_t size) {
  all_bytes_ += static_cast<std::int64_t>(size);
  if (limits_.all_bytes > 0 && all_bytes_ > limits_.all_bytes) fail("has a value beyond its limit");
}

Items MessageReader::read_items(int depth, std::size_t count) {
  Items items;
  for (std::size_t i = 0; i < count; ++i) items.push_back(read_value(depth));
  return items;
}

Value MessageReader::read_value(int depth) {
  if (++nodes_ > limits_.nodes) fail("has too many items");
  count_bytes(kItemBytes);
  const auto tag = get<std::uint8_t>();
  if (tag >= kTags) fail("has an unknown tag");
  const bool is_container = tag >= static_cast<std::uint8_t>(Tag::list) && tag <= static_cast<std::uint8_t>(Tag::dict);
  if (is_container && depth >= limits_.depth) fail("is nested too deeply");
  const auto read_text = [&] {
    std::string text = get_text();
    count_bytes(text.size());
    return text;
  };
  switch (static_cast<Tag>(tag)) {
    case Tag::none: return {};
    case Tag::no: return {false};
    case Tag::yes: return {true};
    case Tag::integer: return {get<std::int64_t>()};
    case Tag::number: return {get<double>()};
    case Tag::text: return {Text{read_text()}};
    case Tag::bytes: return {Bytes{read_text()}};
    case Tag::big: {
      std::string hex = read_text();
      if (!is_hexadecimal(hex)) fail("has an integer that is not hexadecimal");
      return {BigInt{std::move(hex)}};
    }
    case Tag::list: return {List{read_items(depth + 1, get_size(1))}};
    case Tag::tuple: return {Tuple{read_items(depth + 1, get_size(1))}};
    case Tag::dict: {
      Dict dict;
      for (std::size_t left = get_size(2); left > 0; --left) {
        dict.keys.push_back(read_value(depth + 1));
        dict.values.push_back(read_value(depth + 1));
      }
      return {std::move(dict)};
    }
    case Tag::array: return {read_tensor(Place::message)};
    case Tag::shared_array: return {read_tensor(Place::descriptor)};
    case Tag::buffer_array: return {read_tensor(Place::buffer)};
    case Tag::encoded: return {read_encoded()};
  }
  fail("has an unknown tag");
}

// The store takes such bytes as they are, so that they are checked to be plain data.
Encoded MessageReader::read_encoded() {
  const std::string bytes = get_text();
  count_bytes(bytes.size());
  try {
    return port_.check_encoded(bytes);
  } catch (const NotPlain& error) {
    fail(error.what());
  }
}

// Returns the memory of an array in a buffer, which the buffer keeps.
std::shared_ptr<Storage> MessageReader::read_range(std::size_t size_bytes, DType dtype) {
  const auto id = get<std::uint64_t>();
  const auto offset = get<std::uint64_t>();
  if (buffers_ == nullptr) fail("has an array in a buffer");
  const auto found = buffers_->find(id);
  if (found == buffers_->end()) throw ReceiveFailure("the memory of an array could not be mapped");
  const std::shared_ptr<Storage>& memory = found->second->memory;
  if (offset > memory->size_bytes() || size_bytes > memory->size_bytes() - offset || offset % item_alignment(dtype) != 0)
    fail("has an array outside of its buffer");
  if (used_buffers_.insert(*found).second) found->second->begin_call();
  return Storage::borrow(memory->data() + offset, size_bytes, false, [memory] {});
}

Tensor MessageReader::read_tensor(Place place) {
  const auto dtype = get<std::uint8_t>();
  if (dtype >= kDTypeCount) fail("has an array of an unknown type");
  Dims shape(get<std::uint8_t>());
  for (std::int64_t& dimension : shape) dimension = get<std::int64_t>();
  const std::size_t item = item_size(static_cast<DType>(dtype));
  std::size_t size_bytes = 0;
  Dims strides;
  try {
    size_bytes = static_cast<std::size_t>(element_count(shape)) * item;
    strides = contiguous_strides(shape);
  } catch (const Error& error) {
    fail(std::string("has an array whose ") + error.what());
  }
  if (size_bytes > static_cast<std::size_t>(kMaxArrayBytes)) fail("has an array that is too large");
  count_bytes(size_bytes + static_cast<std::size_t>(kAxisBytes) * shape.size());
  std::shared_ptr<Storage> storage;
  if (place == Place::buffer) {
    storage = read_range(size_bytes, static_cast<DType>(dtype));
  } else if (place == Place::descriptor) {
    try {
      storage = map_shared_bytes(get_descriptor(), size_bytes);
    } catch (const std::system_error& error) {
      throw ReceiveFailure(error.what());
    }
    if (storage == nullptr) fail("has an array whose shared memory cannot be used");
  } else {
    const char* bytes = take(size_bytes);
    storage = Storage::allocate(size_bytes);
    if (size_bytes > 0) std::memcpy(storage->data(), bytes, size_bytes);
  }
  Tensor tensor(std::move(storage), static_cast<DType>(dtype), std::move(shape), std::move(strides), 0);
  if (!has_valid_elements(tensor)) fail("has an array with invalid elements");
  return tensor;
}

}  // namespace walle::vm
