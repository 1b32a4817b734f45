// The bytes that an agent of KV transfer (a process of an engine) and the proxy of its node exchange: messages of a socket, for what is
// rare, and rings in a shared segment, for transfers.
//
// Socket: AF_UNIX SOCK_SEQPACKET, one message a packet. The client sends a request and waits for its Result. Integers are little-endian and
// naturally aligned; reserved bytes and the tail of a name are zero. The Go structs of this package describe the same bytes: a test compiles
// their offsets against these.
//
// Segment: a memfd of the proxy, sealed against a change of its size.
//   0                      rhk_segment, RHK_RINGS bytes
//   RHK_RINGS              entries x rhk_submission
//   then                   entries x rhk_completion
//   then                   arena_bytes: what does not fit into a submission
//   then                   inbox_bytes: notifications that have arrived
// Counters count entries (or bytes) from the segment's beginning on and never wrap; place n of a ring is n % its size.
#ifndef RAILHEAD_KVWIRE_H_
#define RAILHEAD_KVWIRE_H_

#include <stdint.h>

#define RHK_MAGIC 0x564b4852u             // "RHKV", of a message
#define RHK_SEGMENT_MAGIC 0x31474553564b4852ull  // "RHKVSEG1"
#define RHK_VERSION 1u
#define RHK_NAME 64u                      // bytes of an agent's name, its NUL included
#define RHK_TEXT 184u                     // bytes of a text, its NUL included
#define RHK_REFERENCE 48u                 // bytes of a reference of a grant
#define RHK_RINGS 4096u                   // bytes before the rings
#define RHK_MAX_ENTRIES 65536u
#define RHK_MAX_ARENA (1ull << 30)
#define RHK_MAX_MESSAGE 196608u           // bytes of a message, its list included
#define RHK_MAX_PAYLOAD 65536u            // bytes of a notification
#define RHK_MAX_REGIONS 65536u            // of an agent; they are numbered from 1
#define RHK_MAX_CACHES 256u               // of an agent; they are numbered from 1
#define RHK_DESCRIPTORS 3u                // that Hello carries: the segment, the proxy's bell, the client's bell

enum rhk_type {
  RHK_HELLO = 1,           // proxy: first message; carries the descriptors
  RHK_RESULT = 2,          // proxy: the answer to a request
  RHK_REGION = 3,          // client: memory; carries its descriptor
  RHK_REGION_PRIVATE = 4,  // client: memory of its own that has no descriptor
  RHK_REGION_FREE = 5,     // client: the proxy is to forget a region; the Result comes when nothing uses it
  RHK_CACHE = 6,           // client: a KV cache in its regions; a list of rhk_place follows
  RHK_GRANT = 7,           // client: lets a peer use blocks; a list of rhk_range follows
  RHK_REVOKE = 8,          // client
  RHK_REUSE = 9,           // client: uses blocks again; a list of rhk_range follows
  RHK_MISSING = 10,        // client: asks what has not arrived of a transfer that has failed
};

enum rhk_op {
  RHK_READ = 1,    // from blocks of the peer into blocks of the client
  RHK_WRITE = 2,   // the reverse
  RHK_RESUME = 3,  // a transfer again that has failed, without what had arrived
  RHK_CANCEL = 4,  // ends the transfer with this id; its own completion says when nothing uses its memory any more
  RHK_NOTIFY = 5,  // sends a notification
};

enum rhk_flag {
  RHK_EACH_LAYER = 1,  // a completion RHK_LAYERS whenever more layers have arrived
};

enum rhk_kind {
  RHK_ENDED = 1,        // an operation has ended: nothing uses its memory any more
  RHK_LAYERS = 2,       // of a transfer so many layers, the first ones, are complete
  RHK_GRANT_ENDED = 3,  // a grant of this agent has ended, and nobody writes by it any more
  RHK_BLOCK_FREE = 4,   // a block for which RHK_REUSE had to wait is the client's own
};

struct rhk_segment {
  // Written by the proxy before it sends the segment; never changed.
  uint64_t magic;
  uint32_t version;
  uint32_t entries;       // of each ring, a power of two
  uint64_t incarnation;   // of the agent: random
  uint64_t arena_bytes;   // a power of two
  uint64_t inbox_bytes;   // a power of two
  uint8_t reserved0[24];
  // 64. Client, release: publishes submissions before it, and their bytes in the arena.
  uint64_t submitted;
  uint8_t reserved1[56];
  // 128. Proxy, release: submissions before `taken` have been read: their places and bytes may be used again.
  uint64_t taken;
  // Proxy, sequentially consistent: 1 before it sleeps, if it then sees no submission. A client that reads 1 after its store of
  // `submitted` (also sequentially consistent) rings the proxy's bell.
  uint32_t proxy_sleeps;
  uint8_t reserved2[52];
  // 192. Proxy, release: publishes completions before it.
  uint64_t completed;
  uint8_t reserved3[56];
  // 256. Client, release: completions before it have been read.
  uint64_t reaped;
  // Client, sequentially consistent: 1 before it sleeps. The proxy clears it and rings the client's bell after a store of `completed` or
  // `inbox_written`.
  uint32_t client_sleeps;
  uint8_t reserved4[52];
  // 320. Proxy, release: publishes bytes of the inbox before it.
  uint64_t inbox_written;
  uint8_t reserved5[56];
  // 384. Client, release: bytes of the inbox before it have been read.
  uint64_t inbox_read;
  uint8_t reserved6[56];
};

struct rhk_submission {
  uint64_t id;             // chosen by the client, not 0, of no other operation under way
  uint32_t op;             // rhk_op
  uint32_t flags;          // rhk_flag
  uint64_t arena_at;       // where its bytes begin, counted from the arena's first use on; they do not cross the arena's end
  uint32_t arena_bytes;    // 0: none
  uint32_t cache;          // the client's
  uint64_t timeout_ns;     // from when the proxy takes it
  uint32_t priority;       // 0 first, 3 last
  uint32_t first_layer;    // of the model
  uint32_t layers;         // 0: all that both sides have
  uint32_t peer_token;     // where the tokens begin in the peer's blocks, counted from the first one's start
  uint32_t own_token;      // and in the client's
  uint32_t tokens;
  uint32_t peer_blocks;    // entries of the list of the peer's blocks; 0: the grant's, from its first one on
  uint32_t own_blocks;     // entries of the list of the client's blocks
  uint32_t payload_bytes;  // of a notification that the peer gets when everything has arrived; 0: none
  float scale;             // of bf16 to e4m3: what elements are divided by
  uint8_t reference[RHK_REFERENCE];
};
// The bytes of an operation in the arena, in this order:
//   READ, WRITE  name of the peer (RHK_NAME bytes); own_blocks x uint32_t: numbers of the client's blocks; peer_blocks x uint32_t: places in
//                the grant's list; the notification
//   RESUME       uint64_t: id of the transfer that has failed
//   NOTIFY       name of the peer; the notification
//   CANCEL       none

struct rhk_completion {
  uint64_t id;             // of the operation; 0: of none
  uint32_t kind;           // rhk_kind
  int32_t result;          // of ENDED an rh_result
  uint32_t layers;         // of LAYERS
  uint32_t missing;        // of ENDED: pieces that have not arrived
  uint64_t bytes;          // of ENDED: that have arrived
  uint64_t grant;          // of GRANT_ENDED: its number
  uint32_t cache;          // of BLOCK_FREE
  uint32_t block;          // of BLOCK_FREE
  uint32_t reason;         // of GRANT_ENDED: 1 revoked, 2 expired, 3 its reader has gone
  uint32_t reserved0;
  uint64_t reserved1;
  char text[RHK_TEXT];     // of ENDED with an error
  uint64_t reserved2;
};

// A record of the inbox. It begins at a multiple of 8 and does not cross the inbox's end.
struct rhk_record {
  uint32_t bytes;          // of the record, a multiple of 8
  uint32_t payload_bytes;  // 0xffffffff: there is none, the next record is at the inbox's start
  uint64_t incarnation;    // of the sender
  uint64_t sequence;       // of the sender's notifications for this agent
  char sender[RHK_NAME];   // its name
};

struct rhk_header {
  uint32_t magic;
  uint32_t type;
  uint32_t size;           // of the message, its list included
  uint32_t reserved;
  uint64_t request;        // repeated in the Result
};

struct rhk_hello {
  struct rhk_header h;
  uint32_t version;
  uint32_t reserved0;
  uint64_t incarnation;
  uint64_t segment_bytes;
};

struct rhk_result {
  struct rhk_header h;
  int32_t code;            // an rh_result
  uint32_t number;         // of the region or cache, how many blocks are not free yet, how many entries of a list follow
  uint8_t reference[RHK_REFERENCE];
  char text[RHK_TEXT];
};

struct rhk_region {
  struct rhk_header h;
  uint64_t offset;         // in the descriptor's file, a multiple of a page
  uint64_t bytes;
};

struct rhk_region_private {
  struct rhk_header h;
  uint64_t address;
  uint64_t bytes;
};

struct rhk_region_free {
  struct rhk_header h;
  uint32_t region;
  uint32_t reserved0;
};

struct rhk_place {
  uint64_t offset;
  uint32_t region;
  uint32_t reserved0;
};

// Which tensors a cache has. Dimensions are from the outermost to the innermost.
enum rhk_form {
  RHK_PARTS_FIRST = 0,   // one for each layer: [parts, blocks, block]
  RHK_BLOCKS_FIRST = 1,  // one for each layer: [blocks, parts, block]
  RHK_PARTS_APART = 2,   // one for each part of each layer: [blocks, block]; the parts of a layer follow each other
  RHK_ONE_TENSOR = 3,    // one: [blocks, layers, parts, block]
  RHK_STRIDED = 4,       // any: strides are given
};

struct rhk_cache {
  struct rhk_header h;
  uint32_t layers;
  uint32_t parts;          // 2: keys and values; 1: MLA
  uint32_t blocks;
  uint32_t block_tokens;
  uint32_t heads;          // of this process
  uint32_t head_dim;
  uint32_t dtype;          // paged.Type
  uint32_t first_layer;    // of the model
  uint32_t first_head;     // of the model
  uint32_t places;         // as many rhk_place follow: of the tensors, or, STRIDED, of block 0 of each part of each layer
  uint32_t form;           // rhk_form
  uint32_t order;          // of a block's elements: 0 NHD (token, head, element), 1 HND (head, token, element)
  uint64_t block_stride;   // bytes; STRIDED only, else 0
  uint64_t token_stride;
  uint64_t head_stride;
};

struct rhk_range {
  uint32_t first;
  uint32_t count;
};

struct rhk_grant {
  struct rhk_header h;
  uint32_t cache;
  uint32_t rights;         // 1 read, 2 write, 3 both
  uint64_t ttl_ns;
  uint32_t ranges;         // as many rhk_range follow
  uint32_t reserved0;
  char reader[RHK_NAME];   // the peer's name
};

struct rhk_revoke {
  struct rhk_header h;
  uint8_t reference[RHK_REFERENCE];
};

struct rhk_reuse {
  struct rhk_header h;
  uint32_t cache;
  uint32_t ranges;
};

struct rhk_missing {
  struct rhk_header h;
  uint64_t id;
  uint32_t from;           // the first entry that is wanted
  uint32_t most;           // entries of the answer
};
// Its Result is followed by a list of rhk_piece.
struct rhk_piece {
  uint32_t layer;          // of the model
  uint32_t first_block;    // place in the list of the client's blocks
  uint32_t blocks;
  uint32_t reserved0;
};

#endif  // RAILHEAD_KVWIRE_H_
