// The service: sockets, the clock and signals around the rules of session.hpp and the environments of group.hpp.
//
// One thread. A group steps as soon as its ACT is there; meanwhile the ACTs of others gather in the sockets.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "config.hpp"
#include "group.hpp"
#include "keys.hpp"
#include "session.hpp"

namespace seedbed {

namespace detail {

inline volatile std::sig_atomic_t stop_asked = 0;

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline std::uint64_t milliseconds(double now) { return static_cast<std::uint64_t>(now * 1000); }

// Text of a peer, fit for a terminal.
inline std::string printable(std::string text) {
  for (char& byte : text)
    if (static_cast<unsigned char>(byte) < 32 || byte == 127) byte = ' ';
  return text;
}

}  // namespace detail

class Actor {
 public:
  Actor(Config config, const Specification& spec, const MakeEnvironment& make) : config_(std::move(config)) {
    hello_.library = "seedbed-cpp";
    hello_.library_version = "1";
    hello_.actor = config_.name;
    hello_.incarnation = random();
    hello_.lanes = config_.lanes;
    hello_.mode = config_.mode;
    hello_.spec = spec.packed();
    const auto act_frames = act_layout(spec, config_.lanes).frame_bytes;
    max_bytes_ = std::max(detail::max_header_bytes, *std::max_element(act_frames.begin(), act_frames.end()));
    frames_.resize(act_frames.size() + 2);
    keys_ = read_keys(config_.keys);
    for (const auto& address : config_.upstream) connections_.push_back({address, dial(address), 0, 0, 0, 0});
    for (std::uint64_t i = 0; i < config_.groups; ++i) {
      members_.push_back(std::make_unique<Member>(Session(i, [this] { return random(); }), spec, config_.lanes, make));
      members_.back()->connection = (hello_.incarnation + i) % connections_.size();  // not all at the first one
    }
  }

  // Runs until the run is over, or SIGTERM or SIGINT. Raises Refused, EnvironmentFailed.
  void run() {
    if (!config_.status_file.empty()) std::ofstream(config_.status_file) << "{\"service\": \"actor\"}\n";
    try {
      for (report_due_ = detail::seconds_now() + report_every_s; !finished_;) {
        wait();
        receive();
        keep_alive();
        const double now = detail::seconds_now();
        for (auto& member : members_) {
          const auto& connection = connections_[member->connection];
          follow(*member, member->session.at(now, now - connection.heard_at, connection.closed_s(now)), now);
        }
        redial(now);
        if (now >= report_due_) report(now);
      }
      say_bye();  // the run is over, and inference waits for those that it told so
    } catch (const Stopped&) {
      say_bye();
    } catch (const zmq::error_t& error) {
      say_bye();
      if (error.num() != EINTR || !detail::stop_asked) throw;
    } catch (const std::exception&) {
      say_bye();
      throw;
    }
  }

 private:
  static constexpr double report_every_s = 10.0;
  static constexpr double max_wait_s = 0.1;  // SIGTERM is seen at the latest then
  static constexpr int max_messages = 256;   // of one socket in a row, before time is looked at
  static constexpr int linger_ms = 500;      // for BYE to leave
  static constexpr double retry_s = 0.2, redial_s = 5.0;

  struct Stopped {};

  struct Connection {
    std::string address;
    zmq::socket_t socket;
    double heard_at = 0, ping_due = 0, closed_at = 0;
    std::uint64_t pinged_ms = 0;

    double closed_s(double now) const { return closed_at > 0 ? now - closed_at : 0; }
  };

  struct Member {
    Member(Session s, const Specification& spec, std::size_t lanes, const MakeEnvironment& make)
        : session(std::move(s)), group(spec, lanes, make) {}
    Session session;
    Group group;
    std::size_t connection = 0;
    double acted_at = 0;
  };

  std::uint64_t random() { return std::uint64_t{device_()} << 32 | device_(); }

  zmq::socket_t dial(const std::string& address) {
    if (!keys_ && !is_local(address))
      throw Refused("actor.upstream has \"" + address + "\", which is across the network, and there are no keys: " +
                    "give runtime.keys, or dial 127.0.0.1 through a tunnel (ssh -L)");
    zmq::socket_t socket(context_, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::immediate, true);
    socket.set(zmq::sockopt::heartbeat_ivl, 500);
    socket.set(zmq::sockopt::heartbeat_timeout, 1500);
    socket.set(zmq::sockopt::heartbeat_ttl, 2000);
    socket.set(zmq::sockopt::handshake_ivl, 3000);
    socket.set(zmq::sockopt::reconnect_ivl, 50);
    socket.set(zmq::sockopt::reconnect_ivl_max, 500);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(max_bytes_));
    socket.set(zmq::sockopt::linger, linger_ms);
    socket.set(zmq::sockopt::ipv6, address.find('[') != std::string::npos);
    if (keys_) {
      socket.set(zmq::sockopt::curve_publickey, keys_->public_key);
      socket.set(zmq::sockopt::curve_secretkey, keys_->secret_key);
      socket.set(zmq::sockopt::curve_serverkey, keys_->server_key);
    }
    try {
      socket.connect(address);
    } catch (const zmq::error_t& error) {
      throw Refused("actor.upstream has \"" + address + "\", which cannot be dialled: " + error.what());
    }
    return socket;
  }

  void wait() {
    const double now = detail::seconds_now();
    double seconds = max_wait_s;
    std::vector<zmq::pollitem_t> items;
    for (auto& connection : connections_) {
      items.push_back({connection.socket.handle(), 0, ZMQ_POLLIN, 0});
      seconds = std::min(seconds, std::max(0.0, connection.ping_due - now));
    }
    try {
      zmq::poll(items.data(), items.size(), std::chrono::milliseconds(std::lround(std::ceil(1000 * seconds))));
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }

  void receive() {
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      for (int n = 0; n < max_messages && !finished_ && receive_one(i); ++n) {}
    }
  }

  // Takes one message, if there is one. What breaks the protocol is counted and dropped.
  bool receive_one(std::size_t index) {
    auto& connection = connections_[index];
    std::size_t num_frames = 0;
    bool more = true;
    for (; more; ++num_frames) {
      auto& frame = frames_[std::min(num_frames, frames_.size() - 1)];  // those that are too many overwrite each other
      if (!connection.socket.recv(frame, zmq::recv_flags::dontwait)) return false;
      more = frame.more();
    }
    const double now = detail::seconds_now();
    connection.heard_at = now;
    connection.closed_at = 0;
    try {
      const auto message = decode(frames_[0].data<char>(), frames_[0].size());
      std::visit([&](const auto& m) { take(index, m, num_frames - 1, now); }, message);
    } catch (const WireError& error) {
      ++num_malformed_;
      last_malformed_ = error.what();
    }
    return true;
  }

  void take(std::size_t index, const Act& act, std::size_t num_frames, double now) {
    for (auto& member : members_) {
      if (member->connection != index || !member->session.expects(act)) continue;
      member->group.take_actions(num_frames, [&](std::size_t i) {
        return std::pair<const void*, std::size_t>(frames_[i + 1].data(), frames_[i + 1].size());
      });
      if (!act.reset) member->group.check_actions();
      member->acted_at = now;
      return follow(*member, member->session.on(act), now);
    }
  }

  template <class Message> void take(std::size_t index, const Message& message, std::size_t num_frames, double now) {
    if (num_frames != 0) throw WireError("payload behind a message that has none");
    for (auto& member : members_) {
      if (member->connection == index) follow(*member, member->session.on(message, now), now);
    }
  }

  void take(std::size_t index, const Pong& pong, std::size_t num_frames, double now) {
    if (num_frames != 0) throw WireError("payload behind a PONG");
    if (pong.sent_ms == 0 || pong.sent_ms > connections_[index].pinged_ms) return;  // a probe: it answers no PING
    bool are_settled = true;
    std::set<std::uint64_t> ours;
    for (auto& member : members_) {
      if (member->connection != index) continue;
      are_settled = are_settled && member->session.active();
      ours.insert(member->session.session());
    }
    for (const auto& report : pong.sessions)  // what our PINGs would keep alive without need
      if (are_settled && ours.count(report.session) == 0)
        send(connections_[index], encode_bye(report.session, "moved"));
    for (auto& member : members_) {
      if (member->connection == index) follow(*member, member->session.on(pong, now), now);
    }
  }

  // Does what a session asks for.
  void follow(Member& member, const Orders& orders, double now) {
    if (orders.finished) finished_ = true;
    if (orders.leave) send(connections_[member.connection], encode_bye(*orders.leave, "moved"));
    if (orders.elsewhere) member.connection = (member.connection + 1) % connections_.size();
    if (orders.reset_seed || orders.act) {
      const auto keep_alive = [this] { this->keep_alive(); };
      if (orders.act) member.group.step(keep_alive);
      else member.group.reset(*orders.reset_seed, keep_alive);
      busy_s_ += detail::seconds_now() - now;
    }
    if (orders.step) send_step(member);
    if (orders.hello) send_hello(member, now);
  }

  void send_hello(Member& member, double now) {
    hello_.group = member.session.group();
    hello_.nonce = member.session.nonce();
    hello_.run_id = member.session.run_id();
    if (!send(connections_[member.connection], encode(hello_))) member.session.hello_stayed(now);
  }

  // Without a connection nothing is sent; a PONG on the next one will show that this STEP is missing.
  void send_step(Member& member) {
    const auto& group = member.group;
    auto& connection = connections_[member.connection];
    member.session.step_left(detail::milliseconds(detail::seconds_now()));
    const auto header = encode_step(member.session.session(), member.session.seq(), group.has_statistics());
    if (!send(connection, header, zmq::send_flags::sndmore)) return;
    for (std::size_t i = 0; i < group.payload().size(); ++i) {
      const bool is_last = i + 1 == group.payload().size() && !group.has_statistics();
      send(connection, group.payload()[i], is_last ? zmq::send_flags::none : zmq::send_flags::sndmore);
    }
    if (group.has_statistics()) send(connection, group.statistics());
  }

  // False if there is no connection. A message whose first frame was taken is taken whole.
  template <class Data>
  static bool send(Connection& connection, const Data& data, zmq::send_flags flags = zmq::send_flags::none) {
    const bool is_taken = connection.socket.send(zmq::buffer(data), flags | zmq::send_flags::dontwait).has_value();
    if (is_taken) connection.closed_at = 0;
    else if (connection.closed_at <= 0) connection.closed_at = detail::seconds_now();
    return is_taken;
  }

  // libzmq does not always dial again after a handshake that was refused: do it on a new socket, with the keys as their
  // files are now.
  void redial(double now) {
    for (auto& connection : connections_) {
      if (connection.closed_s(now) < redial_s) continue;
      reread_keys();
      connection.socket = dial(connection.address);
      connection.closed_at = now;
    }
  }

  // Goes on with the former keys if the files cannot be read now.
  void reread_keys() {
    try {
      keys_ = read_keys(config_.keys);
    } catch (const Refused& problem) {
      std::fprintf(stderr, "%s\n", problem.what());
    }
  }

  // Sends the PINGs that are due, also while environments step. Raises Stopped after a signal.
  void keep_alive() {
    if (detail::stop_asked) throw Stopped{};
    const double now = detail::seconds_now();
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      if (now >= connections_[i].ping_due) ping(i, now);
    }
  }

  void ping(std::size_t index, double now) {
    auto& connection = connections_[index];
    connection.ping_due = now + retry_s;
    double beat_s = 0;
    for (const auto& member : members_)
      if (member->connection == index && member->session.active()) beat_s = member->session.beat_s();
    if (beat_s <= 0) return;  // no session, no lease
    connection.pinged_ms = detail::milliseconds(now);
    if (send(connection, encode_ping(connection.pinged_ms, load(now)))) connection.ping_due = now + beat_s;
  }

  // The share of time that environments ran, and steps a second, since the last time that it was a beat ago or more.
  const std::vector<std::pair<std::string, double>>& load(double now) {
    if (now - load_.since < 1) return load_.figures;
    std::uint64_t steps = 0;
    for (const auto& member : members_) steps += member->group.steps();
    const double seconds = now - load_.since;
    load_.figures = {{"env_busy", std::min(1.0, (busy_s_ - load_.busy_s) / seconds)},
                     {"steps_per_s", static_cast<double>(steps - load_.steps) / seconds}};
    load_.since = now;
    load_.busy_s = busy_s_;
    load_.steps = steps;
    return load_.figures;
  }

  // Says what groups have been waiting for, and what was dropped.
  void report(double now) {
    report_due_ = now + report_every_s;
    for (const auto& member : members_) {
      if (now - member->acted_at < report_every_s) continue;
      std::fprintf(stderr, "group %llu waits for %s\n", static_cast<unsigned long long>(member->session.group()),
                   detail::printable(member->session.waits_for()).c_str());
    }
    if (num_malformed_ == 0) return;
    std::fprintf(stderr, "dropped %llu messages, the last one was %s\n",
                 static_cast<unsigned long long>(num_malformed_), last_malformed_.c_str());
    num_malformed_ = 0;
  }

  void say_bye() {
    for (auto& connection : connections_) send(connection, encode_bye(0, "stopped"));
  }

  Config config_;
  std::optional<Keys> keys_;
  std::size_t max_bytes_ = 0;  // of a frame that may come
  std::random_device device_;
  Hello hello_;
  zmq::context_t context_;  // outlives its sockets
  std::vector<Connection> connections_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<zmq::message_t> frames_;  // of the message being read
  bool finished_ = false;
  double report_due_ = 0;
  double busy_s_ = 0;  // environments ran, in all
  struct Load {
    double since = detail::seconds_now(), busy_s = 0;
    std::uint64_t steps = 0;
    std::vector<std::pair<std::string, double>> figures;
  } load_;
  std::uint64_t num_malformed_ = 0;
  std::string last_malformed_;
};

// The whole of main(): configuration, signals, the service. Returns the exit status. 0: the run is over, or a signal
// asked for the end. 78: the configuration is wrong, or inference refused it for good. 1: it failed.
inline int serve(int argc, char** argv, const Specification& spec, const MakeEnvironment& make) {
  const auto stop = [](int) { detail::stop_asked = 1; };
  std::signal(SIGTERM, stop);
  std::signal(SIGINT, stop);
  try {
    Actor(read_config(argc, argv), spec, make).run();
    return 0;
  } catch (const Refused& error) {
    const auto cause = detail::printable(error.what());
    std::fprintf(stderr, "%s\n", cause.c_str());
    if (const char* file = std::getenv("SEEDBED_CAUSE_FILE")) std::ofstream(file) << cause << "\n";
    return 78;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace seedbed
