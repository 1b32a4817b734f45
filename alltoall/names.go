package alltoall

import (
	"fmt"
	"slices"
	"strings"
)

// The words for the values of each type, in the order of their numbers; "" stands for a number without a meaning.
var (
	modeNames        = []string{"", "ll", "ht"}
	scaleNames       = []string{"f32", "ue8m0", "static"}
	arrangementNames = []string{"padded", "flat", "tokens"}
)

// String is the word that JSON and command lines use; that of an unknown value is its number.
func (m Mode) String() string        { return nameOf(modeNames, int(m)) }
func (s ScaleFormat) String() string { return nameOf(scaleNames, int(s)) }
func (a Arrangement) String() string { return nameOf(arrangementNames, int(a)) }

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error)        { return []byte(m.String()), nil }
func (s ScaleFormat) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
func (a Arrangement) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error        { return parse(m, modeNames, text) }
func (s *ScaleFormat) UnmarshalText(text []byte) error { return parse(s, scaleNames, text) }
func (a *Arrangement) UnmarshalText(text []byte) error { return parse(a, arrangementNames, text) }

func nameOf(names []string, value int) string {
	if value < 0 || value >= len(names) || names[value] == "" {
		return fmt.Sprint(value)
	}
	return names[value]
}

func parse[T ~int](to *T, names []string, text []byte) error {
	i := slices.Index(names, string(text))
	if i < 0 || len(text) == 0 {
		return fmt.Errorf("%.40q: expected %s", text, strings.TrimPrefix(strings.Join(names, ", "), ", "))
	}
	*to = T(i)
	return nil
}
