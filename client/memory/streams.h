// What is common to calls that take a stream: whether it is one, and what a captured call keeps.
#ifndef RAILHEAD_CLIENT_MEMORY_STREAMS_H_
#define RAILHEAD_CLIENT_MEMORY_STREAMS_H_

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

namespace railhead::client {

// RH_OK where the comm's device runs calls on that stream.
rh_result checkStream(const Comm* comm, const char* operation, const void* stream);

// Memory that a call reads or writes.
struct Extent {
  const void* at;
  size_t bytes;
};

// Where the stream is captured, keeps the comm and the windows that the extents touch until the graph is destroyed. *capture: the
// comm's entry for it, nullptr = none. What fails here has recorded nothing.
rh_result keepForGraph(Comm* comm, const char* operation, void* stream, const Extent* extents, int n, Capture** capture);

// Before a checked call goes to a device with streams: whether it may be queued or captured there. While the stream is captured,
// *captured is the call's number among the collectives of the comm in that graph, from 1, and the comm and the windows that the
// extents touch are kept until the graph is destroyed; else it is 0. captured is nullptr where not all ranks take part. What fails
// here has recorded nothing.
rh_result admitCall(Comm* comm, const char* operation, void* stream, const Extent* extents, int n, uint32_t* captured);

}  // namespace railhead::client

#endif  // RAILHEAD_CLIENT_MEMORY_STREAMS_H_
