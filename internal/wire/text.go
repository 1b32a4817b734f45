package wire

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// Name is a group's name, a token or a software version: UTF-8, a NUL, then zeros to the end.
type Name [NameBytes]byte

// Text is an error's text, in the same form.
type Text [TextBytes]byte

// Reason says why memory cannot be shared, in the same form.
type Reason [ReasonBytes]byte

// Forcing is a text of forced algorithms, in the same form.
type Forcing [ForcingBytes]byte

// MakeForcing refuses a text that does not fit.
func MakeForcing(s string) (Forcing, error) {
	var f Forcing
	if len(s) >= ForcingBytes {
		return f, fmt.Errorf("wire: forced algorithms of %d bytes; use at most %d", len(s), ForcingBytes-1)
	}
	if bytes.IndexByte([]byte(s), 0) >= 0 || !utf8.ValidString(s) {
		return f, fmt.Errorf("wire: forced algorithms %q are not UTF-8 without NUL", s)
	}
	copy(f[:], s)
	return f, nil
}

// MakeName refuses a name that does not fit: shortened, it would be another name.
func MakeName(s string) (Name, error) {
	var n Name
	if len(s) >= NameBytes {
		return n, fmt.Errorf("wire: name %.16q... has %d bytes; use at most %d", s, len(s), NameBytes-1)
	}
	if bytes.IndexByte([]byte(s), 0) >= 0 {
		return n, fmt.Errorf("wire: name %q has a NUL byte", s)
	}
	if !utf8.ValidString(s) {
		return n, fmt.Errorf("wire: name %q is not UTF-8", s)
	}
	copy(n[:], s)
	return n, nil
}

// MakeText shortens a text that does not fit, between characters: a shortened error text still helps.
func MakeText(s string) (t Text) {
	fill(t[:], s)
	return t
}

// MakeReason shortens like MakeText.
func MakeReason(s string) (r Reason) {
	fill(r[:], s)
	return r
}

func fill(field []byte, s string) {
	if len(s) >= len(field) {
		cut := len(field) - 1
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	copy(field, bytes.ReplaceAll([]byte(s), []byte{0}, nil))
}

func (n Name) String() string { return cString(n[:]) }
func (t Text) String() string { return cString(t[:]) }

func (r Reason) String() string { return cString(r[:]) }

func (f Forcing) String() string { return cString(f[:]) }

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// checkCString checks a received field: UTF-8, a NUL, then zeros only.
func checkCString(field string, b []byte) error {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return fmt.Errorf("%s has no NUL in its %d bytes", field, len(b))
	}
	if !utf8.Valid(b[:i]) {
		return fmt.Errorf("%s is not UTF-8", field)
	}
	for j := i; j < len(b); j++ {
		if b[j] != 0 {
			return fmt.Errorf("%s has byte %#x after its NUL, at %d", field, b[j], j)
		}
	}
	return nil
}
