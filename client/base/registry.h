// How a lower folder calls a higher folder that it does not include: the higher folder registers a struct of functions once, before
// any of them could be needed.
#ifndef RAILHEAD_CLIENT_BASE_REGISTRY_H_
#define RAILHEAD_CLIENT_BASE_REGISTRY_H_

namespace railhead::client {

// A list of Ts, each with a member T* next. The newest entry is first, so an entry comes before those it depends on. Entries are
// never removed. The list has no lock, because the child of a fork walks it too.
template <class T>
class Registry {
 public:
  void add(T* entry) {
    entry->next = __atomic_load_n(&first_, __ATOMIC_RELAXED);
    // Release, paired with acquire: a reader that finds an entry also sees its functions.
    while (!__atomic_compare_exchange_n(&first_, &entry->next, entry, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
  }
  T* first() const { return __atomic_load_n(&first_, __ATOMIC_ACQUIRE); }

 private:
  T* first_ = nullptr;
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_REGISTRY_H_
