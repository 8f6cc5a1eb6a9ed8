// CURVE keys from files (docs/security.md): an environment's own pair, and the public key of inference.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "session.hpp"

namespace seedbed {

// 40 characters of Z85 each.
struct Keys {
  std::string public_key, secret_key, server_key;
};

namespace detail {

// The value of a line `name = "value"`; empty if there is none.
inline std::string value_in(const std::string& file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const auto equals = line.find('='), open = line.find('"', equals), close = line.rfind('"');
    if (equals == line.npos || open == line.npos || close <= open) continue;
    if (line.substr(0, line.find_last_not_of(" \t", equals - 1) + 1) == name)
      return line.substr(open + 1, close - open - 1);
  }
  return "";
}

inline std::string key_in(const std::string& file, const std::string& name, const std::string& role) {
  const auto key = value_in(file, name);
  if (value_in(file, "role") != role || key.size() != 40)
    throw Refused(file + ": no key of role " + role + " with " + name + "; make keys with  seedbed keys init keys");
  return key;
}

inline bool is_file(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

// Which bits of a secret's mode tell that others may read it: the group in SEEDBED_KEYS_GROUP may, for services of
// several users, and so may the group of a file that an orchestrator hands out, root's and read-only.
inline mode_t refused_bits(const std::string& file, const struct stat& found) {
  struct statvfs place {};
  if (found.st_uid == 0 && getuid() != 0 && statvfs(file.c_str(), &place) == 0 && (place.f_flag & ST_RDONLY) != 0)
    return 007;
  const char* group = std::getenv("SEEDBED_KEYS_GROUP");
  return group != nullptr && std::to_string(found.st_gid) == group ? 037 : 077;
}

}  // namespace detail

// Reads the keys of an environment. folder: `runtime.keys`, that of the key itself or the one that holds all roles,
// from which the key `default` is taken. None for an empty name. Raises Refused, saying the file and what to do.
inline std::optional<Keys> read_keys(const std::string& folder) {
  if (folder.empty()) return std::nullopt;
  for (const auto& place : {folder, folder + "/environment", folder + "/environment/default"}) {
    const auto own = place + "/client.key";
    struct stat found {};
    if (!detail::is_file(own) || stat(own.c_str(), &found) != 0) continue;
    if ((found.st_mode & detail::refused_bits(own, found)) != 0)
      throw Refused(own + " is a secret and others may read it: chmod 600 " + own);
    return Keys{detail::key_in(own, "public", "environment"), detail::key_in(own, "secret", "environment"),
                detail::key_in(place + "/inference.pub", "public", "inference")};
  }
  throw Refused("runtime.keys: " + folder + " holds no client.key; make keys with  seedbed keys init keys");
}

// Whether only this machine can be at the other end of tcp://host:port. Names other than localhost may be anyone.
inline bool is_local(const std::string& address) {
  const auto begin = address.find("://") + 3;
  const auto host = address.substr(begin, address.rfind(':') - begin);
  const bool is_numeric = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "[::1]" || (is_numeric && host.rfind("127.", 0) == 0);
}

}  // namespace seedbed
