#include "session/member.h"

#include "base/registry.h"

namespace railhead::client {

namespace {

Registry<MemberKind> kinds;

}  // namespace

void addMemberKind(MemberKind* kind) { kinds.add(kind); }

const MemberKind* memberKinds() { return kinds.first(); }

}  // namespace railhead::client
