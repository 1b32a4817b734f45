// Prints the order in which foldRanks adds, as an expression.
//
// Usage: fold WORLD. Prints a line for each reduce group 1..WORLD.
#include "railhead/base/fold.h"

#include <string>

#include "check.h"

namespace {

// A sum whose += is neither associative nor commutative.
struct Expression {
  std::string text;
  Expression& operator+=(const Expression& other) {
    text = "(" + text + "+" + other.text + ")";
    return *this;
  }
};

struct Ranks {
  using Raw = std::string;
  using Sum = Expression;
  static Sum widen(const Raw& raw) { return {raw}; }
  static void add(Sum* sum, const Sum& other) { *sum += other; }
  static Raw narrow(const Sum& sum) { return sum.text; }
};

// Batches of one, as on a CPU, and of eight, as on a GPU.
template <int kBatch>
std::string order(int world, int group) {
  std::string out;
  CHECK((railhead::foldRanks<kBatch>(
      Ranks(), world, group,
      [&](int first, int count, std::string(&raw)[kBatch]) {
        CHECK(first >= 0 && count >= 1 && count <= kBatch && first + count <= world);
        for (int i = 0; i < count; i++) raw[i] = std::to_string(first + i);
        return true;
      },
      &out)));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  const int world = atoi(argv[1]);
  for (int group = 1; group <= world; group++) {
    const std::string one = order<1>(world, group);
    CHECK(one == order<8>(world, group));
    puts(one.c_str());
  }
  return 0;
}
