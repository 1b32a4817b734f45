package wire

// KVAgent makes a client the agent of a name, for KV transfer.
type KVAgent struct {
	H    Header
	Name Name
}

// KVSocket answers KVAgent. It carries the agent's socket to the proxy, which speaks internal/kvwire.
type KVSocket struct{ H Header }

func (m *KVAgent) header() *Header  { return &m.H }
func (m *KVSocket) header() *Header { return &m.H }

func (*KVAgent) kind() Type  { return TypeKVAgent }
func (*KVSocket) kind() Type { return TypeKVSocket }

func (m *KVAgent) check() error {
	return firstError(checkCString("name", m.Name[:]), checkNotEmpty("name", m.Name))
}

func (*KVSocket) check() error { return nil }
