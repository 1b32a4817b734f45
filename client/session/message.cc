#include "session/message.h"

#include <string.h>

#include "base/utf8.h"
#include "layout_assert.h"
#include "railhead/exchange/pipes.h"

namespace railhead::client {

namespace {

// 1 TiB and the scratch, as in the daemon: 64 such heaps fit in 47 bits of address space.
constexpr uint64_t kMaxHeapBytes = (uint64_t{1} << 40) + (uint64_t{1} << 30);

size_t sizeOfType(uint16_t type) {
  switch (type) {
    case RHW_WELCOME: return sizeof(rhw_welcome);
    case RHW_ERROR: return sizeof(rhw_error);
    case RHW_JOINED: return sizeof(rhw_joined);
    case RHW_HEAP: return sizeof(rhw_heap);
    case RHW_GROUP_READY: return sizeof(rhw_group_ready);
    case RHW_WINDOW_COMMIT: return sizeof(rhw_window_commit);
    case RHW_WINDOW_READY: return sizeof(rhw_window_ready);
    case RHW_WINDOW_FREED: return sizeof(rhw_window_freed);
    case RHW_LEFT: return sizeof(rhw_left);
    case RHW_DRAINING: return sizeof(rhw_draining);
    case RHW_PEER_MEMORY: return sizeof(rhw_peer_memory);
    case RHW_REGISTERED: return sizeof(rhw_registered);
    case RHW_REANNOUNCED: return sizeof(rhw_reannounced);
    case RHW_KV_SOCKET: return sizeof(rhw_kv_socket);
    default: return 0;
  }
}

// A string field is UTF-8, ends with a NUL, and has only zeros after it.
bool goodString(const char* s, size_t size) {
  const auto* nul = static_cast<const char*>(memchr(s, 0, size));
  if (nul == nullptr) return false;
  for (const char* p = nul; p < s + size; p++) {
    if (*p != 0) return false;
  }
  return validUtf8(s, static_cast<size_t>(nul - s));
}

// The fields of the device are all 0, or none is.
const char* checkJoinedDevice(const rhw_joined& m) {
  const uint64_t g = m.device_granularity;
  if (g == 0) {
    return (m.device_heap_bytes | m.device_scratch_bytes | m.device_slot_bytes) == 0 ? nullptr : "Joined: a device without a granularity";
  }
  if (g < 4096 || (g & (g - 1)) != 0) return "Joined: granularity of the device out of range";
  const uint64_t heap = m.device_heap_bytes, scratch = m.device_scratch_bytes, slot = m.device_slot_bytes;
  if (heap == 0 || heap > kMaxHeapBytes || heap % g != 0) return "Joined: size of the device heap out of range";
  if (scratch == 0 || scratch > heap || scratch % g != 0) return "Joined: size of the device scratch out of range";
  // Each rank of the node has an inbox.
  return slot == 0 || slot % 128 != 0 || slot > scratch / m.local_size ? "Joined: slot size of the device out of range" : nullptr;
}

const char* checkJoined(const rhw_joined& m) {
  if (m.world < 1 || m.world > RHW_MAX_WORLD) return "Joined: world size out of range";
  if (m.local_size < 1 || m.local_size > m.world || m.local_size > RHW_MAX_LOCAL) return "Joined: ranks of this node out of range";
  if (m.reduce_group < 1 || m.reduce_group > m.world) return "Joined: reduce group out of range";
  if (m.heap_bytes == 0 || m.heap_bytes > kMaxHeapBytes) return "Joined: heap size out of range";
  if (m.control_bytes == 0 || m.control_bytes > RHW_MAX_CONTROL || m.control_bytes % 4096 != 0) return "Joined: wrong size of the control segment";
  // Each rank's slice of a block has at least one tile of 128 bytes.
  if (m.block_bytes < 128 * RHW_MAX_LOCAL || m.block_bytes % 128 != 0) return "Joined: block size out of range";
  const uint32_t slots[] = {m.pipe_slot_bytes, m.broadcast_slot_bytes};
  for (const uint32_t slot : slots) {
    if (slot < 2 * kSlotHeaderBytes || slot % 128 != 0) return "Joined: slot size out of range";
  }
  const uint64_t need = scratchBytes(static_cast<int>(m.local_size), m.block_bytes, m.broadcast_slot_bytes, m.pipe_slot_bytes, kLLSlotBytes);
  if (m.scratch_bytes < need || m.scratch_bytes > m.heap_bytes) return "Joined: scratch size out of range";
  if (m.reserved0 != 0) return "Joined: reserved field set";
  return checkJoinedDevice(m);
}

bool isLocal(int32_t rank) { return rank >= 0 && rank < static_cast<int32_t>(RHW_MAX_LOCAL); }

const char* checkWindowCommit(const rhw_window_commit& m) {
  if (m.bytes == 0 || m.bytes > kMaxHeapBytes || m.offset > kMaxHeapBytes) return "WindowCommit: range out of bounds";
  const uint32_t g = m.granularity;
  if (g == 0 || (g & (g - 1)) != 0 || m.bytes % g != 0 || m.offset % g != 0) return "WindowCommit: no whole granules";
  return nullptr;
}

bool hasHandle(const rhw_peer_memory& m) {
  static const uint8_t none[RHW_HANDLE] = {};
  return memcmp(m.handle, none, sizeof none) != 0;
}

// A rank's part of a CUDA window.
const char* checkWindowPart(const rhw_peer_memory& m) {
  if (m.memory != RHW_MEMORY_CUDA || hasHandle(m)) return "PeerMemory: part of a window that is not CUDA's";
  if (m.bytes == 0 || m.bytes > kMaxHeapBytes || m.fd_offset > kMaxHeapBytes) return "PeerMemory: part of a window out of bounds";
  return m.allocation_bytes == m.bytes ? nullptr : "PeerMemory: allocation of another size than the window";
}

const char* checkPeerMemory(const rhw_peer_memory& m) {
  if (m.reserved0 != 0) return "PeerMemory: reserved field set";
  if (!isLocal(m.local)) return "PeerMemory: rank out of range";
  if (m.region == 0) return checkWindowPart(m);
  if (m.region > RHW_MAX_REGION) return "PeerMemory: region out of range";
  if (m.bytes == 0 || m.bytes > RHW_MAX_REGISTERED) return "PeerMemory: size out of range";
  if (m.fd_offset > RHW_MAX_FILE_OFFSET) return "PeerMemory: offset out of range";
  if ((m.memory == RHW_MEMORY_CUDA_IPC) != hasHandle(m)) return "PeerMemory: a handle without such memory, or memory without its handle";
  const uint64_t all = m.allocation_bytes;
  if (m.memory != RHW_MEMORY_CUDA && m.memory != RHW_MEMORY_CUDA_IPC) return all == 0 ? nullptr : "PeerMemory: an allocation of CPU memory";
  return all <= RHW_MAX_REGISTERED && m.fd_offset <= all && m.bytes <= all - m.fd_offset ? nullptr : "PeerMemory: beyond its allocation";
}

const char* checkRegistered(const rhw_registered& m) {
  if (m.region < 1 || m.region > RHW_MAX_REGION) return "Registered: region out of range";
  if (m.staged_local != -1 && !isLocal(m.staged_local)) return "Registered: rank out of range";
  if ((m.staged_local < 0) != (m.reason[0] == '\0')) return "Registered: a reason without a rank, or a rank without a reason";
  return goodString(m.reason, RHW_REASON) ? nullptr : "Registered: bad string";
}

const char* checkBody(const Message& m) {
  switch (m.h.type) {
    case RHW_WELCOME:
      if (m.welcome.reserved0 != 0 || m.welcome.reserved1 != 0) return "Welcome: reserved field set";
      return goodString(m.welcome.software, RHW_NAME) ? nullptr : "Welcome: bad string";
    case RHW_ERROR:
      if (m.error.code == RH_OK) return "Error: code 0";
      if (m.error.culprit < -1 || m.error.culprit >= static_cast<int32_t>(RHW_MAX_WORLD)) {
        return "Error: culprit out of range";
      }
      return goodString(m.error.text, RHW_TEXT) ? nullptr : "Error: bad string";
    case RHW_JOINED:
      return checkJoined(m.joined);
    case RHW_HEAP:
      return isLocal(m.heap.local) ? nullptr : "Heap: rank out of range";
    case RHW_WINDOW_COMMIT:
      return checkWindowCommit(m.windowCommit);
    case RHW_PEER_MEMORY:
      return checkPeerMemory(m.peerMemory);
    case RHW_REGISTERED:
      return checkRegistered(m.registered);
    default:
      return nullptr;
  }
}

}  // namespace

bool carriesFd(const Message& m) {
  if (m.h.type == RHW_PEER_MEMORY) return m.peerMemory.memory == RHW_MEMORY_CPU || m.peerMemory.memory == RHW_MEMORY_CUDA;
  return m.h.type == RHW_JOINED || m.h.type == RHW_HEAP || m.h.type == RHW_KV_SOCKET;
}

const char* parseMessage(const void* bytes, size_t size, Message* out) {
  rhw_header h;
  if (size < sizeof h) return "shorter than a header";
  if (size > RHW_MAX_MESSAGE) return "larger than any message";
  memcpy(&h, bytes, sizeof h);
  if (h.magic != RHW_MAGIC) return "wrong magic: the other end is not a railhead daemon";
  const size_t want = sizeOfType(h.type);
  if (want == 0) return "unknown type, or one that a daemon does not send";
  const bool frozen = h.type == RHW_WELCOME || h.type == RHW_ERROR;  // the same in every version
  if (!frozen && (h.version < RHW_VERSION_MIN || h.version > RHW_VERSION_MAX)) return "protocol version not spoken here";
  if (size != want || h.size != want) return "wrong size for its type";
  if (h.reserved != 0) return "reserved header field set";
  memcpy(out, bytes, size);
  return checkBody(*out);
}

}  // namespace railhead::client
