// Checks shared by all calls that take a stream, and what a captured call keeps alive.
#ifndef RAILHEAD_CLIENT_MEMORY_STREAMS_H_
#define RAILHEAD_CLIENT_MEMORY_STREAMS_H_

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

namespace railhead::client {

// RH_OK if the comm's device runs calls on that stream.
rh_result checkStream(const Comm* comm, const char* operation, const void* stream);

// A range of memory that a call reads or writes.
struct Extent {
  const void* at;
  size_t bytes;
};

// If the stream is being captured, keeps the comm and the windows that the extents touch alive until the graph is destroyed. *capture is
// the comm's entry for the capture; nullptr = none. On an error nothing has been recorded.
rh_result keepForGraph(Comm* comm, const char* operation, void* stream, const Extent* extents, int n, Capture** capture);

// Checks whether a collective may be queued or captured on a device with streams. While the stream is being captured, *captured is the call's
// number among the comm's collectives in that graph, from 1, and the comm and the windows that the extents touch are kept alive until
// the graph is destroyed. Otherwise *captured is 0. On an error nothing has been recorded.
rh_result admitCall(Comm* comm, const char* operation, void* stream, const Extent* extents, int n, uint32_t* captured);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_STREAMS_H_
