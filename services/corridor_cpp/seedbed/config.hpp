// The configuration that services of every language share: environment variables, and words over them.
#pragma once

#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstdint>
#include <string>
#include <vector>

#include "session.hpp"

namespace seedbed {

struct Config {
  std::vector<std::string> upstream{"tcp://127.0.0.1:5555"};  // addresses of inference services
  std::uint64_t groups = 2;                                   // of this process; while one steps, another waits
  std::uint64_t lanes = 64;                                   // environments in each group
  std::string mode = "train";                                 // or eval: one group of eval.lanes; or play
  std::string name = "actor-" + std::to_string(getpid());     // for people
  std::string keys;                                           // folder; empty: links stay on this machine
  std::string status_file;                                    // written when it dials; empty: none
};

namespace detail {

inline std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Text without the quotes that it may be in.
inline std::string unquoted(const std::string& text) {
  const auto inner = trimmed(text);
  const bool is_quoted = inner.size() >= 2 && inner.front() == inner.back() && (inner[0] == '"' || inner[0] == '\'');
  return is_quoted ? inner.substr(1, inner.size() - 2) : inner;
}

inline std::uint64_t whole_number(const std::string& name, const std::string& text, std::uint64_t max) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > max)
    throw Refused(name + " is \"" + text + "\": give a whole number from 1 to " + std::to_string(max));
  return value;
}

// a,b or ["a", "b"].
inline std::vector<std::string> addresses(const std::string& name, std::string text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    found.push_back(unquoted(text.substr(begin, end - begin)));
    if (found.back().compare(0, 6, "tcp://") != 0)
      throw Refused(name + " has \"" + found.back() + "\": give addresses as tcp://host:port, separated by commas");
    begin = end + 1;
  }
  return found;
}

// A whole configuration in the making: settings come one by one, the later one is stronger.
struct Settings {
  Config config;
  std::uint64_t groups = 0, lanes = 0;  // 0: not given
  std::uint64_t eval_lanes = 20;

  // key: section.name; origin: where the value was given, for messages. Sections of other services are ignored.
  void set(const std::string& key, const std::string& origin, const std::string& text) {
    const auto value = trimmed(text);
    if (key == "actor.upstream") config.upstream = addresses(origin, value);
    else if (key == "actor.groups") groups = whole_number(origin, value, 64);
    else if (key == "actor.lanes") lanes = whole_number(origin, value, 65536);
    else if (key == "actor.name") config.name = unquoted(value);
    else if (key == "actor.mode") config.mode = mode(origin, unquoted(value));
    else if (key == "runtime.keys") config.keys = unquoted(value);
    else if (key == "runtime.status_file") config.status_file = unquoted(value);
    else if (key == "eval.lanes") eval_lanes = whole_number(origin, value, 65536);
    else if (!is_for_others(key.substr(0, key.find('.'))))
      throw Refused(origin + ": unknown setting; known: actor.upstream, actor.groups, actor.lanes, actor.mode, "
                             "actor.name, eval.lanes, runtime.keys, runtime.status_file");
  }

  static std::string mode(const std::string& origin, const std::string& value) {
    if (value != "train" && value != "eval" && value != "play")
      throw Refused(origin + " is \"" + value + "\": give train, eval or play");
    return value;
  }

  static bool is_for_others(const std::string& section) {
    for (const char* known : {"run", "env", "inference", "learner", "policy", "algorithm", "eval", "launch", "runtime"})
      if (section == known) return true;
    return false;
  }
};

// SEEDBED_ACTOR__LANES as actor.lanes; empty for other variables.
inline std::string setting_of_variable(const std::string& variable) {
  const std::string prefix = "SEEDBED_";
  const auto separator = variable.find("__");
  if (variable.compare(0, prefix.size(), prefix) != 0 || separator == std::string::npos) return "";
  auto key = variable.substr(prefix.size(), separator - prefix.size()) + "." + variable.substr(separator + 2);
  for (char& letter : key) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return key;
}

}  // namespace detail

// Reads the variables SEEDBED_SECTION__KEY, then the words section.key=value. Raises Refused, saying the name and what
// to give.
inline Config read_config(int argc, char** argv) {
  detail::Settings settings;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const auto name = text.substr(0, text.find('='));
    const auto key = detail::setting_of_variable(name);
    if (!key.empty()) settings.set(key, "environment variable " + name, text.substr(name.size() + 1));
  }
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    if (equals == std::string::npos) throw Refused("\"" + word + "\" is no setting; give words as actor.lanes=64");
    settings.set(detail::trimmed(word.substr(0, equals)), "command line \"" + word + "\"", word.substr(equals + 1));
  }
  auto config = settings.config;
  if (config.mode == "play") config.groups = config.lanes = 1;  // unless told more
  if (settings.groups) config.groups = settings.groups;
  if (settings.lanes) config.lanes = settings.lanes;
  if (config.mode == "eval") {
    config.groups = 1;
    config.lanes = settings.eval_lanes;
  }
  return config;
}

}  // namespace seedbed
