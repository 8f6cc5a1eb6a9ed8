// Shows this client's bytes to a test: what it writes, where its arrays lie, and what it reads.
//
//   vectors write          each message that it writes, as "name hex"
//   vectors layouts        each layout, as "name frame sizes; frame:offset of each array"
//   vectors read           for each line "hex" of standard input: what was read, or "refused: why"
#include <cstdio>
#include <iostream>
#include <string>

#include "../seedbed/messages.hpp"

using namespace seedbed;

namespace {

const double inf = std::numeric_limits<double>::infinity();

Specification cartpole() {
  return {"CartPole-v1",
          {{"max_episode_steps", "500"}},
          box(DType::float32, {4}, {-4.8, -inf, -0.41887903, -inf}, {4.8, inf, 0.41887903, inf}),
          discrete(2),
          0,
          {}};
}

// Every kind of space, as in tests/support/protocol_examples.py.
Specification everything() {
  auto inner = tuple({discrete(5, -2), multi_binary({2, 3}), multi_discrete({2, 2}, {2, 3, 4, 5})});
  auto observation = dict({{"speed", box(DType::float64, {3, 2}, {-1, -2.5}, {inf})},
                           {"inner", inner},
                           {"height/map", box(DType::uint8, {3, 5}, {0}, {255}, "HW")},
                           {"goal", text(0, 5, "abcäø")},
                           {"camera", box(DType::uint8, {3, 150, 150}, {0}, {255}, "CHW")}});
  auto action = dict({{"aim", box(DType::float32, {2}, {-1}, {1})},
                      {"buttons", multi_binary({3})},
                      {"jump", discrete(3, 1)},
                      {"weapons", multi_discrete({2}, {4, 2})}});
  return {"tests:everything",
          {{"kwargs", R"({"größe": "9×9"})"}, {"frame_skip", "4"}},
          observation, action, 9, {"score"}};
}

void show(const char* name, const std::string& bytes) {
  std::printf("%s ", name);
  for (const char byte : bytes) std::printf("%02x", static_cast<unsigned char>(byte));
  std::printf("\n");
}

void write() {
  Hello hello{"seedbed", "0.1.0", "actor-0", 0xFEDCBA9876543210, 1, 64, 0x0123456789ABCDEF, "train", "",
              cartpole().packed(), "group", {"reset"}, 10.0};
  show("hello", encode(hello));
  hello = {"simulator-ü", "2", "", 1, 0, 1, 0, "eval", "pong-20250101-120000", everything().packed(), "lane",
           {"render", "reset"}, 60.5};
  show("hello_everything", encode(hello));
  show("step", encode_step(0x1122334455667788, 7, false));
  show("ping", encode_ping(1700000000000, {{"tick_age_ms", 12.5}, {"env_steps_s", 1e6}}));
  show("bye", encode_bye(0, "run_finished"));
}

void show(const char* name, const Layout& layout) {
  std::printf("%s", name);
  for (const auto bytes : layout.frame_bytes) std::printf(" %zu", bytes);
  std::printf(";");
  for (const auto& place : layout.places) std::printf(" %zu:%zu", place.frame, place.offset);
  std::printf("\n");
}

void layouts() {
  show("cartpole_step", step_layout(cartpole(), 3));
  show("cartpole_act", act_layout(cartpole(), 3));
  show("everything_step", step_layout(everything(), 2));
  show("everything_act", act_layout(everything(), 2));
}

struct Show {
  void operator()(const Welcome& m) const {
    std::cout << "welcome " << m.nonce << ' ' << m.session << ' ' << m.server_epoch << ' ' << m.protocol << ' '
              << m.role << ' ' << m.run_id << ' ' << m.beat_s << ' ' << m.lease_s << ' ' << m.seed << ' ' << m.resumed
              << ' ' << m.next_seq;
  }
  void operator()(const Reject& m) const {
    std::cout << "reject " << m.nonce << ' ' << m.code << ' ' << m.retryable << ' ' << m.message << " / " << m.hint;
  }
  void operator()(const Act& m) const {
    std::cout << "act " << m.session << ' ' << m.seq << ' ' << m.reset << ' ' << m.reset_seed;
  }
  void operator()(const Challenge& m) const { std::cout << "challenge " << m.session; }
  void operator()(const Pong& m) const {
    std::cout << "pong " << m.sent_ms;
    for (const auto& r : m.sessions) std::cout << ' ' << r.session << ':' << r.last_seq << ':' << r.state;
  }
  void operator()(const Bye& m) const { std::cout << "bye " << m.session << ' ' << m.reason; }
  void operator()(const Error& m) const {
    std::cout << "error " << m.code << ' ' << m.scope << ' ' << m.session << ' ' << m.nonce << ' ' << m.retryable
              << ' ' << m.message << " / " << m.hint;
  }
};

void read() {
  for (std::string line; std::getline(std::cin, line);) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2)
      bytes.push_back(static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16)));
    try {
      std::visit(Show(), decode(bytes.data(), bytes.size()));
    } catch (const WireError& error) {
      std::cout << "refused: " << error.what();
    }
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "write") write();
  else if (what == "layouts") layouts();
  else if (what == "read") read();
  else return 2;
  return 0;
}
