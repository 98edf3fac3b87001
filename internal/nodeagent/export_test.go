package nodeagent

import "time"

// SetRoundTime sets after which time a round times out. It must be called before Run.
func (d *Daemon) SetRoundTime(t time.Duration) { d.roundTime = t }
