package membership

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"railhead/internal/wire"
	"railhead/server/flight"
)

// command is a parsed line: a name, key=value pairs, and at most one word without a key. It keeps the first error until finish.
type command struct {
	name       string
	positional string
	values     map[string]string
	err        error
}

func parseCommand(line string) (*command, error) {
	c := &command{values: map[string]string{}}
	c.name, line, _ = strings.Cut(line, " ")
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		end := strings.IndexAny(line, " =")
		if end < 0 || line[end] == ' ' {
			c.positional, line, _ = strings.Cut(line, " ")
			continue
		}
		key := line[:end]
		line = line[end+1:]
		if quoted, err := strconv.QuotedPrefix(line); err == nil {
			line = line[len(quoted):]
			c.values[key], _ = strconv.Unquote(quoted)
			continue
		}
		c.values[key], line, _ = strings.Cut(line, " ")
	}
	return c, nil
}

func (c *command) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// finish also refuses keys that the command has not read: with a misspelt key it would use the default.
func (c *command) finish() error {
	for key := range c.values {
		c.fail(fmt.Errorf("%s does not know %s=", c.name, key))
	}
	return c.err
}

func (c *command) text(key, otherwise string) string {
	v, ok := c.values[key]
	delete(c.values, key)
	if !ok {
		return otherwise
	}
	return v
}

func (c *command) number(key string, otherwise uint64) uint64 {
	v := c.text(key, "")
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(v, 0, 64)
	c.fail(err)
	return n
}

func (c *command) session() SessionID {
	s := SessionID(c.number("s", 0))
	if s == 0 {
		c.fail(fmt.Errorf("%s needs s=, from 1", c.name))
	}
	return s
}

func (c *command) group() GroupID { return GroupID(c.number("group", 0)) }

func (c *command) rank(key string) int {
	r, err := strconv.Atoi(c.text(key, "-1"))
	c.fail(err)
	return r
}

func (c *command) duration(key string, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(c.text(key, otherwise.String()))
	c.fail(err)
	return d
}

func (c *command) positionalDuration() time.Duration {
	d, err := time.ParseDuration(c.positional)
	c.fail(err)
	return d
}

// enum reads a number, or the name of a number in 0..255.
func (c *command) enum(key string, name func(uint32) string) uint32 {
	v := c.text(key, name(0))
	if n, err := strconv.ParseUint(v, 0, 8); err == nil {
		return uint32(n)
	}
	for n := range uint32(256) {
		if name(n) == v {
			return n
		}
	}
	c.fail(fmt.Errorf("%s=%s is neither a number nor a name", key, v))
	return 0
}

func resultNamed(n uint32) string { return wire.Result(n).String() }
func opNamed(n uint32) string     { return wire.Op(n).String() }

func printActions(actions []Action) []string {
	var out []string
	for _, a := range actions {
		out = append(out, printAction(a))
	}
	return out
}

func printAction(a Action) string {
	switch a := a.(type) {
	case Send:
		fd := ""
		switch a.FD {
		case ControlFD:
			fd = fmt.Sprintf(" +fd of group %d's control segment", a.Group)
		case HeapFD:
			fd = fmt.Sprintf(" +fd of group %d's heap %d", a.Group, a.Local)
		case ClientFD:
			fd = fmt.Sprintf(" +file %d", a.File)
		}
		return fmt.Sprintf("s%d #%d: %s%s", a.To, a.Request, printMessage(a.Msg), fd)
	case CreateGroup:
		return fmt.Sprintf("create group=%d name=%q incarnation=%d world=%d heap=%d", a.Group, a.Name, a.Incarnation, a.World,
			a.HeapBytes) + printDevice(a)
	case Conclude:
		return printOutcome(a)
	case AdoptGroup:
		return fmt.Sprintf("adopt group=%d name=%q", a.Group, a.Name)
	case CheckLeases:
		return fmt.Sprintf("check_leases group=%d ranks=%d", a.Group, flight.List(a.Ranks))
	case Poison:
		return fmt.Sprintf("poison group=%d %s op=%s culprit=%d reporter=%d", a.Group, a.Abort.Code, a.Abort.Op, a.Abort.Culprit,
			a.Abort.Reporter)
	case Decommit:
		return fmt.Sprintf("decommit group=%d offset=%d bytes=%d", a.Group, a.Offset, a.Bytes)
	case CloseFile:
		return fmt.Sprintf("close file %d", a.File)
	case ReleaseGroup:
		return fmt.Sprintf("release group=%d", a.Group)
	case Ended:
		return fmt.Sprintf("ended group=%d name=%q %s: %s", a.Group, a.Name, a.Result, a.Text)
	case Formed:
		return fmt.Sprintf("formed group=%d took=%s", a.Group, a.Took)
	}
	return fmt.Sprintf("unknown action %#v", a)
}

// printOutcome omits fields of 0, since most belong to one kind of call.
func printOutcome(a Conclude) string {
	o := a.Outcome
	s := fmt.Sprintf("conclude group=%d %s %s", a.Group, o.Op, o.Code)
	if o.Code != wire.ResultOK {
		return s + fmt.Sprintf(" culprit=%d %q", o.Culprit, o.Text.String())
	}
	if o.Memory != 0 {
		s += fmt.Sprintf(" memory=%d", o.Memory)
	}
	if o.Offset != 0 {
		s += fmt.Sprintf(" offset=%d", o.Offset)
	}
	if o.Region != 0 {
		s += fmt.Sprintf(" region=%d", o.Region)
	}
	if o.Bytes != 0 {
		s += fmt.Sprintf(" bytes=%d", o.Bytes)
	}
	if o.Op == wire.OpWindowRegister {
		s += fmt.Sprintf(" staged=%d %q", o.StagedLocal, o.Text.String())
	}
	return s
}

// printDevice omits the device of a group on CPUs.
func printDevice(a CreateGroup) string {
	if a.Device == wire.DeviceCPU {
		return ""
	}
	var gpus []string
	for _, g := range a.GPUs {
		gpus = append(gpus, g.UUID.String()[:6])
	}
	return fmt.Sprintf(" device=%s heap=%d of %s gpus=%s", a.Device, a.DeviceHeapBytes, a.DeviceMemory.Kind, strings.Join(gpus, ","))
}

// kindNote omits a CPU's memory.
func kindNote(k wire.MemoryKind) string {
	if k == wire.MemoryCPU {
		return ""
	}
	return " of " + k.String()
}

func printMessage(m wire.Message) string {
	switch m := m.(type) {
	case *wire.Error:
		missing := ""
		if m.Missing != 0 {
			missing = " missing=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(flight.List(m.Missing)), " ", ","), "[]")
		}
		return fmt.Sprintf("error %s culprit=%d%s %q", m.Code, m.Culprit, missing, m.Text.String())
	case *wire.Joined:
		device := ""
		if m.DeviceHeapBytes != 0 {
			device = fmt.Sprintf(" device heap=%d scratch=%d slot=%d granularity=%d", m.DeviceHeapBytes, m.DeviceScratchBytes, m.DeviceSlotBytes,
				m.DeviceGranularity)
		}
		return fmt.Sprintf("joined group=%d incarnation=%d world=%d reduce=%d heap=%d scratch=%d block=%d control=%d spin=%dns%s", m.Group,
			m.Incarnation, m.World, m.ReduceGroup, m.HeapBytes, m.ScratchBytes, m.BlockBytes, m.ControlBytes, m.SpinNS, device)
	case *wire.Heap:
		return fmt.Sprintf("heap group=%d rank=%d pid=%d", m.Group, m.Local, m.PID)
	case *wire.GroupReady:
		return fmt.Sprintf("group_ready group=%d", m.Group)
	case *wire.WindowCommit:
		return fmt.Sprintf("window_commit group=%d offset=%d bytes=%d", m.Group, m.Offset, m.Bytes) + kindNote(m.Memory)
	case *wire.WindowReady:
		return fmt.Sprintf("window_ready group=%d offset=%d", m.Group, m.Offset)
	case *wire.WindowFreed:
		return fmt.Sprintf("window_freed group=%d offset=%d", m.Group, m.Offset)
	case *wire.PeerMemory:
		s := fmt.Sprintf("peer_memory group=%d region=%d rank=%d bytes=%d offset=%d", m.Group, m.Region, m.Local, m.Bytes, m.FdOffset)
		if m.Memory != wire.MemoryCPU {
			s += fmt.Sprintf(" of %s, allocation=%d", m.Memory, m.AllocationBytes)
		}
		if m.Handle[0] != 0 {
			s += fmt.Sprintf(" handle=%d", m.Handle[0])
		}
		return s
	case *wire.Registered:
		staged := "shared"
		if m.StagedLocal >= 0 {
			staged = fmt.Sprintf("staged by rank %d: %q", m.StagedLocal, m.Reason.String())
		}
		return fmt.Sprintf("registered group=%d region=%d %s", m.Group, m.Region, staged)
	case *wire.Reannounced:
		return fmt.Sprintf("reannounced group=%d", m.Group)
	case *wire.Left:
		return fmt.Sprintf("left group=%d", m.Group)
	}
	return fmt.Sprintf("unexpected message %#v", m)
}

func printSnapshot(m *Machine) (out []string) {
	groups, ended := m.Snapshot()
	for _, g := range groups {
		out = append(out, "held: "+printInfo(g))
		for _, r := range g.Ranks {
			line := fmt.Sprintf("  rank %d: pid %d, %s", r.Rank, r.PID, r.State)
			if r.Session != 0 {
				line += fmt.Sprintf(", session %d", r.Session)
			}
			out = append(out, line)
		}
	}
	for _, g := range ended {
		out = append(out, "past: "+printInfo(g))
	}
	if len(out) == 0 {
		return []string{"no groups"}
	}
	return out
}

func printInfo(g GroupInfo) string {
	s := fmt.Sprintf("group=%d name=%q incarnation=%d %s world=%d", g.ID, g.Name, g.Incarnation, g.State, g.WorldSize)
	if len(g.Windows) != 0 {
		var windows []string
		for _, w := range g.Windows {
			windows = append(windows, fmt.Sprintf("%d", w.Window)+kindNote(w.Memory))
		}
		s += fmt.Sprintf(" windows=%s", windows)
	}
	for _, r := range g.Registered {
		s += fmt.Sprintf(" registered=%d bytes=%d shared=%t", r.Number, r.Bytes, r.Shared) + kindNote(r.Memory)
	}
	if len(g.Missing) != 0 {
		s += fmt.Sprintf(" missing=%d", g.Missing)
	}
	if g.WaitingIn != "" {
		s += fmt.Sprintf(" waiting_in=%s for=%d", g.WaitingIn, g.WaitingFor)
	}
	if g.ReleasingIn != "" {
		s += " releasing_in=" + g.ReleasingIn
	}
	if g.Result != "" {
		s += fmt.Sprintf(" %s: %s", g.Result, g.Cause)
	}
	if g.Culprit != nil {
		s += fmt.Sprintf(" (culprit %d)", *g.Culprit)
	}
	return s
}
