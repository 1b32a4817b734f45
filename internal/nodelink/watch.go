package nodelink

// watch is the pings of one stream: a state machine that counts ticks, one each Config.Ping. At most one ping waits for its answer.
type watch struct {
	number uint64 // of the latest ping
	ticks  int    // since that ping, itself included; 0 when it was answered
}

// patience is how many ticks a ping may wait.
func patience(c Config) int { return int((c.Dead + c.Ping - 1) / c.Ping) }

// tick returns whether a ping is due, and whether the peer is lost.
func (w *watch) tick(patience int) (ping, lost bool) {
	w.ticks++
	if w.ticks == 1 {
		w.number++
		return true, false
	}
	return false, w.ticks > patience
}

// pong takes an answer.
func (w *watch) pong(number uint64) error {
	if w.ticks == 0 || number != w.number {
		return broken("an answer to ping %d, the latest is %d", number, w.number)
	}
	w.ticks = 0
	return nil
}
