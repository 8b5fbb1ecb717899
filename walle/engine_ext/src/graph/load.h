// The `.walle` model file, version 2. All numbers little-endian. Writer: walle/engine_ext/model.py.
//
// Header, 64 bytes:
//    0  8 bytes  magic "WALLE\r\n\x1a"
//    8  u32      version
//   12  u32      flags, 0
//   16  u64      size of the file
//   24  u64      offset of the graph section: 64
//   32  u64      its size
//   40  u64      offset of the data section: the next multiple of 64 behind the graph
//   48  u64      its size; the file ends with it
//   56  u32      CRC-32 (zlib's) of the data section
//   60  u32      CRC-32 of bytes [0, 60) followed by [64, data offset)
// Graph section (a text is a u32 length and UTF-8 bytes):
//   text name
//   u32 values, each: text name, u8 kind (0 result, 1 constant, 2 input, 3 outer, 4 object); for constants and inputs u8 dtype
//       (core/dtype.h; 255 in an input: any), u8 rank (255 in an input: any), i64 dimensions (-1 in an input: known at run time);
//       for constants u64 offset in the data section, a multiple of 64, u64 size; for outer values, which subgraphs alone have,
//       the u32 number of the value in the graph around; an object is an input that is a sequence or an optional
//   u32 nodes, each: text operator, text name, u32 inputs and as many u32 value numbers (0xFFFFFFFF: left out), u32 outputs and
//   as
//       many u32 value numbers, u32 attributes, each: text name, u8 type (0 i64, 1 f64, 2 text, 3 u32 + i64s, 4 u32 + f64s,
//       5 a subgraph: a graph section within this one, 6 u32 + texts), value
//   u32 outputs, each: text name, u32 value number
// Data section: constants, row-major, each at a multiple of 64 bytes, padded with zeros to one.
//
// The reader checks every size, offset and number before it uses it, so that a broken or hostile file raises Error (model) and
// does nothing else. Constants are used in place.
#pragma once
#include <memory>
#include <string>

#include "graph/graph.h"

namespace walle {

inline constexpr std::uint32_t kModelVersion = 2;

// Read a model from `storage`, which every constant keeps alive (a copy is made where its memory is not aligned to 64).
// Throws Error (model) for bytes that are not such a file, Error (unsupported) for an unknown operator or attribute.
std::shared_ptr<const Graph> load_graph(const std::shared_ptr<Storage>& storage);
// The same from a file, memory-mapped. Throws Error (model) too where it cannot be opened.
std::shared_ptr<const Graph> load_graph(const std::string& path);

}  // namespace walle
