// Handles that can be checked: index and generation of a slot instead of an address, so that one that was closed is
// told from a live one however late it comes.
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
    std::atomic<uint32_t> busy{0};  // 1 while one thread has it to itself (Exclusive)
    std::atomic<bool> leaving{false};  // remove() still waits for references to the last object
  };

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

  // The object to itself, without waiting. One atomic operation in, one store out: this is on the data path.
  class Exclusive {
   public:
    Exclusive(HandleTable& table, const void* handle) : slot_(table.slotOf(handle)) {
      if (slot_ == nullptr) return;
      const uint32_t generation = generationOf(handle);
      // The generation is compared first as well, so that a stale handle never makes the slot's new owner busy.
      uint32_t idle = 0;
      if (slot_->generation.load(std::memory_order_relaxed) != generation ||
          !slot_->busy.compare_exchange_strong(idle, 1, std::memory_order_acquire)) {
        busy_ = slot_->generation.load() == generation;
        slot_ = nullptr;
        return;
      }
      if (slot_->generation.load(std::memory_order_relaxed) == generation) {
        object_ = slot_->object.load(std::memory_order_relaxed);
      }
    }
    ~Exclusive() {
      if (slot_ != nullptr) slot_->busy.store(0, std::memory_order_release);
    }
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;
    T* get() const { return object_; }
    bool busy() const { return busy_; }  // live, but another thread has it

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
      // Still busy: the thread that removed the last object is on its way out of it.
      if (slot.object.load() != nullptr || slot.leaving.load() || slot.busy.load() != 0) continue;
      slot.object.store(object);
      const auto index = static_cast<uintptr_t>((next_ + i) % kSlots);
      handle = reinterpret_cast<void*>(uintptr_t{slot.generation.load()} << 16 | (index + 1));
      next_ = static_cast<int>(index) + 1;
    }
    pthread_mutex_unlock(&mutex_);
    return handle;
  }

  // Ends the handle; returns its object to the one caller who did, after all shared references have ended. They are short
  // (or end by a deadline of their own), so this wait ends. The caller holds none itself.
  T* remove(const void* handle) {
    Slot* slot = slotOf(handle);
    if (slot == nullptr) return nullptr;
    uint32_t generation = generationOf(handle);
    if (!slot->generation.compare_exchange_strong(generation, nextGeneration(generation))) return nullptr;
    // The object goes before the wait: forEach makes handles of the new generation already, and a reference by one of those
    // must not find what is about to be destroyed.
    slot->leaving.store(true);
    T* object = slot->object.exchange(nullptr);
    while (slot->users.load() != 0) {
      const timespec pause = {0, 50 * 1000};
      nanosleep(&pause, nullptr);
    }
    slot->leaving.store(false);
    return object;
  }

  // Ends the handle, and returns the next one of the same object, which stays: no lock, and nothing to wait for. References that are
  // held stay. nullptr: the handle has ended before.
  void* renew(const void* handle) {
    Slot* slot = slotOf(handle);
    if (slot == nullptr) return nullptr;
    uint32_t generation = generationOf(handle);
    const uint32_t next = nextGeneration(generation);
    if (!slot->generation.compare_exchange_strong(generation, next)) return nullptr;
    return reinterpret_cast<void*>(uintptr_t{next} << 16 | (reinterpret_cast<uintptr_t>(handle) & 0xffff));
  }

  // Calls visit(handle) for every live handle. Another thread may end one at any moment: visit takes a reference of its own
  // before it touches the object.
  template <class Visit>
  void forEach(Visit visit) {
    for (int i = 0; i < kSlots; i++) {
      const uint32_t generation = slots_[i].generation.load();
      if (slots_[i].object.load() == nullptr) continue;
      visit(reinterpret_cast<void*>(uintptr_t{generation} << 16 | static_cast<uintptr_t>(i + 1)));
    }
  }

  // For the child of a fork, which has one thread: ends every handle and gives its object to dispose. Other threads of the
  // parent may have been in the middle of anything here.
  template <class Dispose>
  void forget(Dispose dispose) {
    pthread_mutex_init(&mutex_, nullptr);
    for (Slot& slot : slots_) {
      T* object = slot.object.load();
      const bool used = object != nullptr || slot.users.load() != 0 || slot.busy.load() != 0 || slot.leaving.load();
      if (!used) continue;  // spares a copy of its page
      slot.generation = nextGeneration(slot.generation);
      slot.object = nullptr;
      slot.users = 0;
      slot.busy = 0;
      slot.leaving = false;
      if (object != nullptr) dispose(object);
    }
  }

  // Whether an insert at this moment would find no slot.
  bool full() const {
    for (const Slot& slot : slots_) {
      if (slot.object.load() == nullptr) return false;
    }
    return true;
  }

  // Whether a thread has the object to itself at this moment. It may change at the next.
  bool busy(const void* handle) {
    const Slot* slot = slotOf(handle);
    return slot != nullptr && slot->busy.load() != 0 && slot->generation.load() == generationOf(handle);
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
