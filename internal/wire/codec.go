package wire

import (
	"encoding/binary"
	"fmt"
)

// Encode fills in the header and returns the message's bytes. It does not change m's other fields.
func Encode(m Message, version uint16, request uint64) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("wire: encode %T: %w", m, err)
	}
	*m.header() = Header{
		Magic:   Magic,
		Type:    m.kind(),
		Version: version,
		Size:    uint32(binary.Size(m)),
		Request: request,
	}
	return binary.Append(nil, binary.LittleEndian, m)
}

// ProtocolError says what was wrong with received bytes.
type ProtocolError struct {
	Type   Type   // 0 where the header could not be read
	Reason string // what was found and what was expected
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("wire: message type %d refused: %s", e.Type, e.Reason)
}

func refuse(t Type, format string, args ...any) error {
	return &ProtocolError{Type: t, Reason: fmt.Sprintf(format, args...)}
}

// Decode returns the message in b, or a *ProtocolError if its layout or values are invalid. Hello, Welcome and Error are accepted in
// any version, so that peers of different versions can refuse each other.
func Decode(b []byte) (Message, error) {
	var h Header
	if len(b) < binary.Size(h) {
		return nil, refuse(0, "%d bytes, fewer than the %d of a header", len(b), binary.Size(h))
	}
	if len(b) > MaxMessage {
		return nil, refuse(0, "%d bytes, at most %d are allowed", len(b), MaxMessage)
	}
	if _, err := binary.Decode(b, binary.LittleEndian, &h); err != nil {
		return nil, refuse(0, "header: %v", err)
	}
	if h.Magic != Magic {
		return nil, refuse(0, "magic %#x, expected %#x: the peer is not a railhead program", h.Magic, uint32(Magic))
	}
	m := New(h.Type)
	if m == nil {
		return nil, refuse(h.Type, "unknown type")
	}
	frozen := h.Type == TypeHello || h.Type == TypeWelcome || h.Type == TypeError
	if !frozen && (h.Version < VersionMin || h.Version > VersionMax) {
		return nil, refuse(h.Type, "version %d, this side speaks %d..%d", h.Version, VersionMin, VersionMax)
	}
	if want := binary.Size(m); len(b) != want || h.Size != uint32(want) {
		return nil, refuse(h.Type, "%d bytes (header says %d), expected %d", len(b), h.Size, want)
	}
	if h.Reserved != 0 {
		return nil, refuse(h.Type, "reserved header field is %#x", h.Reserved)
	}
	if _, err := binary.Decode(b, binary.LittleEndian, m); err != nil {
		return nil, refuse(h.Type, "body: %v", err)
	}
	if err := m.check(); err != nil {
		return nil, refuse(h.Type, "%v", err)
	}
	return m, nil
}

// RequestOf is the request number that the message carries.
func RequestOf(m Message) uint64 { return m.header().Request }

// TypeOf is the message's type; m may be a nil pointer.
func TypeOf(m Message) Type { return m.kind() }

// VersionOf is the protocol version that the message carries.
func VersionOf(m Message) uint16 { return m.header().Version }
