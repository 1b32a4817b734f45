package session

import (
	"testing"

	"railhead/internal/wire"
)

// fakeFamily handles messages by noting their types.
type fakeFamily struct {
	handlers []Handler
}

func (f *fakeFamily) Handlers() []Handler                                         { return f.handlers }
func (f *fakeFamily) Take(_ *Session, m wire.Message, _ int) (wire.Message, File) { return m, 0 }
func (f *fakeFamily) Drop(File)                                                   {}
func (f *fakeFamily) Ended(*Session, string)                                      {}

func TestMessagesFindTheirFamilyAndTheirHandler(t *testing.T) {
	var seen string
	first := &fakeFamily{handlers: []Handler{
		On(func(_ *Session, j *wire.Join, f File) { seen = "join of " + j.Group.String() }),
		On(func(_ *Session, l *wire.Leave, f File) { seen = "leave" }),
	}}
	second := &fakeFamily{handlers: []Handler{On(func(_ *Session, a *wire.Attached, f File) { seen = "attached" })}}
	r, err := NewRouter(first, second)
	if err != nil {
		t.Fatal(err)
	}
	name, err := wire.MakeName("g")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		m      wire.Message
		family Family
		want   string
	}{
		{&wire.Join{Group: name}, first, "join of g"}, {&wire.Leave{}, first, "leave"}, {&wire.Attached{}, second, "attached"},
	} {
		route, known := r[wire.TypeOf(c.m)]
		if !known || route.Family != c.family {
			t.Fatalf("%T finds %v", c.m, route.Family)
		}
		if route.Handle(nil, c.m, 0); seen != c.want {
			t.Errorf("%T: the handler did %q, want %q", c.m, seen, c.want)
		}
	}
	if _, known := r[wire.TypeHello]; known {
		t.Error("Hello finds a family")
	}
}

func TestTwoHandlersForOneMessageAreRefused(t *testing.T) {
	leave := On(func(*Session, *wire.Leave, File) {})
	if _, err := NewRouter(&fakeFamily{handlers: []Handler{leave}}, &fakeFamily{handlers: []Handler{leave}}); err == nil {
		t.Error("two families have one message")
	}
}
