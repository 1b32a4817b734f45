// Checks the places of ranks in chains and double binary trees, for every world size.
#include "railhead/base/tree.h"

#include "check.h"

using namespace railhead;

namespace {

bool isChildOf(int child, const TreePlace& parent) {
  for (int k = 0; k < parent.n; k++) {
    if (parent.children[k] == child) return true;
  }
  return false;
}

void check(Tree tree, bool second, int n) {
  int roots = 0, links = 0;
  for (int r = 0; r < n; r++) {
    const TreePlace p = placeIn(tree, second, r, n);
    CHECK(p.parent < n && p.parent != r && p.n >= 0 && p.n <= 2);
    if (p.parent < 0) {
      roots++;
    } else {
      CHECK(isChildOf(r, placeIn(tree, second, p.parent, n)));
    }
    for (int k = 0; k < p.n; k++) {
      CHECK(p.children[k] >= 0 && p.children[k] < n);
      CHECK(placeIn(tree, second, p.children[k], n).parent == r);
    }
    CHECK(p.n < 2 || p.children[0] != p.children[1]);
    links += p.n;
    int most = n - 1;
    if (tree == Tree::kDouble) {
      most = 0;
      while (1 << most < n) most++;
    }
    CHECK(depthIn(tree, second, r, n) <= most);  // depthIn also ends only if there is no cycle
  }
  CHECK(roots == 1 && links == n - 1);
}

}  // namespace

int main() {
  for (int n = 1; n <= kMaxWorldSize; n++) {
    check(Tree::kChain, false, n);
    check(Tree::kDouble, false, n);
    check(Tree::kDouble, true, n);
    // At most one rank is an inner rank of both trees, and only if the number of ranks is odd.
    int twice = 0;
    for (int r = 0; r < n; r++) {
      twice += placeIn(Tree::kDouble, false, r, n).n > 0 && placeIn(Tree::kDouble, true, r, n).n > 0;
    }
    if (twice > n % 2) fprintf(stderr, "%d ranks: %d are inner ranks of both trees\n", n, twice);
    CHECK(twice <= n % 2 || n == 2);
  }
  return 0;
}
