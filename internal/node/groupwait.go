package node

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// maxGroupWait is how long the creation of a group is delayed while one of its disks is refused for a reason
// that may pass: without spec.extend, a disk that becomes free later is not added, and a thin pool does not
// grow.
const maxGroupWait = 10 * time.Minute

// await clears d.Candidates if the group does not exist yet and would be created without a disk that may be free
// soon. It does so for maxGroupWait, whose start is in the ledger and survives a restart.
func (m *groupMaker) await(d *volumegroup.Decision) error {
	name := d.Declaration.Name
	at := slices.IndexFunc(d.Refused, func(r volumegroup.Refusal) bool { return r.Transient })
	if d.GroupUUID != "" || at < 0 || len(d.Candidates) == 0 {
		return nil
	}
	since, waits := m.ledger.WaitingSince[name]
	if now := m.now(); !waits || since.After(now) { // the clock may have been set back
		since = now
		m.ledger.WaitingSince[name] = since
		if err := m.record("record the wait"); err != nil {
			return err
		}
	}
	until := since.Add(maxGroupWait)
	if !m.now().Before(until) {
		return nil
	}
	d.WaitReason = fmt.Sprintf("the group is not created yet, because of disk %s: %s; free it, or leave it out of spec.disks: at %s the group is created without it",
		d.Refused[at].ID, d.Refused[at].Reason, until.UTC().Format(time.RFC3339))
	d.Candidates = nil
	return nil
}

// endWaits deletes the start of a wait once its declaration is gone or none of its disks is busy any more, so
// that a later wait gets the full time.
func (m *groupMaker) endWaits(outcomes []volumegroup.Outcome) error {
	before := len(m.ledger.WaitingSince)
	maps.DeleteFunc(m.ledger.WaitingSince, func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(outcomes, func(o volumegroup.Outcome) bool {
			return o.Name == name && slices.ContainsFunc(o.Refused, func(r volumegroup.Refusal) bool { return r.Transient })
		})
	})
	if len(m.ledger.WaitingSince) == before {
		return nil
	}
	return m.record("forget waits")
}
