package harness

import "railhead/internal/wire"

// Encode and Name panic on invalid constants of a test.

// Encode makes a message's packet.
func Encode(m wire.Message, request uint64) []byte {
	b, err := wire.Encode(m, wire.VersionMax, request)
	if err != nil {
		panic(err)
	}
	return b
}

// Name makes the name of a message.
func Name(s string) wire.Name {
	n, err := wire.MakeName(s)
	if err != nil {
		panic(err)
	}
	return n
}
