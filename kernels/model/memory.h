// The model's memory. Every location has a history of stores, in the order on which all threads agree. A thread has a view: for each
// location the oldest store that it may still read.
//
//   relaxed load    reads any store not older than the view, and moves the view there. What the store carries is kept for a fence
//   acquire load    joins the view with what the store carries
//   relaxed store   is placed anywhere after the view, so also before stores that the thread has not seen, as on a machine where
//                   a store takes long to arrive. Carries the view at the thread's last release fence
//   release store   carries the thread's view: release is cumulative
//   add             reads any store that it may, unless an add already follows it, and is placed directly after it. Also carries what
//                   that store carried
//   swap            compare-and-swap: an add that reads a store of the expected value, or a relaxed load of one of another value
//   acquire fence   acquires what the thread's earlier relaxed loads have read carries
//   release fence   the thread's later relaxed stores carry the view that it has now
//   full fence      both; a sequentially consistent one also joins the views of all such fences before it
//
// Not modelled: a store that is performed before an earlier load of its thread (in the protocols, stores depend on such loads), and
// out-of-thin-air values.
#ifndef RAILHEAD_KERNELS_MODEL_MEMORY_H_
#define RAILHEAD_KERNELS_MODEL_MEMORY_H_

#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace railhead::model {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u);
  z = (z ^ (z >> 32)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 29);
}

// A store's position in its location's order. Appended stores leave room for later ones between them.
using Time = uint32_t;
constexpr Time kTimeGap = 4096;

// A view also has a clock of each thread: how many of its accesses happen before what the thread with the view does next. Only what the
// race check notes is counted (races.h).
class View {
 public:
  void reset(size_t locations, size_t threads) {
    at_.assign(locations, 0);
    clocks_.assign(threads, 0);
  }
  Time& operator[](int location) { return at_[static_cast<size_t>(location)]; }
  Time operator[](int location) const { return at_[static_cast<size_t>(location)]; }
  uint32_t& clock(int thread) { return clocks_[static_cast<size_t>(thread)]; }
  void join(const View& other) {
    joinLocations(other);
    for (size_t i = 0; i < clocks_.size(); i++) clocks_[i] = std::max(clocks_[i], other.clocks_[i]);
  }
  void joinLocations(const View& other) {
    for (size_t i = 0; i < at_.size(); i++) at_[i] = std::max(at_[i], other.at_[i]);
  }

  uint64_t hash() const {
    uint64_t h = 0;
    for (Time t : at_) h = mix(h, t);
    for (uint32_t c : clocks_) h = mix(h, c);
    return h;
  }

 private:
  std::vector<Time> at_;
  std::vector<uint32_t> clocks_;
};

constexpr int kNoView = -1;

struct Store {
  uint64_t value;
  Time time;
  int carries;   // index of a view in Memory::carried_, or kNoView
  bool glued;    // an add: no store comes between it and the store before it
  int fiber;     // -1: the initial value
  int step;      // of the run, for the trace
  uint64_t id;   // the same in every run in which its fiber has read the same before
};

struct Location {
  std::vector<Store> stores;  // oldest first
  uint64_t hash = 0;          // of the ids of stores
  const Store& newest() const { return stores.back(); }
};

// The memory state of a fiber.
struct Thread {
  View view;
  View read;              // what relaxed loads since the last acquire fence have read carries
  bool readAny = false;
  int released = kNoView;  // the view at the last release fence
};

// What a fence orders. kBoth is a GPU's fence.acq_rel.
enum class Fence { kAcquire, kRelease, kBoth, kConsistent };
inline const char* nameOf(Fence fence) {
  constexpr const char* kNames[] = {"fence.acquire", "fence.release", "fence.acq_rel", "fence.seq_cst"};
  return kNames[static_cast<int>(fence)];
}

// A range of memory with locations of one size.
struct Region {
  const char* base;
  size_t bytes, unit;
  int first;                                                     // its first location
  std::function<std::string(size_t)> name;                       // of a unit, for the trace
  std::function<bool(size_t, int rank, uint64_t value)> mayHold;  // whether the rank may store the value there
  bool ordered = false;                                           // relaxed accesses must not race either (races.h)
};

class Memory {
 public:
  // Set-up. mayHold may be empty: any rank may store any value.
  Region& add(const void* base, size_t bytes, size_t unit, std::function<std::string(size_t)> name,
              std::function<bool(size_t, int, uint64_t)> mayHold = {}) {
    regions_.push_back({static_cast<const char*>(base), bytes, unit, static_cast<int>(locations_.size()), std::move(name), std::move(mayHold)});
    locations_.resize(locations_.size() + bytes / unit);
    return regions_.back();
  }
  void begin(size_t threads) {
    threads_ = threads;
    for (Location& l : locations_) {
      if (l.stores.empty()) l.stores.push_back({0, 0, kNoView, false, -1, 0, 0});
    }
    consistent_.reset(locations_.size(), threads);
  }
  // Sets an initial value, before the threads start.
  void initial(const void* p, uint64_t value) {
    int location = find(p, 0);
    if (location < 0) location = find(p, 4);
    locations_[static_cast<size_t>(location)].stores.assign(1, {value, 0, kNoView, false, -1, 0, value});
  }

  size_t locations() const { return locations_.size(); }
  Location& at(int location) { return locations_[static_cast<size_t>(location)]; }

  // The location of an access of `unit` bytes, 0 = any size. -1: there is none.
  int find(const void* p, size_t unit) const {
    const char* at = static_cast<const char*>(p);
    for (const Region& r : regions_) {
      if (at < r.base || at >= r.base + r.bytes) continue;
      const auto offset = static_cast<size_t>(at - r.base);
      if (offset % r.unit != 0 || (unit != 0 && unit != r.unit)) return -1;
      return r.first + static_cast<int>(offset / r.unit);
    }
    return -1;
  }
  std::string name(int location) const {
    const Region& r = regionOf(location);
    return r.name(static_cast<size_t>(location - r.first));
  }
  bool mayHold(int location, int rank, uint64_t value) const {
    const Region& r = regionOf(location);
    return !r.mayHold || r.mayHold(static_cast<size_t>(location - r.first), rank, value);
  }

  bool isOrdered(int location) const { return regionOf(location).ordered; }

  // The thread reads nothing older than what is newest now.
  void showAll(Thread& t) {
    for (size_t i = 0; i < locations_.size(); i++) t.view[static_cast<int>(i)] = locations_[i].newest().time;
  }

  // How many of the newest stores of a location the thread may read.
  int readable(const Thread& t, int location) {
    const auto& stores = at(location).stores;
    size_t first = stores.size() - 1;
    while (first > 0 && stores[first - 1].time >= t.view[location]) first--;
    return static_cast<int>(stores.size() - first);
  }
  // Reads the back-th newest store.
  const Store& load(Thread& t, int location, int back, bool acquire) {
    auto& stores = at(location).stores;
    const Store& s = stores[stores.size() - 1 - static_cast<size_t>(back)];
    t.view[location] = s.time;
    if (s.carries != kNoView) {
      if (acquire) {
        t.view.join(carried_[static_cast<size_t>(s.carries)]);
      } else {
        if (!t.readAny) t.read.reset(locations_.size(), threads_);
        t.readAny = true;
        t.read.join(carried_[static_cast<size_t>(s.carries)]);
      }
    }
    return s;
  }

  // Where the thread may place a new store: how many of the newest stores it precedes. None comes between an add and the store before it.
  void places(const Thread& t, int location, std::vector<int>* backs) {
    const auto& stores = at(location).stores;
    backs->assign(1, 0);
    for (size_t i = stores.size(); i-- > 1;) {
      if (stores[i].time <= t.view[location] || stores[i - 1].time < t.view[location]) break;
      if (!stores[i].glued && stores[i].time - stores[i - 1].time >= 2) backs->push_back(static_cast<int>(stores.size() - i));
    }
  }
  void store(Thread& t, int location, uint64_t value, int back, bool release, int fiber, int step, uint64_t id) {
    auto& stores = at(location).stores;
    const size_t before = stores.size() - static_cast<size_t>(back);
    const Time time = back == 0 ? stores.back().time + kTimeGap : stores[before - 1].time + (stores[before].time - stores[before - 1].time) / 2;
    t.view[location] = time;
    const int carries = release ? keep(t.view) : t.released;
    stores.insert(stores.begin() + static_cast<ptrdiff_t>(before), {value, time, carries, false, fiber, step, id});
    rehash(location);
  }
  // Of the newest stores that the thread may read, those that an add may follow directly.
  void addable(const Thread& t, int location, std::vector<int>* backs) {
    const auto& stores = at(location).stores;
    backs->clear();
    for (int back = 0; back < readable(t, location); back++) {
      const size_t next = stores.size() - static_cast<size_t>(back);
      if (back == 0 || (!stores[next].glued && stores[next].time - stores[next - 1].time >= 2)) backs->push_back(back);
    }
  }
  // Of the newest stores that the thread may read, those of another value, and those of the expected one that a swap may follow directly.
  void swappable(const Thread& t, int location, uint64_t expected, std::vector<int>* backs) {
    const auto& stores = at(location).stores;
    addable(t, location, backs);
    const auto valueOf = [&](int back) { return stores[stores.size() - 1 - static_cast<size_t>(back)].value; };
    backs->erase(std::remove_if(backs->begin(), backs->end(), [&](int back) { return valueOf(back) != expected; }), backs->end());
    for (int back = 0; back < readable(t, location); back++) {
      if (valueOf(back) != expected) backs->push_back(back);
    }
    std::sort(backs->begin(), backs->end());
  }
  // Adds to the back-th newest store. Returns its value.
  uint64_t add(Thread& t, int location, int back, uint64_t value, uint64_t mask, bool acquire, int fiber, int step, uint64_t id) {
    const Store old = load(t, location, back, acquire);
    auto& stores = at(location).stores;
    const size_t next = stores.size() - static_cast<size_t>(back);
    const Time time = back == 0 ? old.time + kTimeGap : old.time + (stores[next].time - old.time) / 2;
    t.view[location] = time;
    int carries = t.released;
    if (old.carries != kNoView && carries != kNoView) {
      carries = keep(carried_[static_cast<size_t>(carries)]);
      carried_[static_cast<size_t>(carries)].join(carried_[static_cast<size_t>(old.carries)]);
    } else if (old.carries != kNoView) {
      carries = old.carries;
    }
    stores.insert(stores.begin() + static_cast<ptrdiff_t>(next), {(old.value + value) & mask, time, carries, true, fiber, step, id});
    rehash(location);
    return old.value;
  }

  void fence(Thread& t, Fence fence, uint64_t id) {
    if (fence != Fence::kRelease) {
      if (t.readAny) t.view.join(t.read);
      t.readAny = false;
    }
    if (fence == Fence::kConsistent) {
      t.view.joinLocations(consistent_);  // full fences order stores and loads, but nothing happens before because of them
      consistent_ = t.view;
      fenceHash_ = mix(fenceHash_, id);
    }
    if (fence != Fence::kAcquire) t.released = keep(t.view);
  }
  // All threads of ts get the views of all others.
  void joinViews(const std::vector<Thread*>& ts) {
    for (size_t i = 1; i < ts.size(); i++) ts[0]->view.join(ts[i]->view);
    for (size_t i = 1; i < ts.size(); i++) ts[i]->view = ts[0]->view;
  }
  // A kernel has ended. What its threads have released is released for the next kernel's threads; what they have not acquired is lost. fences:
  // the end is a full fence of each thread.
  void joinKernels(const std::vector<Thread*>& ts, bool fences) {
    for (Thread* t : ts) {
      if (fences && t->readAny) t->view.join(t->read);
    }
    joinViews(ts);
    for (Thread* t : ts) {
      if (fences) t->released = keep(t->view);
    }
    int all = kNoView;
    for (Thread* t : ts) {
      if (t->released == kNoView) continue;
      if (all == kNoView) {
        all = keep(carried_[static_cast<size_t>(t->released)]);
      } else {
        carried_[static_cast<size_t>(all)].join(carried_[static_cast<size_t>(t->released)]);
      }
    }
    for (Thread* t : ts) {
      t->released = all;
      t->readAny = false;
    }
  }

  uint64_t hash() const { return mix(hash_, fenceHash_); }
  uint64_t fenceHash() const { return fenceHash_; }

 private:
  const Region& regionOf(int location) const {
    size_t i = regions_.size() - 1;
    while (regions_[i].first > location) i--;
    return regions_[i];
  }
  int keep(const View& v) {
    carried_.push_back(v);
    return static_cast<int>(carried_.size()) - 1;
  }
  void rehash(int location) {
    Location& l = at(location);
    hash_ -= l.hash;
    l.hash = static_cast<uint64_t>(location) + 1;
    for (const Store& s : l.stores) l.hash = mix(l.hash, s.id);
    hash_ += l.hash;
  }

  std::vector<Region> regions_;
  std::vector<Location> locations_;
  std::vector<View> carried_;  // views that stores carry
  View consistent_;            // of all sequentially consistent fences
  uint64_t hash_ = 0, fenceHash_ = 0;
  size_t threads_ = 0;
};

}  // namespace railhead::model

#endif  // RAILHEAD_KERNELS_MODEL_MEMORY_H_
