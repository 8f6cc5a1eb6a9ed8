// Shows this client's bytes to a test: what it writes, where its arrays lie, and what it reads.
//
//   vectors write          each message that it writes, as "name hex"
//   vectors layouts        each layout, as "name frame sizes; frame:offset of each array"
//   vectors read           for each line "hex" of standard input: what was read, or "refused: why"
//   vectors rows           a group of three lanes with every kind of space, reset, then stepped for each line "hex hex …"
//                          (ACT's frames): "hex hex … ", STEP's frames and statistics, or "refused: why"
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include "../seedbed/group.hpp"

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

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

void read() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto bytes = from_hex(line);
    std::ostringstream said;
    auto* const output = std::cout.rdbuf(said.rdbuf());
    try {
      std::visit(Show(), decode(bytes.data(), bytes.size()));
    } catch (const WireError& error) {
      std::cout << "refused: " << error.what();
    }
    std::cout.rdbuf(output);
    for (const char letter : said.str()) std::cout << (letter == '\n' ? ' ' : letter);  // a label may have any
    std::cout << '\n';
  }
}

// Shows its actions and how many steps it has taken; an episode is three steps. Number 1 and 3 of those made fail at
// their fifth step, number 2 gives NaN there, and those from 5 on cannot begin.
class Scripted : public Environment {
 public:
  Scripted() : number_(num_made++) {}

  void reset(std::optional<std::uint64_t>, Row& row) override {
    if (number_ > 4) throw std::runtime_error("made too late");
    length_ = 0;
    write(row, 0, 0);
  }

  void step(const Action& action, Row& row) override {
    ++length_;
    const bool fails = ++steps_ == 5;
    if (fails && (number_ == 1 || number_ == 3)) throw std::runtime_error("out of luck");
    write(row, action.leaf<std::int64_t>(2)[0], action.leaf<std::int64_t>(3)[1]);
    if (fails && number_ == 2) row.observation<double>(6)[5] = std::nan("");
    row.reward = action.leaf<float>(0)[1];
    row.life_lost = length_ == 2;
    row.terminated = length_ == 3;
    row.statistics()[0] = 100.0f + static_cast<float>(number_);
  }

 private:
  void write(Row& row, std::int64_t jump, std::int64_t weapon) {
    row.observation<std::uint8_t>(0)[67499] = static_cast<std::uint8_t>(jump);
    row.observation<std::int64_t>(3)[0] = weapon;
    row.observation<double>(6)[5] = steps_;
    for (int i = 0; i < 9; ++i) row.mask()[i] = i % 2 == 0;
  }

  inline static int num_made = 0;
  int number_, steps_ = 0, length_ = 0;
};

void show(const Group& group) {
  const auto hex = [](const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) std::printf("%02x", static_cast<const unsigned char*>(data)[i]);
  };
  for (const auto& frame : group.payload()) {
    hex(frame.data(), frame.size());
    std::printf(" ");
  }
  hex(group.statistics().data(), 4 * group.statistics().size());
  std::printf("\n");
}

void rows() {
  Group group(everything(), 3, [] { return std::make_unique<Scripted>(); });
  group.reset(1, [] {});
  show(group);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> frames;
    for (std::size_t begin = 0, end = 0; end < line.size(); begin = end + 1) {
      end = std::min(line.find(' ', begin), line.size());
      frames.push_back(from_hex(line.substr(begin, end - begin)));
    }
    try {
      group.take_actions(frames.size(), [&](std::size_t i) {
        return std::pair<const void*, std::size_t>(frames[i].data(), frames[i].size());
      });
      group.check_actions();
      group.step([] {});
      show(group);
    } catch (const std::runtime_error& error) {
      std::printf("refused: %s\n", error.what());
    }
  }
}

// Uses its leaves, green [1] and queue [4], in the way of this number; only the first one is right.
class Clumsy : public Environment {
 public:
  explicit Clumsy(int way) : way_(way) {}

  void reset(std::optional<std::uint64_t>, Row& row) override {
    switch (way_) {
      case 0:
        row.observation<float>("green")[0] = row.observation<std::int32_t>("queue")[3] = 1;
        row.mask()[1] = *row.mask() = 1;
        row.statistics()[0] = 0;
        break;
      case 1: row.observation<float>(0)[1] = 1; break;
      case 2: row.observation<std::int32_t>("queue")[-1] = 1; break;
      case 3: row.observation<float>("queue")[0] = 1; break;
      case 4: row.observation<float>("gren")[0] = 1; break;
      case 5: row.observation<float>(2)[0] = 1; break;
      case 6: row.mask()[2] = 1; break;
      default: row.statistics()[1] = 1;
    }
  }

  void step(const Action&, Row&) override {}

 private:
  int way_;
};

void misuses() {
  const auto observation =
      dict({{"queue", box(DType::int32, {4}, {0}, {9})}, {"green", box(DType::float32, {1}, {0}, {1})}});
  for (int way = 0; way < 8; ++way) {
    Group group({"Clumsy-v1", {}, observation, discrete(2), 2, {"waited"}}, 2,
                [way] { return std::make_unique<Clumsy>(way); });
    try {
      group.reset(1, [] {});
      std::printf("right\n");
    } catch (const EnvironmentFailed& error) {
      std::printf("refused: %s\n", error.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "write") write();
  else if (what == "layouts") layouts();
  else if (what == "read") read();
  else if (what == "rows") rows();
  else if (what == "misuses") misuses();
  else return 2;
  return 0;
}
