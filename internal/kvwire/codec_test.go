package kvwire

import (
	"reflect"
	"strings"
	"testing"
)

func name(s string) (n Name) {
	copy(n[:], s)
	return n
}

// samples has a valid request of each type, with its list.
func samples() []Request {
	return []Request{
		{Message: &Region{Offset: 4096, Bytes: 1}}, {Message: &RegionPrivate{Address: 1 << 40, Bytes: 9}}, {Message: &RegionFree{Region: 3}},
		{Message: &Cache{Layers: 2, Parts: 2, NumPlaces: 2, Form: Strided, HeadStride: 8}, Places: []Place{{Offset: 5, Region: 1}, {Region: 2}}},
		{Message: &Grant{Cache: 1, Rights: 3, TTLNs: 9, Ranges: 1, Reader: name("decode-0")}, Ranges: []Range{{First: 4, Count: 2}}},
		{Message: &Revoke{Reference: Reference{1, 2}}}, {Message: &Reuse{Cache: 1, Ranges: 2}, Ranges: []Range{{First: 1, Count: 1}, {First: 9, Count: 3}}},
		{Message: &Missing{ID: 4, From: 5, Most: 6}},
	}
}

func encode(t testing.TB, r Request, number uint64) []byte {
	t.Helper()
	var list any
	if r.Places != nil {
		list = r.Places
	} else if r.Ranges != nil {
		list = r.Ranges
	}
	b, err := Encode(number, r.Message, list)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryRequestRoundTripsAndIsRefusedInAnyOtherLength(t *testing.T) {
	seen := map[reflect.Type]bool{}
	for i, r := range samples() {
		b := encode(t, r, uint64(i)+7)
		got, err := Decode(b)
		if err != nil {
			t.Errorf("%T: %v", r.Message, err)
			continue
		}
		if got.Number() != uint64(i)+7 {
			t.Errorf("%T: request %d", r.Message, got.Number())
		}
		*got.header() = Header{}
		if !reflect.DeepEqual(*got, r) {
			t.Errorf("%T: %+v became %+v", r.Message, r, *got)
		}
		seen[reflect.TypeOf(r.Message)] = true
		for n := range b {
			if _, err := Decode(b[:n]); err == nil {
				t.Errorf("%T: %d of %d bytes are accepted", r.Message, n, len(b))
			}
		}
		if _, err := Decode(append(b, 0)); err == nil {
			t.Errorf("%T: a byte more is accepted", r.Message)
		}
	}
	if len(seen) != len(types) {
		t.Errorf("%d types of messages have samples, there are %d", len(seen), len(types))
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{Message: &Region{}}, "0 bytes"},
		{Request{Message: &Region{Bytes: 1<<46 + 1}}, "at most"},
		{Request{Message: &Region{Bytes: 1, Offset: 1<<46 + 1}}, "at most"},
		{Request{Message: &RegionPrivate{Bytes: 1, Address: 1<<63 + 1}}, "at most"},
		{Request{Message: &RegionFree{Reserved0: 1}}, "reserved"},
		{Request{Message: &Cache{NumPlaces: 1}, Places: []Place{{Reserved0: 1}}}, "reserved"},
		{Request{Message: &Cache{NumPlaces: 2}, Places: []Place{{}}}, "2 entries in 16 bytes"},
		{Request{Message: &Cache{NumPlaces: 1<<32 - 1}}, "entries in 0 bytes"},
		{Request{Message: &Grant{Reserved0: 1, Reader: name("a")}}, "reserved"},
		{Request{Message: &Grant{}}, "a name of 0 bytes"},
		{Request{Message: &Grant{Reader: name("two words")}}, "are allowed"},
		{Request{Message: &Grant{Reader: name("a\x00b")}}, "behind its end"},
		{Request{Message: &Grant{Reader: name(strings.Repeat("a", 64))}}, "a name of 64 bytes"},
		{Request{Message: &Hello{}}, "sends no message of type 1"},
		{Request{Message: &Result{}}, "sends no message of type 2"},
	} {
		if _, err := Decode(encode(t, c.r, 1)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: %v, want %q", c.r.Message, err, c.want)
		}
	}
	good := encode(t, samples()[0], 1)
	for at, want := range map[int]string{0: "magic", 4: "type", 8: "size", 12: "reserved"} {
		bad := append([]byte(nil), good...)
		bad[at] ^= 0x80
		if _, err := Decode(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("byte %d: %v, want %q", at, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range samples() {
		f.Add(encode(f, r, 1))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		if again := encode(t, *r, r.Number()); string(again) != string(b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

func TestATextIsShortenedAtARune(t *testing.T) {
	long := strings.Repeat("ä", TextBytes)
	got := MakeText(long).String()
	if len(got) != TextBytes-2 || !strings.HasPrefix(long, got) {
		t.Errorf("%d bytes, %q", len(got), got)
	}
	if s := MakeText("short").String(); s != "short" {
		t.Errorf("%q", s)
	}
}
