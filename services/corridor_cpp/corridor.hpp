// A corridor with a way out at one end. The agent sees where it stands and at which end the exit is.
#pragma once

#include <random>

#include "seedbed/group.hpp"

// Observation: float32 [2], the position from -1 (left end) to 1, and the exit's side, -1 or 1.
// Action: 0 left, 1 right; at a wall, standing still. Reward: 1 at the exit, less 0.01 each step. An episode is
// truncated after 50 steps. The start (3 … 7 of cells 0 … 10) and the side of the exit are drawn from the seed.
class Corridor : public seedbed::Environment {
 public:
  static constexpr int num_cells = 11, max_episode_steps = 50;

  static seedbed::Specification specification() {
    return {"Corridor-v1",
            {{"num_cells", std::to_string(num_cells)}, {"max_episode_steps", std::to_string(max_episode_steps)}},
            seedbed::box(seedbed::DType::float32, {2}, {-1}, {1}),
            seedbed::discrete(2),
            0,
            {}};
  }

  void reset(std::optional<std::uint64_t> seed, seedbed::Row& row) override {
    if (seed) random_.seed(*seed);
    cell_ = 3 + static_cast<int>(random_() % 5);
    exit_ = random_() % 2 == 0 ? 0 : num_cells - 1;
    steps_ = 0;
    observe(row);
  }

  void step(const seedbed::Action& action, seedbed::Row& row) override {
    cell_ = std::clamp(cell_ + (*action.leaf<std::int64_t>() == 1 ? 1 : -1), 0, num_cells - 1);
    ++steps_;
    row.terminated = cell_ == exit_;
    row.truncated = !row.terminated && steps_ == max_episode_steps;
    row.reward = (row.terminated ? 1.0f : 0.0f) - 0.01f;
    observe(row);
  }

 private:
  void observe(seedbed::Row& row) const {
    const auto values = row.observation<float>();
    values[0] = 2.0f * static_cast<float>(cell_) / (num_cells - 1) - 1.0f;
    values[1] = exit_ == 0 ? -1.0f : 1.0f;
  }

  std::mt19937_64 random_;
  int cell_ = 0, exit_ = 0, steps_ = 0;
};
