// One group's session with an inference service (section 5 of docs/protocol.md): what to send, and when.
//
// Pure: events and the time go in, orders come out. No sockets, clocks or environments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "messages.hpp"

namespace seedbed {

// Inference refused this service for good, or the configuration is wrong: the process ends with status 78.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the owner of the group does now, in this order.
struct Orders {
  std::optional<std::uint64_t> leave;       // send BYE(moved) for this session
  bool elsewhere = false;                   // dial the next address, if there are several
  std::optional<std::uint64_t> reset_seed;  // reset every lane with it
  bool act = false;                         // step every lane with the actions of this ACT
  bool step = false;                        // send STEP: session(), seq(), the rows as they are
  bool hello = false;                       // send HELLO: nonce(), run_id()
  bool finished = false;                    // the run is over: leave, exit status 0
};

class Session {
 public:
  // random gives 64 random bits a call.
  Session(std::uint64_t group, std::function<std::uint64_t()> random) : group_(group), random_(std::move(random)) {}

  std::uint64_t group() const { return group_; }
  std::uint64_t session() const { return session_; }
  std::uint64_t seq() const { return seq_; }
  std::uint64_t nonce() const { return nonce_; }
  const std::string& run_id() const { return run_id_; }
  bool active() const { return active_; }
  double beat_s() const { return beat_s_; }

  // What this group waits for, for people.
  const std::string& waits_for() const { return waits_for_; }

  // Something may be due. silent_s: since the last message of this group's address. closed_s: since its connection was
  // found closed, 0 while it is open. now: seconds of any one clock.
  Orders at(double now, double silent_s, double closed_s) {
    if (active_) {
      if (std::min(silent_s, now - welcomed_at_) <= lease_s_ && closed_s < patience_s) return {};
      waits_for_ = closed_s > 0 ? "a connection" : "inference, from which nothing comes";
      return leave_and_greet(now);
    }
    if (now < hello_due_) return {};
    Orders orders;
    if (greeting_since_ && now - *greeting_since_ >= patience_s) {
      orders.elsewhere = true;
      greeting_since_ = now;
    }
    if (!greeting_since_) greeting_since_ = now;
    if (nonce_ == 0) nonce_ = new_nonce();
    say_hello(now, orders);
    return orders;
  }

  // The outstanding STEP left, at sent_ms of the clock that PING.sent_ms is read from.
  void step_left(std::uint64_t sent_ms) { step_sent_ms_ = sent_ms; }

  // The HELLO could not be sent: there is no connection. It costs nothing to try again soon.
  void hello_stayed(double now) {
    waits_for_ = "a connection";
    backoff_s_ = first_backoff_s;
    hello_due_ = now + spread(first_backoff_s);
  }

  Orders on(const Welcome& m, double now) {
    if (active_ || m.nonce != nonce_) return {};
    if (m.role != "inference") throw Refused("a service that calls itself " + m.role + " answered, not inference");
    if (m.protocol != protocol_version)
      throw Refused("inference chose protocol " + std::to_string(m.protocol) + ", which this service does not speak");
    Orders orders;
    const bool is_new = !m.resumed || m.session != session_;
    const bool is_other_run = has_rows_ && m.run_id != run_id_;
    session_ = m.session;
    if (is_new) seq_ = 0;
    if (m.next_seq != seq_ && (is_new || m.next_seq != seq_ + 1)) {
      orders = greet(now);
      orders.leave = session_;
      return orders;
    }
    run_id_ = m.run_id;
    if (!has_rows_ || (is_new && is_other_run)) orders.reset_seed = m.seed;
    has_rows_ = true;
    active_ = true;
    welcomed_at_ = now;
    beat_s_ = m.beat_s;
    lease_s_ = m.lease_s;
    backoff_s_ = first_backoff_s;
    greeting_since_.reset();
    waits_for_ = "actions";
    orders.step = true;
    return orders;
  }

  Orders on(const Reject& m, double now) {
    if (active_ || m.nonce != nonce_) return {};
    return refused(m.code, m.retryable, m.message, m.hint, now);
  }

  // Whether an ACT answers the outstanding STEP. Others are late or doubled.
  bool expects(const Act& m) const { return active_ && m.session == session_ && m.seq == seq_; }

  // An ACT that is expected, and whose payload is in order.
  Orders on(const Act& m) {
    Orders orders;
    ++seq_;
    if (m.reset) orders.reset_seed = m.reset_seed;
    else orders.act = true;
    orders.step = true;
    return orders;
  }

  Orders on(const Challenge& m, double now) {
    if (!active_ || m.session != session_) return {};
    waits_for_ = "inference, which did not know the session";
    return greet(now);
  }

  Orders on(const Pong& m, double now) {
    if (!active_ || m.sent_ms <= step_sent_ms_) return {};
    for (const auto& report : m.sessions) {
      if (report.session != session_) continue;
      waits_for_ = std::string("actions, inference says: ") + state_names[report.state];
      Orders orders;
      orders.step = report.last_seq < static_cast<std::int64_t>(seq_) || report.state == state_answered;
      return orders;
    }
    waits_for_ = "inference, which did not list the session";
    return greet(now);
  }

  Orders on(const Bye& m, double now) {
    Orders orders;
    if (m.session != 0 && m.session != session_) return orders;
    if (m.reason == "run_finished") {
      orders.finished = true;
      return orders;
    }
    if (m.session != 0 && !active_) return orders;
    if (m.reason == "another_run") run_id_.clear();
    waits_for_ = "inference, which ended the session: " + m.reason;
    if (active_) {  // not at once: whoever leaves needs a moment to be gone
      begin_greeting(now);
      hello_due_ = now + spread(first_backoff_s);
    }
    orders.elsewhere = true;
    return orders;
  }

  Orders on(const Error& m, double now) {
    const bool answers_hello = !active_ && m.nonce == nonce_;
    const bool concerns_session = active_ && m.session != 0 && m.session == session_;
    if (!answers_hello && !concerns_session) return {};
    return refused(m.code, m.retryable, m.message, m.hint, now);
  }

 private:
  static constexpr double first_backoff_s = 0.2, max_backoff_s = 2.0, patience_s = 3.0;

  // Ends the session on this side and says HELLO at once.
  Orders greet(double now) {
    begin_greeting(now);
    Orders orders;
    say_hello(now, orders);
    return orders;
  }

  void begin_greeting(double now) {
    active_ = false;
    nonce_ = new_nonce();
    backoff_s_ = first_backoff_s;
    greeting_since_ = now;
  }

  // Half of a wait to all of it, by the nonce: clients that lost one service do not all say HELLO at the same moments.
  double spread(double wait_s) const { return wait_s * (1.0 - 0.5 * static_cast<double>(nonce_ % 997) / 997.0); }

  std::uint64_t new_nonce() { return random_() | 1; }  // 0 would be "answers no HELLO"

  void say_hello(double now, Orders& orders) {
    hello_due_ = now + spread(backoff_s_);
    backoff_s_ = std::min(2 * backoff_s_, max_backoff_s);
    orders.hello = true;
  }

  // As greet, but the session is not wanted any more: BYE(moved), and the HELLO goes to the next address.
  Orders leave_and_greet(double now) {
    const auto left = session_;
    Orders orders = greet(now);
    orders.leave = left;
    orders.elsewhere = true;
    return orders;
  }

  Orders refused(const std::string& code, bool retryable, const std::string& message, const std::string& hint,
                 double now) {
    const auto said = code + (message.empty() ? "" : ": " + message) + (hint.empty() ? "" : "; " + hint);
    if (!retryable) throw Refused("inference refused group " + std::to_string(group_) + ", " + said);
    waits_for_ = "inference, which said " + said;
    Orders orders;
    if (active_) return orders;  // HELLO is said again when it is due
    greeting_since_ = now;       // somebody lives there
    orders.elsewhere = code == "draining" || code == "capacity";
    return orders;
  }

  std::uint64_t group_;
  std::function<std::uint64_t()> random_;
  bool active_ = false;    // welcomed, and not over
  bool has_rows_ = false;  // the environments were reset once
  std::uint64_t session_ = 0, seq_ = 0, nonce_ = 0, step_sent_ms_ = 0;
  std::string run_id_;
  double beat_s_ = 1.0, lease_s_ = 10.0, welcomed_at_ = 0.0;
  double hello_due_ = 0.0, backoff_s_ = first_backoff_s;
  std::optional<double> greeting_since_;
  std::string waits_for_ = "an answer to HELLO";
};

}  // namespace seedbed
