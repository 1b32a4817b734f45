// Prints the order in which foldRanks adds, as an expression, for each reduce group of a world.
//
// Usage: fold WORLD; a line for each reduce group 1..WORLD.
#include "railhead/fold.h"

#include <string>

#include "check.h"

namespace {

// A tile whose += is neither associative nor commutative.
struct Expression {
  std::string text;
  Expression& operator+=(const Expression& other) {
    text = "(" + text + "+" + other.text + ")";
    return *this;
  }
};

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  const int world = atoi(argv[1]);
  for (int group = 1; group <= world; group++) {
    const Expression e = railhead::foldRanks<Expression>(world, group, [&](int r) {
      CHECK(r >= 0 && r < world);
      return Expression{std::to_string(r)};
    });
    puts(e.text.c_str());
  }
  return 0;
}
