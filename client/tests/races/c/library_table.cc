// Threads use a table of handles with so few slots that each is used again at once. Compiled as the library is, so that threads switch
// inside the table.
#include "base/handle_table.h"
#include "scenario.h"

namespace world {

namespace {

using railhead::client::HandleTable;

constexpr int kSlots = 2, kMostObjects = 64;

struct Object {
  const void* handle;  // the first one
  bool ending;         // a thread may be ending it
  bool ended;          // remove has returned it
  int users;           // threads that hold a reference
  int holders;         // threads with exclusive access
};

using Table = HandleTable<Object, kSlots>;

struct {
  bool exclusive;  // threads take exclusive access, and have it when they remove
  Object objects[kMostObjects];
  const void* handles[kMostObjects];
  int made;
} s;

Table& table() {
  static Table t;
  return t;
}

// The object of a handle that insert gave.
Object* objectOf(const void* handle) {
  for (int i = 0; i < s.made; i++) {
    if (handle != nullptr && s.handles[i] == handle) return &s.objects[i];
  }
  return nullptr;
}

const void* anyHandle() { return s.made == 0 ? nullptr : s.handles[below(static_cast<uint64_t>(s.made))]; }

void insert() {
  if (s.made == kMostObjects) return;
  const int i = s.made++;
  Object* o = &s.objects[i];
  const void* handle = table().insert(o);
  if (handle != nullptr && objectOf(handle) != nullptr) fail("a handle is given twice");
  s.handles[i] = o->handle = handle;
  if (handle == nullptr) o->ended = o->ending = true;
}

void use(const void* handle) {
  Table::Shared ref(table(), handle);
  Object* o = ref.get();
  Object* wanted = objectOf(handle);
  // Another thread may be in insert, which has not returned the handle yet.
  if (o == nullptr) {
    if (wanted != nullptr && !wanted->ending) fail("a live handle has no object");
    return;
  }
  if (wanted != nullptr && o != wanted) fail("a handle reaches another object");
  if (o->ended) fail("a handle reaches an object that was removed");
  o->users++;
  step("use");
  step("use");
  if (o->ended) fail("an object is removed while a thread uses it");
  o->users--;
}

void end(Object* o) {
  if (o->users != 0) fail("remove returns an object that %d threads use", o->users);
  if (o->ended) fail("an object is removed twice");
  o->ended = true;
}

void enter(const void* handle, bool removes) {
  Object* wanted = objectOf(handle);
  freezeSoon();
  Table::Exclusive guard(table(), handle);
  Object* o = guard.get();
  if (o == nullptr) {
    if (!guard.busy() && wanted != nullptr && !wanted->ending) fail("a live handle that no thread holds gives no access");
    return;
  }
  if (o != wanted) fail("exclusive access to another object");
  if (o->ended) fail("exclusive access to an object that was removed");
  if (o->holders++ != 0) fail("two threads have exclusive access");
  if (!table().busy(handle)) fail("a held handle is not busy");
  step("use");
  if (removes) {
    o->ending = true;
    Object* removed = table().remove(handle);
    if (removed != o) fail("remove of a held handle returns another object, or none");
    end(o);
  }
  o->holders--;
}

void remove(const void* handle) {
  if (Object* o = objectOf(handle)) o->ending = true;
  freezeSoon();
  if (Object* removed = table().remove(handle)) {
    if (removed != objectOf(handle)) fail("remove returns another object");
    end(removed);
  }
}

void visitAll() {
  table().forEach([](void* handle) {
    Object* first = nullptr;
    for (int i = 0; i < 2; i++) {
      Table::Shared ref(table(), handle);
      Object* o = ref.get();
      if (o == nullptr) continue;
      if (o->ended) fail("a visited handle reaches an object that was removed");
      if (first != nullptr && o != first) fail("a visited handle reaches two objects");
      first = o;
      step("visit");
    }
    if (s.exclusive && oneIn(2)) {
      Table::Exclusive guard(table(), handle);
      Object* o = guard.get();
      if (o != nullptr && first != nullptr && o != first) fail("a visited handle gives access to another object");
    }
  });
}

void work() {
  for (int n = static_cast<int>(4 + below(10)); n > 0; n--) {
    const void* handle = anyHandle();
    switch (below(6)) {
      case 0: insert(); break;
      case 1: s.exclusive ? enter(handle, oneIn(2)) : remove(handle); break;
      case 2: s.exclusive ? enter(handle, true) : use(handle); break;
      case 3: visitAll(); break;
      default: use(handle); break;
    }
  }
}

}  // namespace

void handleTable() {
  s.exclusive = oneIn(2);
  insert();
  const auto threads = static_cast<int>(2 + below(3));
  for (int i = 0; i < threads; i++) start([](void*) { work(); }, nullptr);
  joinAll();
  for (int i = 0; i < s.made; i++) {
    if (s.objects[i].ended) continue;
    if (s.exclusive) enter(s.handles[i], true);
    else remove(s.handles[i]);
    if (!s.objects[i].ended) fail("a live handle cannot be removed");
  }
  // No slot is lost.
  static Object last[kSlots];
  for (Object& o : last) {
    const void* handle = table().insert(&o);
    if (handle == nullptr) fail("a slot of the empty table cannot be used");
    if (table().remove(handle) != &o) fail("remove returns another object");
  }
}

}  // namespace world
