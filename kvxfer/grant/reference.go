package grant

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Rights say what the holder of a reference may do with the blocks. Reading does not include writing, nor the reverse.
type Rights uint8

// The rights.
const (
	Read  Rights = 1
	Write Rights = 2
)

func (r Rights) String() string {
	switch r {
	case Read:
		return "read"
	case Write:
		return "write"
	case Read | Write:
		return "read and write"
	}
	return fmt.Sprintf("rights %d", uint8(r))
}

// Reference is what a peer shows to use blocks. Only the process whose key signed it can make one.
//
// Its wire format has 48 bytes, little-endian:
//
//	0  version, 1
//	1  rights
//	2  zero, 2 bytes
//	4  cache
//	8  incarnation of the owner
//	16 number of the grant
//	24 expiry, nanoseconds of the owner's clock
//	32 the first 16 bytes of HMAC-SHA256 of the 32 bytes before
type Reference struct {
	Rights      Rights
	Cache       uint32
	Incarnation uint64 // a random number of the owner's process
	Number      uint64
	Expiry      int64
	MAC         [macBytes]byte
}

// ReferenceBytes is the size of a reference on the wire.
const ReferenceBytes = 48

const (
	version  = 1
	macBytes = 16
)

// Append appends the wire format.
func (r *Reference) Append(to []byte) []byte {
	return append(r.appendSigned(to), r.MAC[:]...)
}

// appendSigned appends what the MAC covers.
func (r *Reference) appendSigned(to []byte) []byte {
	to = append(to, version, byte(r.Rights), 0, 0)
	to = binary.LittleEndian.AppendUint32(to, r.Cache)
	to = binary.LittleEndian.AppendUint64(to, r.Incarnation)
	to = binary.LittleEndian.AppendUint64(to, r.Number)
	return binary.LittleEndian.AppendUint64(to, uint64(r.Expiry))
}

// ParseReference reads the wire format. It checks no MAC.
func ParseReference(b []byte) (Reference, error) {
	if len(b) != ReferenceBytes {
		return Reference{}, fmt.Errorf("KV reference: %d bytes: it has %d", len(b), ReferenceBytes)
	}
	if b[0] != version || b[2] != 0 || b[3] != 0 {
		return Reference{}, fmt.Errorf("KV reference: begins with % x: version %d is known here", b[:4], version)
	}
	r := Reference{
		Rights: Rights(b[1]), Cache: binary.LittleEndian.Uint32(b[4:]), Incarnation: binary.LittleEndian.Uint64(b[8:]),
		Number: binary.LittleEndian.Uint64(b[16:]), Expiry: int64(binary.LittleEndian.Uint64(b[24:])),
	}
	copy(r.MAC[:], b[32:])
	return r, nil
}

// mac returns the MAC that belongs to the reference.
func (r *Reference) mac(key []byte) (mac [macBytes]byte) {
	h := hmac.New(sha256.New, key)
	h.Write(r.appendSigned(nil))
	copy(mac[:], h.Sum(nil))
	return mac
}
