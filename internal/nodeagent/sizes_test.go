package nodeagent_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/nfsquota"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
)

// fakeKeeper reports what it is told to, as often as it is asked.
type fakeKeeper struct {
	report atomic.Pointer[func() (nfsquota.Report, error)]
	looks  atomic.Int64
}

func (k *fakeKeeper) Dir() string { return "/srv/flexlvm" }

func (k *fakeKeeper) Look(context.Context) (nfsquota.Report, error) {
	k.looks.Add(1)
	return (*k.report.Load())()
}

func (k *fakeKeeper) Await(ctx context.Context, _ time.Duration) {
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (k *fakeKeeper) says(r nfsquota.Report, err error) {
	f := func() (nfsquota.Report, error) { return r, err }
	k.report.Store(&f)
}

func TestSizesOfAnExport(t *testing.T) {
	r := newRig(t)
	k := &fakeKeeper{}
	k.says(nfsquota.Report{Asked: 2}, errors.New("mount it with the option prjquota"))
	r.config.Sizes = []nodeagent.SizeKeeper{k}
	r.start()
	told := func(text string) {
		t.Helper()
		r.eventually(func() bool { return strings.Contains(strings.Join(r.api.told("NFSSizeNotEnforced"), "\n"), text) }, "nobody says %q", text)
	}
	told("NFS export /srv/flexlvm: the size of 2 volumes is not enforced: mount it with the option prjquota")
	require.EqualValues(t, 2, r.metric("flexlvm_nfs_sizes", "unenforced"))
	k.says(nfsquota.Report{Asked: 3, Held: 1, Problems: []string{"this one", "that one"}}, nil)
	told("the size of 2 volumes is not enforced: this one, and so on")
	k.says(nfsquota.Report{Asked: 3, Held: 3}, nil)
	r.eventually(func() bool { return r.metric("flexlvm_nfs_sizes", "enforced") == 3 }, "they are not enforced")
	require.Zero(t, r.metric("flexlvm_nfs_sizes", "unenforced"))
	k.says(nfsquota.Report{Asked: 2}, errors.New("mount it with the option prjquota"))
	r.eventually(func() bool { return r.metric("flexlvm_nfs_sizes", "unenforced") == 2 }, "they are enforced")
}

func TestDryRunHoldsNoSizes(t *testing.T) {
	r := newRig(t)
	k := &fakeKeeper{}
	k.says(nfsquota.Report{}, nil)
	r.config.Sizes, r.config.DryRun = []nodeagent.SizeKeeper{k}, true
	r.start()
	r.rounds(3)
	require.Zero(t, k.looks.Load())
}
