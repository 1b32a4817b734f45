package kvwire

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MakeName makes the name of an agent.
func MakeName(s string) (Name, error) {
	var n Name
	if err := CheckName(s); err != nil {
		return n, err
	}
	copy(n[:], s)
	return n, nil
}

// CheckName refuses what is no name of an agent: 1 to 63 bytes of letters, digits and . _ - / : @.
func CheckName(s string) error {
	if s == "" || len(s) >= NameBytes {
		return fmt.Errorf("a name of %d bytes: must be 1 to %d", len(s), NameBytes-1)
	}
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("._-/:@", rune(c)) {
			return fmt.Errorf("name %q: letters, digits and . _ - / : @ are allowed", s)
		}
	}
	return nil
}

func (n Name) String() string { return text(n[:]) }

// check refuses a name that CheckName would refuse, or with bytes behind its end.
func (n Name) check() error {
	s := n.String()
	if len(bytes.Trim(n[len(s):], "\x00")) > 0 {
		return fmt.Errorf("name %q: bytes behind its end", s)
	}
	return CheckName(s)
}

// MakeText shortens a text to what fits, at the start of a rune.
func MakeText(s string) Text {
	var t Text
	if len(s) > TextBytes-1 {
		s = s[:TextBytes-1]
		for len(s) > 0 && !utf8.ValidString(s[len(s)-min(len(s), utf8.UTFMax):]) {
			s = s[:len(s)-1]
		}
	}
	copy(t[:], s)
	return t
}

func (t Text) String() string { return text(t[:]) }

func text(b []byte) string {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}
