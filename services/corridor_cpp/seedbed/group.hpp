// The lanes of one group: environments, their rows in wire layout, next-step autoreset (section 3.2 of
// docs/protocol.md).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "messages.hpp"
#include "spaces.hpp"

namespace seedbed {

using Bytes = std::vector<unsigned char>;

// Environments fail again and again; the process ends with status 1, and its supervisor starts it anew.
struct EnvironmentFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An environment used a leaf otherwise than its specification says. That is an error of its code, so the process ends.
struct Misuse : std::logic_error {
  using std::logic_error::logic_error;
};

// The elements of one array of a lane, in C order. An index beyond them throws Misuse.
template <class T> class Elements {
 public:
  Elements(T* data, std::size_t size, std::string_view name) : data_(data), size_(size), name_(name) {}

  T& operator[](std::size_t index) const {
    if (index >= size_)
      throw Misuse("element " + std::to_string(static_cast<std::int64_t>(index)) + " of " + std::string(name_) +
                   ", which has " + std::to_string(size_));
    return data_[index];
  }
  T& operator*() const { return (*this)[0]; }
  T* data() const { return data_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  std::size_t size() const { return size_; }

 private:
  T* data_;
  std::size_t size_;
  std::string_view name_;
};

// Where the leaves of one lane's observation or action lie.
class Leaves {
 protected:
  template <class T> Elements<T> elements(std::size_t number) const {
    if (number >= spec_->size())
      throw Misuse("leaf " + std::to_string(number) + ": there are " + std::to_string(spec_->size()));
    const auto& leaf = (*spec_)[number];
    constexpr DType asked = dtype_of<std::remove_const_t<T>>::value;
    const std::string_view name = leaf.name.empty() ? std::string_view("the only leaf") : std::string_view(leaf.name);
    if (asked != leaf.dtype)
      throw Misuse("leaf " + std::to_string(number) + " (" + std::string(name) + ") holds " + type_name(leaf.dtype) +
                   ", and the environment asks for " + type_name(asked));
    return {reinterpret_cast<T*>(places_[number]), leaf.elements, name};  // places are multiples of 8 bytes
  }

  std::size_t find(std::string_view name) const {
    std::string known;
    for (std::size_t i = 0; i < spec_->size(); ++i) {
      if ((*spec_)[i].name == name) return i;
      known += (i > 0 ? ", " : "") + (*spec_)[i].name;
    }
    throw Misuse("no leaf is called " + std::string(name) + "; there are: " + known);
  }

  friend class Group;
  const std::vector<Leaf>* spec_ = nullptr;
  std::vector<unsigned char*> places_;
};

// Where one lane's row is written: straight into the message that will be sent.
class Row : public Leaves {
 public:
  // The elements of an observation leaf, by its name in the dict, or by its number: a dict's leaves are in the
  // alphabetical order of their names. They hold the lane's row before this one. T is the leaf's type.
  template <class T> Elements<T> observation(std::string_view name) { return elements<T>(find(name)); }
  template <class T> Elements<T> observation(std::size_t number = 0) { return elements<T>(number); }

  // One entry for each category: 1 allowed, 0 not. None if the specification has mask_size 0.
  Elements<std::uint8_t> mask() { return {mask_, mask_size_, "the mask"}; }

  // Specification::statistics of the episode, in their order; read at rows that end one.
  Elements<float> statistics() { return {statistics_.data(), statistics_.size(), "the statistics"}; }

  float reward = 0;
  bool terminated = false, truncated = false, life_lost = false;

 private:
  friend class Group;
  std::uint8_t* mask_ = nullptr;
  std::size_t mask_size_ = 0;
  std::vector<float> statistics_;
};

// What one lane is to do.
class Action : public Leaves {
 public:
  // The elements of an action leaf, within the bounds of its space. Names, numbers and T as for an observation.
  template <class T> Elements<const T> leaf(std::string_view name) const { return elements<const T>(find(name)); }
  template <class T> Elements<const T> leaf(std::size_t number = 0) const { return elements<const T>(number); }
};

// One lane: what an author writes. A lane that throws, or gives NaN or infinity, is made anew.
class Environment {
 public:
  virtual ~Environment() = default;

  // Begins an episode: writes its first observation (and mask). Everything random follows from the last seed given.
  virtual void reset(std::optional<std::uint64_t> seed, Row& row) = 0;

  // Goes one step: writes the observation, row.reward, row.terminated, row.truncated. Never called on an ended episode.
  virtual void step(const Action& action, Row& row) = 0;
};

using MakeEnvironment = std::function<std::unique_ptr<Environment>()>;

// The seed of a lane (splitmix64 of both), so that the same group seed gives the same episodes in every lane.
inline std::uint64_t lane_seed(std::uint64_t group_seed, std::uint64_t lane) {
  std::uint64_t z = group_seed + (lane + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

class Group {
 public:
  Group(Specification spec, std::size_t lanes, MakeEnvironment make)
      : spec_(std::move(spec)), make_(std::move(make)), rows_(step_layout(spec_, lanes)),
        actions_(act_layout(spec_, lanes)), lanes_(lanes) {
    for (const auto bytes : rows_.frame_bytes) payload_.emplace_back(bytes);
    for (const auto bytes : actions_.frame_bytes) received_.emplace_back(bytes);
    for (auto& lane : lanes_) lane.environment = make_();
    row_.spec_ = &spec_.observation.leaves;
    row_.places_.resize(spec_.observation.leaves.size());
    action_.spec_ = &spec_.action.leaves;
    action_.places_.resize(spec_.action.leaves.size());
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::size_t lanes() const { return lanes_.size(); }
  std::uint64_t steps() const { return steps_; }        // valid transitions so far, of all lanes
  std::uint64_t failures() const { return failures_; }  // of environments so far

  // The rows, frame by frame, and behind them the statistics frame if has_statistics().
  const std::vector<Bytes>& payload() const { return payload_; }
  const std::vector<float>& statistics() const { return statistics_; }
  bool has_statistics() const { return !statistics_.empty(); }

  // Takes the frames of an ACT. frame(i) gives data and size. Raises WireError for other sizes than the layout's.
  template <class Frame> void take_actions(std::size_t num_frames, Frame frame) {
    if (num_frames != received_.size()) throw WireError("an ACT of " + std::to_string(num_frames) + " payload frames");
    for (std::size_t i = 0; i < num_frames; ++i) {
      const std::pair<const void*, std::size_t> bytes = frame(i);
      if (bytes.second != received_[i].size())
        throw WireError("an ACT frame of " + std::to_string(bytes.second) + " bytes");
      if (bytes.second > 0) std::memcpy(received_[i].data(), bytes.first, bytes.second);
    }
  }

  // Raises WireError if an action is outside its space.
  void check_actions() {
    for (std::size_t i = 0; i < spec_.action.leaves.size(); ++i) check_actions(spec_.action.leaves[i], place(i));
  }

  // Resets every lane: all rows are `first`. keep_alive() is called between lanes, for PING.
  template <class KeepAlive> void reset(std::uint64_t group_seed, KeepAlive keep_alive) {
    statistics_.clear();
    seed_ = group_seed;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      attempt(i, [&] { begin(i, lane_seed(group_seed, i)); });
      keep_alive();
    }
  }

  // Steps every lane with the actions taken; those whose episode ended are reset instead.
  template <class KeepAlive> void step(KeepAlive keep_alive) {
    statistics_.clear();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      attempt(i, [&] { lanes_[i].ended ? begin(i, std::nullopt) : advance(i); });
      keep_alive();
    }
  }

 private:
  enum Flag : std::uint8_t { terminated = 1, truncated = 2, first = 4, life_lost = 8 };
  static constexpr float max_reward = 1e15f;
  static constexpr int max_failures = 20;  // without one good step between them

  struct Lane {
    std::unique_ptr<Environment> environment;
    bool ended = false;
    double episode_return = 0;
    std::uint64_t length = 0;
  };

  unsigned char* at(std::size_t array, std::size_t lane, std::size_t bytes) {
    const auto& place = rows_.places[array];
    return payload_[place.frame].data() + place.offset + lane * bytes;
  }

  unsigned char* place(std::size_t leaf) {
    return received_[actions_.places[leaf].frame].data() + actions_.places[leaf].offset;
  }

  void point_at(std::size_t lane) {
    const auto& leaves = spec_.observation.leaves;
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) row_.places_[leaf] = at(leaf, lane, leaves[leaf].bytes());
    row_.mask_ = spec_.mask_size > 0 ? at(leaves.size(), lane, spec_.mask_size) : nullptr;
    row_.mask_size_ = spec_.mask_size;
    row_.statistics_.assign(spec_.statistics.size(), 0.0f);
    row_.reward = 0;
    row_.terminated = row_.truncated = row_.life_lost = false;
  }

  // Writes reward and flags behind the observation, once it is known to be sound.
  void close(std::size_t lane, std::uint8_t flags) {
    for (std::size_t leaf = 0; leaf < row_.places_.size(); ++leaf)
      check_finite((*row_.spec_)[leaf], row_.places_[leaf]);
    if (!(std::abs(row_.reward) <= max_reward)) throw std::runtime_error("a reward that is NaN or beyond 1e15");
    std::memcpy(at(rows_.places.size() - 2, lane, sizeof(float)), &row_.reward, sizeof(float));
    *at(rows_.places.size() - 1, lane, 1) = flags;
  }

  void begin(std::size_t i, std::optional<std::uint64_t> seed) {
    auto& lane = lanes_[i];
    point_at(i);
    lane.environment->reset(seed, row_);
    row_.reward = 0;
    close(i, first);
    lane.ended = false;
    lane.episode_return = 0;
    lane.length = 0;
  }

  void advance(std::size_t i) {
    auto& lane = lanes_[i];
    point_at(i);
    for (std::size_t leaf = 0; leaf < action_.places_.size(); ++leaf)
      action_.places_[leaf] = place(leaf) + i * spec_.action.leaves[leaf].bytes();
    lane.environment->step(action_, row_);
    close(i, static_cast<std::uint8_t>((row_.terminated ? terminated : 0) | (row_.truncated ? truncated : 0) |
                                       (row_.life_lost ? life_lost : 0)));
    lane.episode_return += static_cast<double>(row_.reward);
    ++lane.length;
    ++steps_;
    failures_in_a_row_ = 0;
    lane.ended = row_.terminated || row_.truncated;
    if (!lane.ended) return;
    for (const float figure : row_.statistics_)
      if (!std::isfinite(figure)) throw std::runtime_error("a statistic that is not finite");
    statistics_.push_back(static_cast<float>(lane.episode_return));
    statistics_.push_back(static_cast<float>(lane.length));
    statistics_.insert(statistics_.end(), row_.statistics_.begin(), row_.statistics_.end());
  }

  // Does work on a lane; if it fails, the lane is made anew and its row is `first`.
  template <class Work> void attempt(std::size_t i, Work work) {
    try {
      return work();
    } catch (const std::exception& error) {
      failed(i, error);
    }
    for (;;) {
      try {
        lanes_[i].environment = make_();
        return begin(i, lane_seed(seed_ + failures_, i));
      } catch (const std::exception& error) {
        failed(i, error);
      }
    }
  }

  void failed(std::size_t lane, const std::exception& error) {
    if (dynamic_cast<const Misuse*>(&error) != nullptr) throw EnvironmentFailed(error.what());
    ++failures_;
    std::fprintf(stderr, "lane %zu is made anew: %s\n", lane, error.what());
    if (++failures_in_a_row_ >= max_failures)
      throw EnvironmentFailed("environments failed " + std::to_string(max_failures) +
                              " times without a good step between them, the last time with: " + error.what());
  }

  static void check_finite(const Leaf& leaf, const unsigned char* data) {
    if (!is_float(leaf.dtype)) return;
    bool finite = true;
    with_type(leaf.dtype, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_floating_point_v<T>) {
        const auto* items = reinterpret_cast<const T*>(data);
        for (std::size_t i = 0; i < leaf.elements; ++i) finite = finite && std::abs(items[i]) <= std::numeric_limits<float>::max();
      }
    });
    if (!finite) throw std::runtime_error("an observation that is not finite as a float");
  }

  void check_actions(const Leaf& leaf, const unsigned char* data) const {
    with_type(leaf.dtype, [&](auto zero) {
      using T = decltype(zero);
      const auto* items = reinterpret_cast<const T*>(data);
      for (std::size_t i = 0; i < lanes_.size() * leaf.elements; ++i) {
        if constexpr (std::is_floating_point_v<T>) {
          if (!std::isfinite(items[i])) throw WireError("an action that is not finite");
        } else if (!leaf.low.empty()) {
          const auto element = leaf.low.size() == 1 ? 0 : i % leaf.elements;
          const auto value = static_cast<std::int64_t>(items[i]);
          if (value < leaf.low[element] || value > leaf.high[element]) throw WireError("an action outside its space");
        }
      }
    });
  }

  const Specification spec_;
  const MakeEnvironment make_;
  const Layout rows_, actions_;
  std::vector<Lane> lanes_;
  std::vector<Bytes> payload_, received_;
  std::vector<float> statistics_;
  Row row_;
  Action action_;
  std::uint64_t seed_ = 0, steps_ = 0, failures_ = 0;
  int failures_in_a_row_ = 0;
};

}  // namespace seedbed
