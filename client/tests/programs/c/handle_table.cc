// Threads that use ended handles while their slot is used again. The table has one slot, so that every insertion reuses it.
//
// Usage: handle_table ROUNDS
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "base/handle_table.h"
#include "check.h"

namespace {

using Table = railhead::client::HandleTable<int, 1>;

Table table;
int first, second;                   // the objects, by turns
std::atomic<void*> known{nullptr};   // a handle of `first`, before and after it ends
std::atomic<bool> over{false};

void* insert(int* object) {
  for (;;) {
    if (void* handle = table.insert(object)) return handle;
  }
}

// As finalize: remove while holding the object.
void remove(void* handle, int* object) {
  for (;;) {
    Table::Exclusive guard(table, handle);
    if (guard.get() == nullptr) {
      CHECK(guard.busy());
      continue;
    }
    CHECK(table.remove(handle) == object);
    return;
  }
}

void* useKnownHandle(void*) {
  while (!over) {
    Table::Exclusive guard(table, known);
    CHECK(guard.get() == nullptr || guard.get() == &first);
  }
  return nullptr;
}

// As a session that ends its comms: two references by a handle of forEach.
void* visit(void*) {
  while (!over) {
    table.forEach([](void* handle) {
      {
        Table::Shared ref(table, handle);
        if (ref.get() != &first) return;
      }
      Table::Exclusive guard(table, handle);
      CHECK(guard.get() == nullptr || guard.get() == &first);
    });
  }
  return nullptr;
}

// At the fork a thread of the parent has removed an object and still holds its slot. The child has no such thread, and so uses the slot.
void forkWhileASlotIsHeld() {
  void* handle = insert(&first);
  Table::Exclusive guard(table, handle);
  CHECK(table.remove(handle) == &first);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    table.forget([](int*) { abort(); });  // the object has gone
    _exit(table.insert(&second) != nullptr ? 0 : 1);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

// Stops a thread for a moment between any two of its instructions.
void pauseAnywhere(int) { usleep(50); }

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 2);
  CHECK(signal(SIGUSR1, pauseAnywhere) != SIG_ERR);
  forkWhileASlotIsHeld();
  pthread_t threads[2];
  CHECK(pthread_create(&threads[0], nullptr, useKnownHandle, nullptr) == 0);
  CHECK(pthread_create(&threads[1], nullptr, visit, nullptr) == 0);
  for (int round = 0; round < atoi(arguments[1]); round++) {
    if (round % 4096 == 0) CHECK(pthread_kill(threads[round / 4096 % 2], SIGUSR1) == 0);
    void* handle = insert(&first);
    known = handle;
    remove(handle, &first);
    // No other thread has this handle: forEach's visitors leave `second` alone. So this thread must not be told that it is busy.
    void* own = insert(&second);
    {
      Table::Exclusive guard(table, own);
      CHECK(guard.get() == &second);
    }
    remove(own, &second);
  }
  over = true;
  for (pthread_t t : threads) CHECK(pthread_join(t, nullptr) == 0);
  return 0;
}
