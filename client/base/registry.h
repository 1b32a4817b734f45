// How a lower folder calls a higher one that it does not know: the higher one adds a struct of functions, once, before there is
// anything that they would have to do with.
#ifndef RAILHEAD_CLIENT_BASE_REGISTRY_H_
#define RAILHEAD_CLIENT_BASE_REGISTRY_H_

namespace railhead::client {

// A list of Ts, which have a T* next. The newest is the first, so what stands on something else comes before it. Nothing is ever taken
// out. No lock: the child of a fork goes through it too.
template <class T>
class Registry {
 public:
  void add(T* entry) {
    entry->next = __atomic_load_n(&first_, __ATOMIC_RELAXED);
    // Release and acquire: whoever finds an entry finds its functions.
    while (!__atomic_compare_exchange_n(&first_, &entry->next, entry, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
  }
  T* first() const { return __atomic_load_n(&first_, __ATOMIC_ACQUIRE); }

 private:
  T* first_ = nullptr;
};

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_BASE_REGISTRY_H_
