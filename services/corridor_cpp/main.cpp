#include "corridor.hpp"
#include "seedbed/actor.hpp"

int main(int argc, char** argv) {
  return seedbed::serve(argc, argv, Corridor::specification(), [] { return std::make_unique<Corridor>(); });
}
