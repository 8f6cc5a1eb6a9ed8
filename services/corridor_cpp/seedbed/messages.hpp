// The messages of link 1 and 2 (section 2 of docs/protocol.md): written for inference, read from it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <msgpack.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "spaces.hpp"

namespace seedbed {

constexpr int protocol_version = 1;

// A message that breaks the protocol. It is counted and dropped; it never ends the service.
struct WireError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Hello {
  std::string library, library_version, actor;
  std::uint64_t incarnation = 0, group = 0, lanes = 1, nonce = 0;
  std::string mode, run_id;
  std::string spec;  // Specification::packed()
  std::string seeding = "lane";
  std::vector<std::string> capabilities{"reset"};
  double max_stall_s = 10.0;
};

struct Welcome {
  std::uint64_t nonce, session, server_epoch;
  int protocol;
  std::string role, run_id;
  double beat_s, lease_s;
  std::uint64_t seed;
  bool resumed;
  std::uint64_t next_seq;
};

struct Reject {
  std::uint64_t nonce;
  std::string code;
  bool retryable;
  std::string message, hint;
};

struct Act {
  std::uint64_t session, seq;
  bool reset;
  std::uint64_t reset_seed;
};

struct Challenge {
  std::uint64_t session;
};

struct Report {
  std::uint64_t session;
  std::int64_t last_seq;  // -1: none received
  int state;              // of the newest STEP; see state_names
};

struct Pong {
  std::uint64_t sent_ms;
  std::vector<Report> sessions;
};

struct Bye {
  std::uint64_t session;  // 0: all of this connection
  std::string reason;
};

struct Error {
  std::string code, scope;
  std::uint64_t session, nonce;
  bool retryable;
  std::string message, hint;
};

using Downward = std::variant<Welcome, Reject, Act, Challenge, Pong, Bye, Error>;

constexpr int state_answered = 5;
constexpr const char* state_names[] = {"unknown",          "queued",           "held: no credit",
                                       "held: no weights", "held: no evaluation", "answered"};

namespace detail {

constexpr std::size_t max_header_bytes = 65536;  // of any message that comes down; see header_limit

enum Type : int { hello = 1, welcome, reject, step, act, challenge, ping, pong, bye, error };

inline std::size_t header_limit(std::int64_t type) {
  if (type == pong) return 65536;
  return type == reject || type == error ? 16384 : 4096;
}

// Code points of UTF-8; more than any text has if it is none.
inline std::size_t num_characters(const std::string& text) {
  std::size_t characters = 0, expected = 0;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool continues = (byte & 0xC0) == 0x80;
    if (continues != (expected > 0) || byte >= 0xF8) return text.npos;
    if (continues) --expected;
    else expected = byte < 0x80 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    characters += !continues;
  }
  return expected > 0 ? text.npos : characters;
}

// The fields of a header in their order, each with the check that its type asks for.
class Fields {
 public:
  explicit Fields(const msgpack::object& array, const char* message) : message_(message) {
    if (array.type != msgpack::type::ARRAY) throw WireError(message_ + " is not an array");
    next_ = array.via.array.ptr;
    end_ = next_ + array.via.array.size;
  }

  void named(const char* message) { message_ = message; }

  const msgpack::object& any(const char* name) {
    if (next_ == end_) wrong(name, "is missing");
    return *next_++;
  }

  std::uint64_t id(const char* name) {
    const auto& value = any(name);
    if (value.type != msgpack::type::POSITIVE_INTEGER) wrong(name, "is no unsigned integer");
    return value.via.u64;
  }

  std::uint64_t count(const char* name) {
    const auto value = id(name);
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) wrong(name, "is over 2^63 - 1");
    return value;
  }

  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high) {
    const auto& value = any(name);
    std::int64_t number = 0;
    if (value.type == msgpack::type::NEGATIVE_INTEGER) number = value.via.i64;
    else if (value.type == msgpack::type::POSITIVE_INTEGER && value.via.u64 <= static_cast<std::uint64_t>(INT64_MAX))
      number = static_cast<std::int64_t>(value.via.u64);
    else wrong(name, "is no integer in range");
    if (number < low || number > high) wrong(name, "is out of range");
    return number;
  }

  std::string text(const char* name, std::size_t max_characters) {
    const auto& value = any(name);
    if (value.type != msgpack::type::STR) wrong(name, "is no text");
    std::string text(value.via.str.ptr, value.via.str.size);
    if (num_characters(text) > max_characters) wrong(name, "is too long, or no UTF-8");
    return text;
  }

  std::string label(const char* name) { return text(name, 256); }
  std::string prose(const char* name) { return text(name, 1024); }

  bool boolean(const char* name) {
    const auto& value = any(name);
    if (value.type != msgpack::type::BOOLEAN) wrong(name, "is no boolean");
    return value.via.boolean;
  }

  double seconds(const char* name) {
    const auto& value = any(name);
    double number = 0;
    if (value.type == msgpack::type::FLOAT64 || value.type == msgpack::type::FLOAT32) number = value.via.f64;
    else if (value.type == msgpack::type::POSITIVE_INTEGER) number = static_cast<double>(value.via.u64);
    if (!(number > 0 && number <= 86400)) wrong(name, "is no duration of at most a day");
    return number;
  }

  std::pair<const msgpack::object*, std::size_t> array(const char* name, std::size_t max_items) {
    const auto& value = any(name);
    if (value.type != msgpack::type::ARRAY) wrong(name, "is no array");
    if (value.via.array.size > max_items) wrong(name, "has too many items");
    return {value.via.array.ptr, value.via.array.size};
  }

 private:
  [[noreturn]] void wrong(const char* name, const char* what) const {
    throw WireError(message_ + "." + name + " " + what);
  }

  std::string message_;
  const msgpack::object* next_ = nullptr;
  const msgpack::object* end_ = nullptr;
};

inline Welcome read_welcome(Fields& fields) {
  Welcome m{};
  m.nonce = fields.id("nonce");
  m.session = fields.id("session");
  m.server_epoch = fields.id("server_epoch");
  m.protocol = static_cast<int>(fields.integer("protocol", 1, 255));
  m.role = fields.label("role");
  m.run_id = fields.label("run_id");
  const auto [items, size] = fields.array("capabilities", 16);
  for (std::size_t i = 0; i < size; ++i)
    if (items[i].type != msgpack::type::STR) throw WireError("WELCOME.capabilities has something else than text");
  m.beat_s = fields.seconds("beat_s");
  m.lease_s = fields.seconds("lease_s");
  m.seed = fields.count("seed");
  m.resumed = fields.boolean("resumed");
  m.next_seq = fields.count("next_seq");
  return m;
}

inline Reject read_reject(Fields& fields) {
  Reject m{};
  m.nonce = fields.id("nonce");
  m.code = fields.label("code");
  m.retryable = fields.boolean("retryable");
  m.message = fields.prose("message");
  m.hint = fields.prose("hint");
  return m;
}

inline Act read_act(Fields& fields) {
  Act m{};
  m.session = fields.id("session");
  m.seq = fields.count("seq");
  fields.count("policy_version");
  m.reset = fields.integer("bits", 0, 3) & 1;  // 2 asks for a picture, of those who can send some
  m.reset_seed = fields.count("reset_seed");
  return m;
}

inline Pong read_pong(Fields& fields) {
  Pong m{};
  m.sent_ms = fields.count("sent_ms");
  fields.id("server_epoch");
  fields.count("work_age_ms");
  const auto [items, size] = fields.array("sessions", 1024);
  for (std::size_t i = 0; i < size; ++i) {
    Fields report(items[i], "PONG.sessions");
    Report r{};
    r.session = report.id("session");
    r.last_seq = report.integer("last_seq", -1, INT64_MAX);
    r.state = static_cast<int>(report.integer("state", 0, 5));
    report.count("age_ms");
    m.sessions.push_back(r);
  }
  return m;
}

inline Challenge read_challenge(Fields& fields) {
  const auto session = fields.id("session");
  fields.id("server_epoch");
  return Challenge{session};
}

inline Bye read_bye(Fields& fields) {
  const auto session = fields.id("session");
  return Bye{session, fields.label("reason")};
}

inline Error read_error(Fields& fields) {
  Error m{};
  m.code = fields.label("code");
  m.scope = fields.label("scope");
  if (m.scope != "session" && m.scope != "connection") throw WireError("ERROR.scope is neither session nor connection");
  m.session = fields.id("session");
  m.nonce = fields.id("nonce");
  m.retryable = fields.boolean("retryable");
  m.message = fields.prose("message");
  m.hint = fields.prose("hint");
  return m;
}

}  // namespace detail

// Reads one header. Raises WireError, saying the message and field.
inline Downward decode(const char* data, std::size_t size) {
  if (size > detail::max_header_bytes) throw WireError("a header of " + std::to_string(size) + " bytes");
  msgpack::object_handle handle;
  std::size_t read = 0;
  try {  // array, map, str, bin, ext, depth
    handle = msgpack::unpack(data, size, read, nullptr, nullptr, msgpack::unpack_limit(4096, 0, 65536, 65536, 0, 16));
  } catch (const msgpack::unpack_error& error) {
    throw WireError(std::string("a header that is no MessagePack: ") + error.what());
  }
  if (read != size) throw WireError("bytes behind a header");
  detail::Fields fields(handle.get(), "header");
  const auto type = fields.integer("type", 0, 255);
  if (size > detail::header_limit(type)) throw WireError("a header over its limit, of type " + std::to_string(type));
  switch (type) {
    case detail::welcome: fields.named("WELCOME"); return detail::read_welcome(fields);
    case detail::reject: fields.named("REJECT"); return detail::read_reject(fields);
    case detail::act: fields.named("ACT"); return detail::read_act(fields);
    case detail::challenge: fields.named("CHALLENGE"); return detail::read_challenge(fields);
    case detail::pong: fields.named("PONG"); return detail::read_pong(fields);
    case detail::bye: fields.named("BYE"); return detail::read_bye(fields);
    case detail::error: fields.named("ERROR"); return detail::read_error(fields);
    default: throw WireError("a message of type " + std::to_string(type));
  }
}

inline std::string encode(const Hello& m) {
  return detail::packed([&](Packer& packer, Buffer& buffer) {
    packer.pack_array(16).pack(static_cast<int>(detail::hello)).pack(protocol_version).pack(protocol_version);
    detail::pack_text(packer, m.library);
    detail::pack_text(packer, m.library_version);
    detail::pack_text(packer, m.actor);
    packer.pack(m.incarnation).pack(m.group).pack(m.lanes).pack(m.nonce);
    detail::pack_text(packer, m.mode);
    detail::pack_text(packer, m.run_id);
    detail::pack_raw(buffer, m.spec);
    detail::pack_text(packer, m.seeding);
    packer.pack_array(static_cast<std::uint32_t>(m.capabilities.size()));
    for (const auto& capability : m.capabilities) detail::pack_text(packer, capability);
    detail::pack_float(buffer, m.max_stall_s);
  });
}

inline std::string encode_step(std::uint64_t session, std::uint64_t seq, bool has_statistics) {
  return detail::packed([&](Packer& packer, Buffer&) {
    packer.pack_array(4).pack(static_cast<int>(detail::step)).pack(session).pack(seq).pack(has_statistics ? 1 : 0);
  });
}

inline std::string encode_ping(std::uint64_t sent_ms, const std::vector<std::pair<std::string, double>>& load) {
  return detail::packed([&](Packer& packer, Buffer& buffer) {
    packer.pack_array(3).pack(static_cast<int>(detail::ping)).pack(sent_ms);
    packer.pack_array(static_cast<std::uint32_t>(load.size()));
    for (const auto& [name, figure] : load) {
      packer.pack_array(2);
      detail::pack_text(packer, name);
      detail::pack_float(buffer, figure);
    }
  });
}

inline std::string encode_bye(std::uint64_t session, const std::string& reason) {
  return detail::packed([&](Packer& packer, Buffer&) {
    packer.pack_array(3).pack(static_cast<int>(detail::bye)).pack(session);
    detail::pack_text(packer, reason);
  });
}

}  // namespace seedbed
