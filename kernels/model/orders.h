// Changes of orders and steps. Each release, acquire and fence that the protocols execute can be replaced by a weaker one, or a fence by the
// opposite one, and each store to a shared word, add and wake-up can be left out, without a mutant in the source. So the list of mistakes that
// the scenarios must detect (orders.txt) has every order of the protocols, also one that is added later. Stores of data (tiles, chunks) are
// not in it.
//
// An order is named by the function that asks for it, by what it is, and by the kind of word. A change adds what it becomes:
//
//   publish: store.release of head from: relaxed
//   announce: fence.release: acquire
//   sleepOn: add of sleepers of generation: left out
#ifndef RAILHEAD_KERNELS_MODEL_ORDERS_H_
#define RAILHEAD_KERNELS_MODEL_ORDERS_H_

#include <ctype.h>

#include <set>
#include <string>
#include <vector>

#include "model/memory.h"
#include "model/races.h"

namespace railhead::model {

class Orders {
 public:
  // "" = none. Of all runs of the program.
  static void change(const std::string& change) {
    const size_t colon = change.rfind(": ");
    changed() = change.substr(0, colon);
    becomes() = colon == std::string::npos ? "" : change.substr(colon + 2);
  }
  // Collects the orders that are executed.
  static void collect() { collecting() = true; }
  // Every change of the collected orders.
  static std::vector<std::string> changes() {
    std::vector<std::string> all;
    for (const std::string& order : seen()) {
      for (const char* to : weaker(order)) all.push_back(order + ": " + to);
    }
    return all;
  }

  // function: "" if the access is not one of the protocols.
  static Order of(Order order, const char* function, const char* what, const Memory& memory, int location) {
    if (isIdle() || *function == 0 || (order != Order::kAcquire && order != Order::kRelease)) return order;
    const std::string name = plain(function) + ": " + what + " of " + kind(memory.name(location));
    if (collecting()) seen().insert(name);
    return name == changed() && becomes() == "relaxed" ? Order::kRelaxed : order;
  }
  // Whether a store, add or wake-up is left out.
  static bool leavesOut(const char* function, const char* what, const Memory& memory, int location) {
    if (isIdle() || *function == 0) return false;
    const std::string name = plain(function) + ": " + what + " of " + kind(memory.name(location));
    if (collecting()) seen().insert(name);
    return name == changed() && becomes() == "left out";
  }
  // False: there is no fence.
  static bool of(Fence* fence, const char* function) {
    if (isIdle() || *function == 0) return true;
    const std::string name = plain(function) + ": " + nameOf(*fence);
    if (collecting()) seen().insert(name);
    if (name != changed()) return true;
    for (const Fence f : {Fence::kAcquire, Fence::kRelease, Fence::kBoth}) {
      if (std::string("fence.") + becomes() != nameOf(f)) continue;
      *fence = f;
      return true;
    }
    return false;
  }

 private:
  static std::string plain(const std::string& function) { return function.substr(0, function.find('<')); }
  static bool isIdle() { return !collecting() && changed().empty(); }
  static std::vector<const char*> weaker(const std::string& order) {
    const auto has = [&](const char* what) { return order.find(what) != std::string::npos; };
    if (has("fence.seq_cst")) return {"none", "acq_rel"};
    if (has("fence.acq_rel")) return {"none", "acquire", "release"};
    if (has("fence.acquire")) return {"none", "release"};
    if (has("fence.release")) return {"none", "acquire"};
    if (has(": store.release")) return {"relaxed", "left out"};
    if (has(": load") || has(": swap")) return {"relaxed"};
    return {"left out"};
  }
  // A location's name without numbers and its rank.
  static std::string kind(const std::string& name) {
    std::string k;
    for (const char c : name) {
      if (isdigit(static_cast<unsigned char>(c)) || (c == ' ' && (k.empty() || k.back() == ' '))) continue;
      k += c;
    }
    const size_t rank = k.rfind(" of rank");
    if (rank != std::string::npos) k.erase(rank, 8);
    while (!k.empty() && k.back() == ' ') k.pop_back();
    return k;
  }

  static std::string& changed() {
    static std::string order;
    return order;
  }
  static std::string& becomes() {
    static std::string order;
    return order;
  }
  static bool& collecting() {
    static bool on = false;
    return on;
  }
  static std::set<std::string>& seen() {
    static std::set<std::string> orders;
    return orders;
  }
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_ORDERS_H_
