// Structs of railhead.h between a caller and this library, which may have been compiled with different versions of the header.
//
// A struct only grows, at its end, and 0 in a field that was added means what the struct meant before. So every size from that of
// version 1 up is taken:
//  - read: what the caller's struct lacks is 0. What it has beyond this library's struct, and what is reserved, must be 0, else the
//    call is refused: the caller asks for something that this library does not know.
//  - written: nothing beyond the caller's size. Fields that this library does not know keep what the caller put there.
#ifndef RAILHEAD_CLIENT_ABI_H_
#define RAILHEAD_CLIENT_ABI_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "railhead.h"

namespace railhead::client {

// No struct has more bytes: a larger size was never set.
constexpr uint32_t kMaxStructSize = 4096;

struct StructKind {
  const char* initializer;
  uint32_t version1;  // its size in version 1, which never changes
  size_t reserved;    // where a 32-bit input lies that has no meaning yet; 0 = it has none
};

// Every struct of railhead.h. client/abi/railhead.abi records these sizes.
constexpr StructKind kindOf(const rh_session_config*) { return {"RH_SESSION_CONFIG_INIT", 24, offsetof(rh_session_config, reserved)}; }
constexpr StructKind kindOf(const rh_comm_config*) { return {"RH_COMM_CONFIG_INIT", 80, 0}; }
constexpr StructKind kindOf(const rh_comm_status*) { return {"RH_COMM_STATUS_INIT", 656, 0}; }
constexpr StructKind kindOf(const rh_comm_info*) { return {"RH_COMM_INFO_INIT", 48, 0}; }
constexpr StructKind kindOf(const rh_choice*) { return {"RH_CHOICE_INIT", 40, 0}; }
constexpr StructKind kindOf(const rh_register_config*) { return {"RH_REGISTER_CONFIG_INIT", 40, offsetof(rh_register_config, reserved)}; }
constexpr StructKind kindOf(const rh_window_config*) { return {"RH_WINDOW_CONFIG_INIT", 16, offsetof(rh_window_config, reserved)}; }
constexpr StructKind kindOf(const rh_window_info*) { return {"RH_WINDOW_INFO_INIT", 32, 0}; }
constexpr StructKind kindOf(const rh_window_sharing*) { return {"RH_WINDOW_SHARING_INIT", 272, 0}; }
constexpr StructKind kindOf(const rh_ep_config*) { return {"RH_EP_CONFIG_INIT", 80, 0}; }
constexpr StructKind kindOf(const rh_ep_info*) { return {"RH_EP_INFO_INIT", 48, 0}; }
constexpr StructKind kindOf(const rh_ep_report*) { return {"RH_EP_REPORT_INIT", 352, 0}; }
constexpr StructKind kindOf(const rh_ep_dispatch_in*) { return {"RH_EP_DISPATCH_IN_INIT", 64, offsetof(rh_ep_dispatch_in, reserved)}; }
constexpr StructKind kindOf(const rh_ep_dispatch_out*) { return {"RH_EP_DISPATCH_OUT_INIT", 136, 0}; }
constexpr StructKind kindOf(const rh_ep_combine_args*) { return {"RH_EP_COMBINE_ARGS_INIT", 48, offsetof(rh_ep_combine_args, reserved)}; }

struct StructHeader {
  uint32_t size;
  uint32_t version;
};

// Refuses a struct that is too small, too large, or without a version. known: bytes that this library reads; beyond those
// everything must be 0. operation and argument are for the message.
rh_result checkInput(const char* operation, const char* argument, const void* given, const StructKind& kind, size_t known);
// The same for results: nothing is read but size and version.
rh_result checkOutput(const char* operation, const char* argument, const void* given, const StructKind& kind);

template <class S>
size_t commonBytes(const S* given) {
  static_assert(sizeof(S) >= kindOf(static_cast<const S*>(nullptr)).version1 && sizeof(S) <= kMaxStructSize, "a struct only grows");
  return given->struct_size < sizeof(S) ? given->struct_size : sizeof(S);
}

// Copies a struct of inputs.
template <class S>
rh_result readStruct(const char* operation, const char* argument, const S* given, S* out) {
  const rh_result result = checkInput(operation, argument, given, kindOf(given), sizeof(S));
  if (result != RH_OK) return result;
  *out = {};
  memcpy(out, given, commonBytes(given));
  return RH_OK;
}

// Before the work whose results are to be written.
template <class S>
rh_result checkStruct(const char* operation, const char* argument, const S* given) {
  return checkOutput(operation, argument, given, kindOf(given));
}

// Writes results into a struct that was checked, or read; its size and version stay.
template <class S>
void writeStruct(S* given, const S& results) {
  constexpr size_t kHeader = sizeof(StructHeader);
  memcpy(reinterpret_cast<char*>(given) + kHeader, reinterpret_cast<const char*>(&results) + kHeader, commonBytes(given) - kHeader);
}

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_ABI_H_
