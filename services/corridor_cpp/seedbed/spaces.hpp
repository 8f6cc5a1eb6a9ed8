// What an environment gives and takes (section 4 of docs/protocol.md) and where its arrays lie in a message (3.1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <msgpack.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "arrays travel little-endian, and this client writes them as they lie in memory"
#endif

namespace seedbed {

using Buffer = msgpack::sbuffer;
using Packer = msgpack::packer<Buffer>;

// The numbers are the protocol's. float16 (8) is left out: C++17 has no such type.
enum class DType : std::uint8_t {
  uint8 = 0, int8 = 1, uint16 = 2, int16 = 3, uint32 = 4, int32 = 5, uint64 = 6, int64 = 7, float32 = 9, float64 = 10
};

inline std::size_t item_bytes(DType dtype) {
  switch (dtype) {
    case DType::uint8: case DType::int8: return 1;
    case DType::uint16: case DType::int16: return 2;
    case DType::uint32: case DType::int32: case DType::float32: return 4;
    default: return 8;
  }
}

inline bool is_float(DType dtype) { return dtype == DType::float32 || dtype == DType::float64; }

// The DType of a C++ type. Other types than those listed do not compile.
template <class T> struct dtype_of;
template <> struct dtype_of<std::uint8_t> { static constexpr DType value = DType::uint8; };
template <> struct dtype_of<std::int8_t> { static constexpr DType value = DType::int8; };
template <> struct dtype_of<std::uint16_t> { static constexpr DType value = DType::uint16; };
template <> struct dtype_of<std::int16_t> { static constexpr DType value = DType::int16; };
template <> struct dtype_of<std::uint32_t> { static constexpr DType value = DType::uint32; };
template <> struct dtype_of<std::int32_t> { static constexpr DType value = DType::int32; };
template <> struct dtype_of<std::uint64_t> { static constexpr DType value = DType::uint64; };
template <> struct dtype_of<std::int64_t> { static constexpr DType value = DType::int64; };
template <> struct dtype_of<float> { static constexpr DType value = DType::float32; };
template <> struct dtype_of<double> { static constexpr DType value = DType::float64; };

// The C++ type of a DType, for messages.
inline const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::uint8: return "std::uint8_t";
    case DType::int8: return "std::int8_t";
    case DType::uint16: return "std::uint16_t";
    case DType::int16: return "std::int16_t";
    case DType::uint32: return "std::uint32_t";
    case DType::int32: return "std::int32_t";
    case DType::uint64: return "std::uint64_t";
    case DType::int64: return "std::int64_t";
    case DType::float32: return "float";
    default: return "double";
  }
}

// Calls visit with a value of the C++ type of dtype.
template <class Visit> auto with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::uint8: return visit(std::uint8_t{});
    case DType::int8: return visit(std::int8_t{});
    case DType::uint16: return visit(std::uint16_t{});
    case DType::int16: return visit(std::int16_t{});
    case DType::uint32: return visit(std::uint32_t{});
    case DType::int32: return visit(std::int32_t{});
    case DType::uint64: return visit(std::uint64_t{});
    case DType::int64: return visit(std::int64_t{});
    case DType::float32: return visit(float{});
    default: return visit(double{});
  }
}

// One array of a space, for one lane.
struct Leaf {
  DType dtype = DType::float32;
  std::size_t elements = 1;             // of one lane; the product of the wire shape
  std::vector<std::int64_t> low, high;  // discrete kinds: allowed values of each element, or one pair for all
  std::string name = {};                // in a dict or tuple: "speed", "0", within another one "body.speed"; else empty

  std::size_t bytes() const { return elements * item_bytes(dtype); }
};

// A space: its bytes in the specification, and its leaves in canonical order.
struct Space {
  std::string packed;
  std::vector<Leaf> leaves;
};

using Shape = std::vector<std::uint32_t>;

namespace detail {

inline std::size_t product(const Shape& shape) {
  std::uint64_t elements = 1;
  for (const auto size : shape) {
    elements *= size;
    if (size == 0 || elements > (1u << 26)) throw std::invalid_argument("a shape has 1 to 2^26 elements");
  }
  if (shape.size() > 8) throw std::invalid_argument("a shape has at most 8 axes");
  return static_cast<std::size_t>(elements);
}

// What write(packer, buffer) writes.
template <class Write> std::string packed(Write write) {
  Buffer buffer;
  Packer packer(buffer);
  write(packer, buffer);
  return std::string(buffer.data(), buffer.size());
}

// Appends a child's leaves, under its name.
inline void append(std::vector<Leaf>& leaves, const std::string& name, const Space& child) {
  for (auto leaf : child.leaves) {
    leaf.name = leaf.name.empty() ? name : name + "." + leaf.name;
    leaves.push_back(std::move(leaf));
  }
}

inline void pack_text(Packer& packer, const std::string& text) {
  packer.pack_str(static_cast<std::uint32_t>(text.size()));
  packer.pack_str_body(text.data(), static_cast<std::uint32_t>(text.size()));
}

inline void pack_items(Packer& packer, DType dtype, const std::vector<double>& items) {
  std::string bytes;
  for (const double item : items) {
    with_type(dtype, [&](auto zero) {
      const auto value = static_cast<decltype(zero)>(item);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    });
  }
  packer.pack_bin(static_cast<std::uint32_t>(bytes.size()));
  packer.pack_bin_body(bytes.data(), static_cast<std::uint32_t>(bytes.size()));
}

// Bytes that are MessagePack already. (A packer keeps nothing back, so they may go straight behind what it wrote.)
inline void pack_raw(Buffer& buffer, const std::string& bytes) { buffer.write(bytes.data(), bytes.size()); }

// A float stays one: pack_double would write 10.0 as an integer.
inline void pack_float(Buffer& buffer, double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  std::string bytes(1, '\xcb');
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(bits >> shift));
  pack_raw(buffer, bytes);
}

}  // namespace detail

// Numbers between bounds. low and high: one value for all elements, or a block for the trailing axes, in C order.
// image: "" or, for uint8, where the channels are: "HW", "HWC", "CHW".
inline Space box(DType dtype, const Shape& shape, const std::vector<double>& low, const std::vector<double>& high,
                 const std::string& image = "") {
  const auto elements = detail::product(shape);
  return {detail::packed([&](Packer& packer, Buffer&) {
            packer.pack_array(6).pack(1).pack(static_cast<int>(dtype)).pack(shape);
            detail::pack_items(packer, dtype, low);
            detail::pack_items(packer, dtype, high);
            detail::pack_text(packer, image);
          }),
          {Leaf{dtype, elements, {}, {}}}};
}

// One of n categories: start … start + n - 1.
inline Space discrete(std::uint32_t n, std::int64_t start = 0, DType dtype = DType::int64) {
  return {detail::packed([&](Packer& packer, Buffer&) {
            packer.pack_array(4).pack(2).pack(static_cast<int>(dtype)).pack(n).pack(start);
          }),
          {Leaf{dtype, 1, {start}, {start + n - 1}}}};
}

// One of nvec[i] categories for each element i of shape, from start[i] on.
inline Space multi_discrete(const Shape& shape, const std::vector<std::uint32_t>& nvec,
                            std::vector<std::int64_t> start = {}, DType dtype = DType::int64) {
  const auto elements = detail::product(shape);
  start.resize(elements, 0);
  if (nvec.size() != elements) throw std::invalid_argument("MultiDiscrete needs an nvec for each element");
  std::vector<std::int64_t> high(start);
  for (std::size_t i = 0; i < elements; ++i) high[i] += nvec[i] - 1;
  return {detail::packed([&](Packer& packer, Buffer&) {
            packer.pack_array(5).pack(3).pack(static_cast<int>(dtype)).pack(shape).pack(nvec).pack(start);
          }),
          {Leaf{dtype, elements, start, high}}};
}

// Zeros and ones.
inline Space multi_binary(const Shape& shape, DType dtype = DType::int8) {
  return {detail::packed([&](Packer& packer, Buffer&) {
            packer.pack_array(3).pack(4).pack(static_cast<int>(dtype)).pack(shape);
          }),
          {Leaf{dtype, detail::product(shape), {0}, {1}}}};
}

// Text, for observations only. In a row: u32 number of UTF-8 bytes, the bytes, zeros. charset: UTF-8, ascending.
inline Space text(std::uint32_t min_length, std::uint32_t max_length, const std::string& charset) {
  return {detail::packed([&](Packer& packer, Buffer&) {
            packer.pack_array(4).pack(5).pack(min_length).pack(max_length);
            detail::pack_text(packer, charset);
          }),
          {Leaf{DType::uint8, 4 + 4 * static_cast<std::size_t>(max_length), {}, {}}}};
}

// Named spaces; their leaves follow each other in the order of their names' bytes.
inline Space dict(std::vector<std::pair<std::string, Space>> children) {
  std::sort(children.begin(), children.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Space space;
  space.packed = detail::packed([&](Packer& packer, Buffer& buffer) {
    packer.pack_array(2).pack(6).pack_array(static_cast<std::uint32_t>(children.size()));
    for (const auto& [name, child] : children) {
      packer.pack_array(2);
      detail::pack_text(packer, name);
      detail::pack_raw(buffer, child.packed);
      detail::append(space.leaves, name, child);
    }
  });
  return space;
}

// Spaces in an order. A leaf is called by its number: "0".
inline Space tuple(const std::vector<Space>& children) {
  Space space;
  space.packed = detail::packed([&](Packer& packer, Buffer& buffer) {
    packer.pack_array(2).pack(7).pack_array(static_cast<std::uint32_t>(children.size()));
    std::size_t number = 0;
    for (const auto& child : children) {
      detail::pack_raw(buffer, child.packed);
      detail::append(space.leaves, std::to_string(number++), child);
    }
  });
  return space;
}

// What an environment says of itself in HELLO.
struct Specification {
  std::string env_id;
  std::vector<std::pair<std::string, std::string>> settings;  // must agree between actors; values are JSON text
  Space observation;
  Space action;
  std::size_t mask_size = 0;            // 0, or all categories of the Discrete and MultiDiscrete leaves of action
  std::vector<std::string> statistics;  // of an episode, beside its return and length

  std::size_t num_statistics() const { return 2 + statistics.size(); }

  std::string packed() const {
    auto sorted = settings;
    std::sort(sorted.begin(), sorted.end());
    return detail::packed([&](Packer& packer, Buffer& buffer) {
      packer.pack_array(6);
      detail::pack_text(packer, env_id);
      packer.pack_array(static_cast<std::uint32_t>(sorted.size()));
      for (const auto& [name, value] : sorted) {
        packer.pack_array(2);
        detail::pack_text(packer, name);
        detail::pack_text(packer, value);
      }
      detail::pack_raw(buffer, observation.packed);
      detail::pack_raw(buffer, action.packed);
      packer.pack(static_cast<std::uint64_t>(mask_size));
      packer.pack_array(static_cast<std::uint32_t>(num_statistics()));
      detail::pack_text(packer, "return");
      detail::pack_text(packer, "length");
      for (const auto& name : statistics) detail::pack_text(packer, name);
    });
  }
};

// Where an array lies: which frame of the payload, and where in it.
struct Place {
  std::size_t frame = 0, offset = 0, bytes = 0;
};

// The places of some arrays, and the size of each frame. Both ends compute the same.
struct Layout {
  std::vector<Place> places;
  std::vector<std::size_t> frame_bytes{0};

  void add(std::size_t bytes) {
    constexpr std::size_t own_frame = 65536;
    if (bytes >= own_frame) {
      places.push_back({frame_bytes.size(), 0, bytes});
      frame_bytes.push_back(bytes);
    } else {
      places.push_back({0, frame_bytes[0], bytes});
      frame_bytes[0] += (bytes + 7) / 8 * 8;
    }
  }
};

// STEP: each observation leaf, the mask if there is one, reward, flags.
inline Layout step_layout(const Specification& spec, std::size_t lanes) {
  Layout layout;
  for (const auto& leaf : spec.observation.leaves) layout.add(lanes * leaf.bytes());
  if (spec.mask_size > 0) layout.add(lanes * spec.mask_size);
  layout.add(lanes * sizeof(float));
  layout.add(lanes);
  return layout;
}

// ACT: each action leaf.
inline Layout act_layout(const Specification& spec, std::size_t lanes) {
  Layout layout;
  for (const auto& leaf : spec.action.leaves) layout.add(lanes * leaf.bytes());
  return layout;
}

}  // namespace seedbed
