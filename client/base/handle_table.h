// Handles that can be checked: a handle is the index and generation of a slot, not an address. So a closed handle is always
// distinguished from a live one.
#ifndef RAILHEAD_CLIENT_BASE_HANDLE_TABLE_H_
#define RAILHEAD_CLIENT_BASE_HANDLE_TABLE_H_

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include <atomic>

namespace railhead::client {

template <class T, int kSlots>
class HandleTable {
  static_assert(kSlots < 0xffff, "the index has 16 bits");
  struct Slot {
    std::atomic<uint32_t> generation{1};
    std::atomic<T*> object{nullptr};
    std::atomic<int> users{0};      // shared references held (Shared)
    // idle(g) or held(g), where g is the generation of the object in the slot: whether a thread has exclusive access (Exclusive).
    std::atomic<uint64_t> access{idle(1)};
    std::atomic<bool> leaving{false};  // remove() still waits for references to the last object
  };

  static constexpr uint64_t idle(uint32_t generation) { return uint64_t{generation} << 1; }
  static constexpr uint64_t held(uint32_t generation) { return idle(generation) | 1; }

 public:
  // A shared reference: the object cannot go away while it is held. Any number of threads.
  class Shared {
   public:
    Shared(HandleTable& table, const void* handle) : slot_(table.slotOf(handle)) {
      if (slot_ == nullptr) return;
      // Sequentially consistent with remove(): either it sees this user, or this user sees no object.
      slot_->users.fetch_add(1);
      if (slot_->generation.load() == generationOf(handle)) object_ = slot_->object.load();
    }
    ~Shared() {
      if (slot_ != nullptr) slot_->users.fetch_sub(1);
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    T* get() const { return object_; }

   private:
    Slot* slot_;
    T* object_ = nullptr;
  };

  // Exclusive access to the object, without waiting. The data path uses it: it costs one atomic operation in and one store out.
  class Exclusive {
   public:
    Exclusive(HandleTable& table, const void* handle) : slot_(table.slotOf(handle)) {
      if (slot_ == nullptr) return;
      const uint32_t generation = generationOf(handle);
      // The word contains the generation, so a stale handle never holds the slot of a new owner, not even for a moment.
      uint64_t seen = idle(generation);
      const bool entered = slot_->access.compare_exchange_strong(seen, held(generation), std::memory_order_acquire);
      const bool live = slot_->generation.load(std::memory_order_relaxed) == generation;
      busy_ = live && seen == held(generation);
      if (!entered) {
        slot_ = nullptr;
      } else if (live) {
        object_ = slot_->object.load(std::memory_order_relaxed);
      }
    }
    ~Exclusive() {
      // The generation is a later one if the holder has removed the object.
      if (slot_ != nullptr) slot_->access.store(idle(slot_->generation.load(std::memory_order_relaxed)), std::memory_order_release);
    }
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;
    T* get() const { return object_; }
    bool busy() const { return busy_; }  // the handle is live, but another thread has exclusive access

   private:
    Slot* slot_;
    T* object_ = nullptr;
    bool busy_ = false;
  };

  // Returns the handle, nullptr when all slots are taken.
  void* insert(T* object) {
    pthread_mutex_lock(&mutex_);
    void* handle = nullptr;
    for (int i = 0; i < kSlots && handle == nullptr; i++) {
      Slot& slot = slots_[(next_ + i) % kSlots];
      // Still held: the thread that removed the last object has not released the slot yet.
      uint64_t access = slot.access.load();
      if (slot.object.load() != nullptr || slot.leaving.load() || (access & 1) != 0) continue;
      // Fails where a handle that forEach made of the empty slot holds it at this moment.
      if (!slot.access.compare_exchange_strong(access, idle(slot.generation.load()))) continue;
      slot.object.store(object);
      const auto index = static_cast<uintptr_t>((next_ + i) % kSlots);
      handle = reinterpret_cast<void*>(uintptr_t{slot.generation.load()} << 16 | (index + 1));
      next_ = static_cast<int>(index) + 1;
    }
    pthread_mutex_unlock(&mutex_);
    return handle;
  }

  // Ends the handle. Returns its object to the one caller who ended it, after all shared references have ended. Shared references are
  // short or have a deadline of their own, so this wait is bounded. The caller must hold none. In a table in which threads take exclusive
  // access, the caller has it.
  T* remove(const void* handle) {
    Slot* slot = slotOf(handle);
    if (slot == nullptr) return nullptr;
    uint32_t generation = generationOf(handle);
    if (!slot->generation.compare_exchange_strong(generation, nextGeneration(generation))) return nullptr;
    slot->leaving.store(true);
    T* object = slot->object.exchange(nullptr);
    while (slot->users.load() != 0) {
      const timespec pause = {0, 50 * 1000};
      nanosleep(&pause, nullptr);
    }
    slot->leaving.store(false);
    return object;
  }

  // Ends the handle and returns a new handle of the same object. It takes no lock and does not wait; existing references stay valid.
  // nullptr: the handle had ended before. Not in a table in which threads take exclusive access.
  void* renew(const void* handle) {
    Slot* slot = slotOf(handle);
    if (slot == nullptr) return nullptr;
    uint32_t generation = generationOf(handle);
    const uint32_t next = nextGeneration(generation);
    if (!slot->generation.compare_exchange_strong(generation, next)) return nullptr;
    slot->access.store(idle(next));
    return reinterpret_cast<void*>(uintptr_t{next} << 16 | (reinterpret_cast<uintptr_t>(handle) & 0xffff));
  }

  // Calls visit(handle) for every live handle. Another thread may end a handle at any moment, so visit takes its own reference before
  // it touches the object. All references through one of these handles find the same object, or none: the generation is that with
  // which the object was inserted, not that of a slot which another object may have by then.
  template <class Visit>
  void forEach(Visit visit) {
    for (int i = 0; i < kSlots; i++) {
      if (slots_[i].object.load() == nullptr) continue;
      const auto generation = static_cast<uintptr_t>(slots_[i].access.load() >> 1);
      visit(reinterpret_cast<void*>(generation << 16 | static_cast<uintptr_t>(i + 1)));
    }
  }

  // For the child of a fork, which has one thread: ends every handle and passes its object to dispose. Another thread of the parent
  // may have been at any point of this class at the fork.
  template <class Dispose>
  void forget(Dispose dispose) {
    pthread_mutex_init(&mutex_, nullptr);
    for (Slot& slot : slots_) {
      T* object = slot.object.load();
      const bool used = object != nullptr || slot.users.load() != 0 || (slot.access.load() & 1) != 0 || slot.leaving.load();
      if (!used) continue;  // avoids a copy-on-write of its page
      slot.generation = nextGeneration(slot.generation);
      slot.object = nullptr;
      slot.users = 0;
      slot.access = idle(slot.generation);
      slot.leaving = false;
      if (object != nullptr) dispose(object);
    }
  }

  // Whether the table is full now, so that insert would return nullptr.
  bool full() const {
    for (const Slot& slot : slots_) {
      if (slot.object.load() == nullptr) return false;
    }
    return true;
  }

  // Whether a thread has exclusive access now. The answer may be stale when it returns.
  bool busy(const void* handle) {
    const Slot* slot = slotOf(handle);
    return slot != nullptr && slot->access.load() == held(generationOf(handle)) && slot->generation.load() == generationOf(handle);
  }

 private:
  static uint32_t generationOf(const void* handle) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(handle) >> 16);
  }
  static uint32_t nextGeneration(uint32_t g) { return g + 1 == 0 ? 1 : g + 1; }
  Slot* slotOf(const void* handle) {
    const auto bits = reinterpret_cast<uintptr_t>(handle);
    const uintptr_t index = (bits & 0xffff) - 1;
    if (index >= kSlots || bits >> 48 != 0) return nullptr;
    return &slots_[index];
  }

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // of insert
  int next_ = 0;
  Slot slots_[kSlots];
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_HANDLE_TABLE_H_
