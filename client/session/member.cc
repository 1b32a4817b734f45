#include "session/member.h"

namespace railhead::client {

namespace {

MemberKind* kinds = nullptr;  // only ever grows

}  // namespace

// Release and acquire: whoever finds a kind finds its functions.
void addMemberKind(MemberKind* kind) {
  kind->next = __atomic_load_n(&kinds, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&kinds, &kind->next, kind, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

const MemberKind* memberKinds() { return __atomic_load_n(&kinds, __ATOMIC_ACQUIRE); }

}  // namespace railhead::client
