package session

import (
	"fmt"

	"railhead/internal/wire"
)

// File is the number of a client's descriptor with the family that took it over, 0 = none.
type File uint64

// Family handles the messages of one kind of member. A session can be a member of several kinds; today there is one, the
// ranks of groups.
type Family interface {
	// Handlers lists the family's messages. No other family has any of them.
	Handlers() []Handler
	// Take runs on the session's goroutine, before the handler. It takes over the descriptor that came with a message (-1 = none),
	// and may put another message of the family in its place.
	Take(s *Session, m wire.Message, fd int) (wire.Message, File)
	// Drop releases a file of Take if no handler is called, because the session has ended. On the core's goroutine.
	Drop(f File)
	// Ended: the session has ended; how names the event that was seen first. On the core's goroutine.
	Ended(s *Session, how string)
}

// Handler handles the messages of one type, on the core's goroutine.
type Handler struct {
	Type   wire.Type
	Handle func(s *Session, m wire.Message, f File)
}

// On makes a handler of a function for one type of message.
func On[M wire.Message](handle func(s *Session, m M, f File)) Handler {
	var none M
	return Handler{wire.TypeOf(none), func(s *Session, m wire.Message, f File) { handle(s, m.(M), f) }}
}

// Router finds the family and the handler of a message.
type Router map[wire.Type]Route

// Route is where messages of a type go.
type Route struct {
	Family Family
	Handle func(s *Session, m wire.Message, f File)
}

// NewRouter registers the families' messages. Two handlers for one message are an error.
func NewRouter(families ...Family) (Router, error) {
	r := Router{}
	for _, f := range families {
		for _, h := range f.Handlers() {
			if _, taken := r[h.Type]; taken {
				return nil, fmt.Errorf("session: two handlers for messages of type %d", h.Type)
			}
			r[h.Type] = Route{f, h.Handle}
		}
	}
	return r, nil
}
