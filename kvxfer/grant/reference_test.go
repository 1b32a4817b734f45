package grant

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

var key = []byte("0123456789abcdef0123456789abcdef")

func newTable(t *testing.T, blocks int) *Table {
	t.Helper()
	table, err := NewTable(0x1122334455667788, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.AddCache(7, blocks); err != nil {
		t.Fatal(err)
	}
	return table
}

// The MAC is that of Python: hmac.digest(key, bytes.fromhex(signed), "sha256")[:16].hex()
func TestAReferencesWireFormat(t *testing.T) {
	table := newTable(t, 4)
	r, err := table.Grant(7, []uint32{2}, Read, 1000, "decode")
	if err != nil {
		t.Fatal(err)
	}
	const signed = "01010000" + "07000000" + "8877665544332211" + "0100000000000000" + "e803000000000000"
	if got := hex.EncodeToString(r.Append(nil)); got != signed+"3620fdf7811088fec81a64f1b33567ca" {
		t.Errorf("%s", got)
	}
	back, err := ParseReference(r.Append(nil))
	if err != nil || back != r {
		t.Errorf("%+v, %v, want %+v", back, err, r)
	}
}

func TestAReferenceWithAnyOtherBitIsRefused(t *testing.T) {
	table := newTable(t, 4)
	r, err := table.Grant(7, []uint32{2}, Read|Write, 1000, "decode")
	if err != nil {
		t.Fatal(err)
	}
	wire := r.Append(nil)
	for bit := range 8 * len(wire) {
		other := bytes.Clone(wire)
		other[bit/8] ^= 1 << (bit % 8)
		parsed, err := ParseReference(other)
		if err == nil {
			_, err = table.Open(parsed, "decode", Read, []uint32{0}, 0)
			if !errors.Is(err, ErrForged) && !errors.Is(err, ErrForeign) {
				t.Errorf("bit %d of byte %d: %v", bit%8, bit/8, err)
			}
		} else if bit/8 >= 4 || bit/8 == 1 {
			t.Errorf("byte %d: %v", bit/8, err)
		}
	}
	if _, err := table.Open(r, "decode", Read, []uint32{0}, 0); err != nil {
		t.Error(err)
	}
}

func FuzzParseReference(f *testing.F) {
	r := Reference{Rights: Read, Cache: 1, Incarnation: 2, Number: 3, Expiry: -4}
	f.Add(r.Append(nil))
	f.Add([]byte{})
	f.Add(make([]byte, ReferenceBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReference(b)
		if err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Errorf("% x is read as %+v", b, r)
		}
	})
}
