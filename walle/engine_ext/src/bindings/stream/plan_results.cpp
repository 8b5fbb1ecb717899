#include "bindings/stream/plan_results.h"

#include "bindings/stream/encoded.h"

namespace walle::columns {

void PackedResults::object(PyObject* object) {
  stream::Vector<std::uint8_t> packed;
  if (!append_packed(object, packed, false))
    throw EventFault{"plan", "is given a value that cannot be encoded: an array, an int of more than 64 bits, or no plain data"};
  stream::PackedReader reader(packed.data(), packed.size());
  writer_.copy(reader, packed.data());  // `copy` counts the value's levels
}

PyObject* PackedResults::take(PyTypeObject* encoded_type) {
  if (writer_.bytes().size() > stream::kMaxEncodedBytes)
    throw EventFault{"plan", "has a result of more than " + std::to_string(stream::kMaxEncodedBytes) + " bytes"};
  return new_encoded(encoded_type, writer_.bytes(), writer_.depth());
}

}  // namespace walle::columns
