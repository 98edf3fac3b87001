package nodeagent

import "time"

// SetRoundTime sets after which time a round times out. It must be called before Run.
func (d *Daemon) SetRoundTime(t time.Duration) { d.roundTime = t }

// SetUnmountPause sets the least time between two rounds that changes of mounts trigger. It must be called before Run.
func (d *Daemon) SetUnmountPause(t time.Duration) { d.blockedUnmounts.pause = t }
